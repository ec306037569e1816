//! A training run in a process that writes no files: all but the first of several processes.
use std::path::PathBuf;

use super::exit::CliError;
use crate::config::RunConfig;
use crate::evaluate::Evaluation;
use crate::model::checkpoint::CheckpointError;
use crate::model::store::RunState;
use crate::model::{Model, Processes, StepReport, Trainer};
use crate::training::{self, DataLoader, Observer, Source, Training};

/// What a process needs to train.
pub(super) struct Follower {
    pub(super) config: RunConfig,
    pub(super) source: Source,
    pub(super) loader: DataLoader,
    pub(super) trainer: Trainer,
    pub(super) state: RunState,
}

impl Follower {
    /// Trains until the first process ends the run.
    pub(super) fn run(mut self, processes: &Processes) -> Result<(), CliError> {
        self.trainer.checkpointing = training::activation_checkpointing(&self.config);
        let mut training = Training {
            config: &self.config,
            source: &self.source,
            loader: &self.loader,
            files: None,
            trainer: &mut self.trainer,
            state: self.state,
            processes: processes.clone(),
        };
        Ok(training.run(&mut Silent).map(drop)?)
    }
}

/// Reports nothing: the first process does.
struct Silent;

impl Observer for Silent {
    fn step(&mut self, _: &StepReport, _: Option<&Evaluation>) -> Result<(), training::Error> {
        Ok(())
    }

    fn saved(&mut self, _: PathBuf, _: Option<CheckpointError>) {}

    fn sample(&mut self, _: &Model, _: u64) {}

    fn stop(&mut self) -> bool {
        false
    }
}
