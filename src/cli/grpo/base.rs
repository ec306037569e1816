//! The base model of a task, which is trained before the first step.
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checks::no_initial_weights;
use super::setup::Setup;
use crate::cli::exit::{CliError, shell_word};
use crate::cli::follower::Follower;
use crate::cli::gpu_peers;
use crate::cli::interrupt::Interrupt;
use crate::cli::job::{self, Job, Restored};
use crate::cli::paths::make_absolute;
use crate::cli::resumed::resumed;
use crate::cli::source;
use crate::config::{RunConfig, TrainSection};
use crate::model::checkpoint::{CheckpointDir, RealFs, step_path};
use crate::model::data::{DocumentSink as _, Role, TokenWriter};
use crate::model::store::RunState;
use crate::model::tasks::{Task, TaskCorpus};
use crate::model::tokenizer::Tokenizer;
use crate::run::{RunDir, has_checkpoint};
use crate::tensor::Device;
use crate::training;

/// Directory of the base model in the run directory.
pub(super) const BASE: &str = "base";
/// Its corpus.
const CORPUS: &str = "corpus.tok";

/// The run of a base model and what trains it. `None`: another process writes the run.
type Base = (RunDir, Follower, Option<Writer>);

/// The checkpoints of a base model that this process writes.
struct Writer {
    checkpoints: CheckpointDir,
    /// The checkpoint that the run resumes from. `None`: a new run.
    last_saved: Option<PathBuf>,
}

impl Setup<'_> {
    /// Trains the base model, or finishes its training, on all processes.
    pub(super) fn train_base(&self, path: &Path, interrupt: &Interrupt) -> Result<(), CliError> {
        let Some(task) = self.task else {
            return Err(no_initial_weights());
        };
        let complete = step_path(path, self.config.train.steps as u64).is_dir();
        // A process may be late and find what the first one has written since.
        let found = self.comm.broadcast(0, &[u8::from(complete), u8::from(has_checkpoint(path))])?;
        if found[0] == 1 {
            return Ok(());
        }
        // A device keeps the memory of its tensors: that of the base model ends with it.
        let device = &self.common.open()?;
        let (run, parts, checkpoint) = match found[1] {
            1 => self.restored_base(path, device)?,
            _ => self.new_base(path, task, device)?,
        };
        let processes = gpu_peers::connect(device, self.common.threads, self.comm)?;
        self.comm.barrier()?;
        let Some(Writer { checkpoints, last_saved }) = checkpoint else { return parts.run(&processes) };
        let mut job = Job { processes, ..Job::new(parts, run, checkpoints, last_saved) };
        eprintln!(
            "training the base model on {} with {} % wrong answers",
            task.name(),
            100.0 * self.section.wrong_answers
        );
        let end = job::run_training(&mut job, interrupt.clone(), self.engine);
        let run = shell_word(path.parent().unwrap_or(path));
        end.map_err(|error| match error.exit().is_stop() {
            true => error.hint(format_args!("to resume: xtrain grpo --resume {run}")),
            false => error,
        })
    }

    /// A base model at its newest checkpoint.
    fn restored_base(&self, path: &Path, device: &Device) -> Result<Base, CliError> {
        let run = RunDir::open(path)?;
        let mut config = resumed(&run, &[], &[])?.new.config;
        let (source, _) = job::open_data(&run, &mut config, &**self.comm)?;
        let Restored { parts, path, checkpoints } = job::restore(&run, config, source, device, &**self.comm)?;
        let writer = checkpoints.map(|checkpoints| Writer { checkpoints, last_saved: Some(path) });
        Ok((run, parts, writer))
    }

    /// A base model before its first step. The first process replaces what a killed one left before its first
    /// checkpoint.
    fn new_base(
        &self,
        path: &Path,
        task: &(dyn Task + Send + Sync),
        device: &Device,
    ) -> Result<Base, CliError> {
        let corpus = path.join(CORPUS);
        let mut config = RunConfig { grpo: None, ..self.config.clone() };
        config.data.files = vec![corpus.to_string_lossy().into_owned()];
        make_absolute(&mut config)?;
        let tokenizer = source::tokenizer(&config.data.tokenizer)?;
        let trainer = training::new_trainer(&config, tokenizer.vocab_size(), device)?;
        let writer = match self.comm.rank() {
            0 => Some(self.write_base(path, task, &config, &tokenizer)?),
            _ => None,
        };
        self.comm.barrier()?;
        let source = source::open(&config)?;
        let run = RunDir::open(path)?;
        if writer.is_some() {
            run.write_data(&source::record(&config, &source)?)?;
        }
        let state = RunState { seed: config.train.seed, best: None };
        let loader = source::loader(&config, &source, config.train.seed)?;
        Ok((run, Follower { config, source, loader, trainer, state }, writer))
    }

    /// Creates the run of a base model and writes its corpus.
    fn write_base(
        &self,
        path: &Path,
        task: &(dyn Task + Send + Sync),
        config: &RunConfig,
        tokenizer: &Tokenizer,
    ) -> Result<Writer, CliError> {
        if path.is_dir() {
            fs::remove_dir_all(path).map_err(|error| CliError::io(path, &error))?;
        }
        let run = RunDir::create(path, &config.to_toml())?;
        let checkpoints = CheckpointDir::open(Arc::new(RealFs), run.path(), config.train.keep)?;
        let documents = TaskCorpus::new(task, config.train.seed, self.section.wrong_answers)?;
        let count = corpus_tokens(&config.train);
        let mut writer = TokenWriter::create(&path.join(CORPUS), tokenizer)?;
        for document in documents.documents() {
            if writer.count() >= count {
                break;
            }
            writer.push(&tokenizer.encode_with_bos(&document)?, Role::Target)?;
            writer.end_document()?;
        }
        writer.finish()?;
        Ok(Writer { checkpoints, last_saved: None })
    }
}

/// Tokens of the corpus of a base model: as many as its training reads, but at least 2^16 and at most 2^22.
fn corpus_tokens(train: &TrainSection) -> u64 {
    let read = [train.steps, train.batch, train.context].into_iter().fold(1, usize::saturating_mul);
    (read as u64).clamp(1 << 16, 1 << 22)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_has_the_tokens_of_its_training_within_limits() {
        let tokens = |[steps, batch, context]: [usize; 3]| {
            corpus_tokens(&TrainSection { steps, batch, context, ..TrainSection::default() })
        };
        assert_eq!(tokens([100, 30, 40]), 120_000);
        assert_eq!([tokens([1, 2, 3]), tokens([1000, 1000, 1000])], [65_536, 4_194_304]);
        assert_eq!(tokens([1 << 31, 1 << 20, 1 << 20]), 4_194_304);
    }
}
