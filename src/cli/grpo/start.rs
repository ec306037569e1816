//! The models that a run starts or resumes with.
use std::path::{Path, PathBuf};

use super::base::BASE;
use super::setup::Setup;
use crate::cli::exit::CliError;
use crate::cli::identity::Identity;
use crate::cli::interrupt::Interrupt;
use crate::cli::job::warn_refused;
use crate::cli::{gpu_peers, loaded, source};
use crate::grpo::{from_config, reference};
use crate::model::checkpoint::Refused;
use crate::model::export::ExportSource;
use crate::model::store::{self, LoadedModel, Resumed};
use crate::model::tokenizer::Tokenizer;
use crate::model::{Model, Processes, Trainer};
use crate::run::{DataRecord, RunDir, has_checkpoint};
use crate::tensor::Dtype;
use crate::tensor::faults::{self, Fault};
use crate::training;

/// A run that is ready to start or to resume.
pub(super) struct Ready {
    pub(super) trainer: Trainer,
    pub(super) reference: Option<Model>,
    pub(super) tokenizer: Tokenizer,
    pub(super) processes: Processes,
    /// Newer checkpoints that could not be loaded.
    pub(super) refused: Vec<Refused>,
}

impl Setup<'_> {
    /// Opens the newest checkpoint of the run, or its initial model.
    pub(super) fn open(&self, run: &RunDir, interrupt: &Interrupt) -> Result<Ready, CliError> {
        let (optim, schedule) =
            (from_config::optim_config(self.section), from_config::schedule(self.section));
        let compute = training::compute(self.config.train.dtype);
        let mut refused = Vec::new();
        let is_new = !has_checkpoint(run.path());
        let (mut trainer, tokenizer, eos) = match is_new {
            true => {
                let LoadedModel { model, tokenizer, eos, .. } = self.initial(run, interrupt)?;
                (Trainer::new(model, optim, schedule)?, tokenizer, eos)
            }
            false => {
                let resumed = store::resume(run.path(), compute, self.device, optim, schedule)?;
                let Resumed { trainer, eos, path, .. } = resumed;
                refused = resumed.refused;
                warn_refused(&refused);
                (trainer, Some(store::tokenizer_of(&path)?), eos)
            }
        };
        let tokenizer = match tokenizer {
            Some(tokenizer) => tokenizer,
            None => source::tokenizer(&self.config.data.tokenizer)?,
        };
        let tokenizer = run.as_recorded(tokenizer.with_eos_ids(&eos))?;
        let data = self.check_data(run, &tokenizer)?;
        trainer.checkpointing = training::activation_checkpointing(self.config);
        trainer.shards = self.config.train.shards;
        let step = trainer.step_number();
        self.require_not_passed(run, step)?;
        let mut reference = None;
        if self.section.beta > 0.0 {
            let initial =
                ExportSource { model: &trainer.model, tokenizer: Some(&tokenizer), eos: tokenizer.eos_ids() };
            // a run without a checkpoint may have the reference model of an earlier start from another model
            let replaces = is_new && !faults::on(Fault::ReferenceOfEarlierStartKept);
            if self.comm.rank() == 0 && step == 0 && (replaces || !reference::exists(run)) {
                reference::create(run, self.section, &initial)?;
            }
            self.comm.barrier()?;
            reference = Some(reference::open(run, self.section, step, self.device)?);
        }
        let digest = || reference::digest(run, self.section, step);
        let digest = reference.is_some().then(digest).transpose()?;
        Identity::of_grpo(&data, &trainer, digest)?.require_equal(&**self.comm)?;
        let processes = gpu_peers::connect(self.device, self.common.threads, self.comm)?;
        Ok(Ready { trainer, reference, tokenizer, processes, refused })
    }

    /// Records the digests of the prompts in a run without a checkpoint, whose prompts may have been corrected; rejects
    /// a resume of another run with other prompts. Returns them.
    fn check_data(&self, run: &RunDir, tokenizer: &Tokenizer) -> Result<DataRecord, CliError> {
        let files =
            [&self.section.prompts, &self.section.eval_prompts].into_iter().filter(|file| !file.is_empty());
        let record = DataRecord::of_files(files, &self.config.data.tokenizer, tokenizer)?;
        match run.path().join("data.json").exists() && has_checkpoint(run.path()) {
            _ if self.comm.rank() > 0 => {}
            true => run.check_data(&record)?,
            false => run.write_data(&record)?,
        }
        Ok(record)
    }

    fn initial_path(&self, run: &RunDir) -> Result<PathBuf, CliError> {
        match self.config.train.init.as_str() {
            "" => Ok(run.path().join(BASE)),
            init => loaded::find(Path::new(init)),
        }
    }

    /// The initial model: that of `train.init`, or the base model of the task, which is trained first.
    fn initial(&self, run: &RunDir, interrupt: &Interrupt) -> Result<LoadedModel, CliError> {
        if self.config.train.init.is_empty() {
            self.train_base(&run.path().join(BASE), interrupt)?;
        }
        let path = self.initial_path(run)?;
        let in_f32 = faults::on(Fault::FirstStepInF32);
        let compute = if in_f32 { Dtype::F32 } else { training::compute(self.config.train.dtype) };
        let initial = store::open(&path, compute, self.device)?;
        if self.comm.rank() == 0 && !faults::on(Fault::OlderInitialModelUnreported) {
            loaded::warn_refused(&initial.refused, &initial.path);
        }
        Ok(initial)
    }
}
