//! A run in a process that writes no files: all but the first of several processes.
use std::path::Path;

use super::setup::Setup;
use crate::cli::exit::CliError;
use crate::cli::interrupt::Interrupt;
use crate::grpo::metrics::StepMetrics;
use crate::grpo::{Error, GrpoObserver};
use crate::run::RunDir;

impl Setup<'_> {
    /// Takes part in the run until the first process ends it. `run`: that which is resumed. `None`: the first process
    /// creates one at `path`.
    pub(super) fn follow(
        &self,
        run: Option<RunDir>,
        path: &Path,
        interrupt: &Interrupt,
    ) -> Result<(), CliError> {
        self.comm.barrier()?;
        let run = run.map_or_else(|| RunDir::open(path), Ok)?;
        let mut ready = self.open(&run, interrupt)?;
        if self.is_complete(&ready) {
            return Ok(());
        }
        let inputs = self.inputs(&ready)?;
        Ok(self.steps(&mut ready, inputs, Vec::new(), None, &mut Silent).map(drop)?)
    }
}

/// Reports nothing: the first process does.
struct Silent;

impl GrpoObserver for Silent {
    fn step(&mut self, _: &StepMetrics) -> Result<(), Error> {
        Ok(())
    }
}
