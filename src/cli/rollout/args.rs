//! The flags of `xtrain rollout`.
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use crate::cli::CliError;
use crate::cli::common::{Force, count, number};
use crate::cli::generation_args::{FINISH_REASONS, GenerationArgs};
use crate::cli::prompts::TruncatedSide;
use crate::cli::scheduler_flags::SchedulerFlags;
use crate::decode::{EngineOptions, PrefixCaching};

#[derive(Debug, Clone, Args)]
#[command(after_help = format!("\
Input: one JSON object per line with one of {{\"prompt\": \"12+34=\"}}, {{\"messages\": [...]}} (a conversation, rendered with \
the chat template of the model) and {{\"prompt_ids\": [49, 50]}}. Output: one JSON object \
per completion, in prompt order, with token ids, log-probabilities and finish reason, and with the other fields of the \
prompt's line. Each prompt is prefilled once for its G completions, and prompts with a common prefix share its cached \
pages. Completion s of prompt p has sample_id p * G + s.

A line may replace flags for its completions: max_new, seed, ignore_eos, temperature, top_k, top_p, min_p, \
repetition_penalty, stop (a list of texts), stop_token_ids, top_logprobs, and regex or json_schema. \"priority\" is a whole number; \
prompts of a higher one run first. Fields with other names are columns: they have no effect, and the output repeats \
them.

A prompt that does not fit the context is skipped with a warning, unless it is truncated; the exit code is then 65.

{FINISH_REASONS}

--out appears when all completions are finished. Ctrl-C (exit code 130), SIGTERM (143), a closed terminal (129, \
on Linux), a sequence that fails and a full disk keep the finished completions that could be written: they are in OUT.partial or were printed, each with its \
prompt_id and sample. Several processes keep nothing. The same command with --resume generates the others, also after a \
command that was killed; an existing OUT.partial is replaced with --force only.

Examples:
  xtrain rollout runs/quickstart --prompts prompts.jsonl -n 8 --out completions.jsonl
  xtrain rollout runs/quickstart --prompts prompts.jsonl --stop '!' --stop '?' --out ended.jsonl
  xtrain rollout runs/quickstart --prompts prompts.jsonl --regex '[0-9]{{1,3}}' --out numbers.jsonl
  echo '{{\"prompt\": \"12+34=\"}}' | xtrain rollout runs/quickstart -n 4 --max-new 8"))]
pub(in crate::cli) struct RolloutArgs {
    /// JSONL file with one prompt per line; - is standard input.
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(super) prompts: PathBuf,
    /// JSONL file for the completions; - is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub(super) out: PathBuf,
    /// Number of completions per prompt.
    #[arg(short = 'n', long = "num-generations", value_name = "G", default_value = "1", value_parser = group_size)]
    pub(super) n: NonZeroUsize,
    /// Maximum number of sequences that run concurrently.
    #[arg(long, alias = "batch", value_name = "N", default_value = "64", value_parser = count)]
    pub(in crate::cli) max_batch_size: NonZeroUsize,
    /// GPU: decode steps between two synchronizations with the host. The completions do not depend on it.
    #[arg(long, alias = "look", value_name = "STEPS", default_value = "8", value_parser = count)]
    pub(in crate::cli) sync_every: NonZeroUsize,
    /// Continue an interrupted rollout of the same model, prompts and flags: keep the prompts of OUT.partial that have
    /// all their completions, and generate the others. Those of the first kept prompt are generated again and compared.
    #[arg(long)]
    pub(super) resume: bool,
    /// Truncate prompts that do not fit the context, instead of skipping them.
    #[arg(long, value_name = "SIDE")]
    pub(super) truncate_prompt: Option<TruncatedSide>,
    /// Write the digest of the weights into each line, so that `xtrain replay` refuses other weights. Keeps the f32
    /// master weights in memory.
    #[arg(long)]
    pub(super) policy_digest: bool,
    #[command(flatten)]
    pub(super) force: Force,
    #[command(flatten)]
    pub(in crate::cli) generation: GenerationArgs,
    #[command(flatten)]
    pub(super) scheduler: SchedulerFlags,
}

impl RolloutArgs {
    /// The engine options for `total` sequences of at most `longest` positions.
    ///
    /// # Errors
    /// Flags that exclude each other; a cache without room for the longest sequence.
    pub(in crate::cli) fn engine(&self, longest: usize, total: usize) -> Result<EngineOptions, CliError> {
        let options = EngineOptions {
            prefix_caching: PrefixCaching::On,
            steps_per_sync: self.sync_every.get(),
            max_seq_len: Some(longest),
            max_batch: self.max_batch_size.get().min(total),
            ..self.scheduler.apply(self.generation.engine()?)
        };
        self.scheduler.fit(options, longest, "--max-new, or \"max_new\" in the line of the prompt")
    }
}

fn group_size(text: &str) -> Result<NonZeroUsize, String> {
    number(text, |g: &NonZeroUsize| g.get() <= 65_536, "expected a number from 1 to 65536")
}
