//! `rollouts/step_NNNNNN.jsonl`: every completion of a generation batch.
use std::borrow::Cow;
use std::collections::BTreeMap;

use super::batch::{Batch, Group, Sample};
use super::rollout::RolloutOptions;
use super::scores::Scores;
use crate::grammar::Language;
use crate::rollout_file::RolloutLine;
use crate::tensor::faults::{self, Fault};

/// The lines of a batch: the groups of the update, then the discarded ones. `names`: the rewards.
pub(super) fn lines(batch: &Batch, names: &[String], options: &RolloutOptions) -> Vec<u8> {
    let language = options.constraint.as_ref().map(|constraint| &constraint.language);
    let (regex, json_schema) = language.map_or((None, None), Language::fields);
    let mut bytes = Vec::new();
    let mut write = |groups: &[Group], scores: &Scores, first_group: usize, advantages: Option<&[f64]>| {
        let mut row = 0;
        for (at, group) in groups.iter().enumerate() {
            for (sample_index, sample) in group.samples.iter().enumerate() {
                let rewards: BTreeMap<String, Option<f64>> =
                    names.iter().cloned().zip(scores.each[row].iter().copied()).collect();
                let sampling = &options.sampling;
                let line = RolloutLine {
                    step: Some(batch.step),
                    prompt_id: group.prompt_id,
                    group: first_group + at,
                    sample: sample_index,
                    sample_id: sample.id,
                    seed: options.seed,
                    policy: Some(Cow::Borrowed(&batch.policy)),
                    prompt: Some(Cow::Borrowed(&group.prompt.text)),
                    completion: Some(Cow::Borrowed(&sample.text)),
                    prompt_ids: Cow::Borrowed(&group.prompt.ids),
                    completion_ids: Cow::Borrowed(&sample.tokens),
                    logprobs: None,
                    processed_logprobs: Cow::Borrowed(&sample.logprobs),
                    top_logprobs: None,
                    mask: mask(sample),
                    reward: scores.total[row],
                    rewards: Some(rewards),
                    advantage: advantages.map(|all| all[row]),
                    trained: Some(advantages.is_some()),
                    finish_reason: sample.finish,
                    truncated: sample.truncated(),
                    max_new: Some(options.max_new),
                    ignore_eos: false,
                    stop: Cow::Borrowed(&options.stop_texts),
                    stop_token_ids: Cow::default(),
                    regex: regex.clone(),
                    json_schema: json_schema.clone(),
                    kv: None,
                    dtype: None,
                    temperature: sampling.temperature,
                    top_p: sampling.top_p.unwrap_or(1.0),
                    top_k: sampling.top_k.unwrap_or(0),
                    min_p: sampling.min_p.unwrap_or(0.0),
                    repetition_penalty: sampling.repetition_penalty,
                    columns: Cow::default(),
                };
                bytes.extend(line.to_json());
                row += 1;
            }
        }
    };
    write(&batch.groups, &batch.scores, 0, Some(&batch.advantages.values));
    let first = if faults::on(Fault::DiscardedGroupsFromZero) { 0 } else { batch.groups.len() };
    write(&batch.discarded, &batch.discarded_scores, first, None);
    bytes
}

/// The mask of a completion with appended tokens.
fn mask(sample: &Sample) -> Option<Vec<u8>> {
    let has_appended = sample.mask.contains(&false);
    has_appended.then(|| sample.mask.iter().map(|&sampled| u8::from(sampled)).collect())
}
