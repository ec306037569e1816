//! The line of a completion.
use std::borrow::Cow;

use super::args::RolloutArgs;
use crate::cli::completion_writer::Completed;
use crate::cli::prompts::Prompt;
use crate::decode::FinishReason;
use crate::grammar::Language;
use crate::rollout_file::{RolloutLine, lossy, top_pairs};
use crate::tensor::Dtype;
use crate::tensor::faults::{self, Fault};

/// The line of a completion. `policy`, `dtype`: the digest of the weights and the compute dtype. `group`, `prompt`: the
/// number of the prompt among those that were not skipped, and the prompt.
pub(super) fn json_line(
    args: &RolloutArgs,
    (policy, dtype): (Option<&str>, Dtype),
    (group, prompt): (usize, &Prompt),
    done: &Completed,
) -> Vec<u8> {
    let Completed { completion: done, text } = done;
    let parameters = prompt.parameters(&args.generation.parameters);
    let (sampling, g) = (&parameters.sampling, args.n.get());
    let (regex, json_schema) = prompt.language.as_ref().map_or((None, None), Language::fields);
    RolloutLine {
        step: None,
        prompt_id: prompt.index as u64,
        group,
        sample: done.index % g,
        sample_id: done.id,
        seed: parameters.seed,
        policy: policy.map(Cow::Borrowed),
        prompt: prompt.text.as_deref().map(Cow::Borrowed),
        completion: text.as_deref().map(Cow::Borrowed),
        prompt_ids: Cow::Borrowed(&prompt.ids),
        completion_ids: Cow::Borrowed(&done.tokens),
        logprobs: Some(Cow::Borrowed(&done.logprobs)),
        processed_logprobs: Cow::Borrowed(&done.processed_logprobs),
        top_logprobs: top_pairs(done),
        mask: None,
        reward: None,
        rewards: None,
        advantage: None,
        trained: None,
        finish_reason: done.finish_reason,
        truncated: match done.finish_reason {
            FinishReason::Length => true,
            FinishReason::Context => !faults::on(Fault::FullContextNotTruncated),
            FinishReason::Eos | FinishReason::Stop => false,
        },
        max_new: Some(parameters.max_new),
        ignore_eos: parameters.ignore_eos,
        stop: Cow::Borrowed(&parameters.stop.stop),
        stop_token_ids: Cow::Borrowed(&parameters.stop_token_ids),
        regex,
        json_schema,
        kv: lossy(args.generation.cache.engine().kv),
        dtype: policy.is_none().then(|| Cow::Owned(dtype.to_string())),
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        repetition_penalty: sampling.penalty(),
        columns: Cow::Borrowed(&prompt.columns),
    }
    .to_json()
}
