//! Rollout files: one JSON line per completion, with everything that is needed to reproduce it.
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::decode::sampler::TokenLogprob;
use crate::decode::{Completion, FinishReason, KvKind, Request, SampleOptions, StopConditions};
use crate::grammar::Language;
use crate::model::{Error, Model};
use crate::tensor::Dtype;

/// The most probable tokens at one position, each with its log-probability.
pub type TopTokens = Vec<(u32, f32)>;

/// One completion. `xtrain grpo` writes all fields; `xtrain rollout` leaves those of a training step out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutLine<'a> {
    /// The optimizer step that the completion was generated for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Index of the prompt.
    pub prompt_id: u64,
    /// Index of the group in its batch.
    pub group: usize,
    /// Index of the completion in its group.
    pub sample: usize,
    /// Address of the random numbers, together with `seed`.
    pub sample_id: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Digest of the weights that sampled; see [`policy_digest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Cow<'a, str>>,
    /// The prompt as text.
    pub prompt: Option<Cow<'a, str>>,
    /// The completion as text, without the end-of-text token and before the stop text.
    pub completion: Option<Cow<'a, str>>,
    /// The tokens of the prompt.
    pub prompt_ids: Cow<'a, [u32]>,
    /// The tokens, including the one that ended the completion.
    pub completion_ids: Cow<'a, [u32]>,
    /// The log-probability of each token before temperature and filters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Cow<'a, [f32]>>,
    /// The log-probability of each token after temperature and filters. 0 for an appended token.
    pub processed_logprobs: Cow<'a, [f32]>,
    /// The most probable tokens at the position of each token, each with its log-probability before temperature and
    /// filters. `None`: they were not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<Vec<TopTokens>>,
    /// 1 for each sampled token, 0 for each token that a reward program appended. `None`: all are sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<Vec<u8>>,
    /// The weighted sum of the rewards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Each reward; null if the reward does not apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewards: Option<BTreeMap<String, Option<f64>>>,
    /// The advantage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advantage: Option<f64>,
    /// Whether the completion was part of the update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained: Option<bool>,
    /// Why the completion ended.
    pub finish_reason: FinishReason,
    /// Whether a length limit ended it.
    pub truncated: bool,
    /// Maximum number of new tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_new: Option<usize>,
    /// Whether end-of-text tokens did not end the completion.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignore_eos: bool,
    /// The texts that end a completion.
    #[serde(default, skip_serializing_if = "no_stop")]
    pub stop: Cow<'a, [String]>,
    /// The tokens that end a completion, besides end-of-text tokens.
    #[serde(default, skip_serializing_if = "no_stop_tokens")]
    pub stop_token_ids: Cow<'a, [u32]>,
    /// The regular expression that the completion matches. `None`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<Cow<'a, str>>,
    /// The JSON schema of the completion. `None`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json_schema: Option<Cow<'a, Value>>,
    /// The kind of a lossy KV cache. `None`: the cache was exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv: Option<Cow<'a, str>>,
    /// The compute dtype of a completion without [`RolloutLine::policy`], whose digest contains it. `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Cow<'a, str>>,
    /// Softmax temperature.
    pub temperature: f32,
    /// Top-p; 1: off.
    pub top_p: f32,
    /// Top-k; 0: off.
    pub top_k: usize,
    /// Min-p; 0: off.
    pub min_p: f32,
    /// Repetition penalty. `None`: off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    /// The other fields of the prompt's line, with their names.
    #[serde(flatten)]
    pub columns: Cow<'a, Map<String, Value>>,
}

/// The value of [`RolloutLine::kv`]. The pages of an int8 cache do not change its results, sinks and window do.
pub fn lossy(kv: KvKind) -> Option<Cow<'static, str>> {
    match kv {
        KvKind::Int8 { .. } => Some(Cow::Borrowed("int8")),
        KvKind::Sinks { .. } => Some(Cow::Owned(kv.to_string())),
        KvKind::Off | KvKind::Growing | KvKind::Contiguous | KvKind::Paged { .. } => None,
    }
}

impl RolloutLine<'_> {
    /// The names that a column must not have: those of the other fields.
    pub const RESERVED_COLUMNS: [&'static str; 34] = [
        "step",
        "prompt_id",
        "group",
        "sample",
        "sample_id",
        "seed",
        "policy",
        "prompt",
        "completion",
        "prompt_ids",
        "completion_ids",
        "logprobs",
        "processed_logprobs",
        "top_logprobs",
        "mask",
        "reward",
        "rewards",
        "advantage",
        "trained",
        "finish_reason",
        "truncated",
        "max_new",
        "ignore_eos",
        "stop",
        "stop_token_ids",
        "regex",
        "json_schema",
        "kv",
        "dtype",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
    ];

    /// What the completion matches. `None`: it had no constraint.
    pub fn language(&self) -> Option<Language> {
        let regex = self.regex.as_ref().map(|regex| Language::Regex(regex.to_string()));
        regex.or_else(|| {
            self.json_schema.as_ref().map(|schema| Language::JsonSchema(schema.clone().into_owned()))
        })
    }

    /// The request that regenerates the turn whose tokens start at `start`; the tokens before it are part of its
    /// prompt. A line without `max_new` regenerates as many tokens as it has. The stop texts of the line end it in
    /// addition; see [`TextStops`](crate::decode::TextStops). The caller adds the constraint of
    /// [`RolloutLine::language`].
    pub fn request(&self, start: usize, eos: &[u32]) -> Request {
        Request {
            id: self.sample_id,
            seed: self.seed,
            prompt: [&self.prompt_ids[..], &self.completion_ids[..start]].concat(),
            options: SampleOptions {
                repetition_penalty: self.repetition_penalty,
                ..SampleOptions::filtered(self.temperature, self.top_k, self.top_p, self.min_p)
            },
            max_new: self.max_new.unwrap_or(self.completion_ids.len()).saturating_sub(start),
            stop: StopConditions {
                eos: if self.ignore_eos { Vec::new() } else { eos.to_vec() },
                tokens: self.stop_token_ids.to_vec(),
            },
            constraint: None,
            top_logprobs: self.top_logprobs.iter().flatten().map(Vec::len).max().unwrap_or(0),
        }
    }

    /// The sampled tokens of each turn, as ranges of `completion_ids`.
    ///
    /// # Errors
    /// A mask that is not one 0 or 1 per token, or without a sampled token at its start or end: what was expected.
    pub fn turns(&self) -> Result<Vec<Range<usize>>, String> {
        let Some(mask) = &self.mask else {
            return Ok(vec![Range { start: 0, end: self.completion_ids.len() }]);
        };
        let want = self.completion_ids.len();
        if mask.len() != want {
            return Err(format!("mask: expected {want} values, one for each token, found {}", mask.len()));
        }
        if let Some(found) = mask.iter().find(|value| **value > 1) {
            return Err(format!("mask: expected 0 or 1, found {found}"));
        }
        if [mask.first(), mask.last()] != [Some(&1); 2] {
            return Err("mask: expected a sampled token (1) at the start and at the end".to_string());
        }
        Ok(turns(&mask.iter().map(|&value| value == 1).collect::<Vec<_>>()))
    }

    /// The line as JSON, with a line break.
    pub fn to_json(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("a struct of numbers and strings is JSON");
        bytes.push(b'\n');
        bytes
    }
}

/// The most probable tokens of a completion, for [`RolloutLine::top_logprobs`].
pub fn top_pairs(completion: &Completion) -> Option<Vec<TopTokens>> {
    let pairs = |top: &Vec<TokenLogprob>| top.iter().map(|top| (top.token, top.logprob)).collect();
    let all = &completion.top_logprobs;
    (!all.is_empty()).then(|| all.iter().map(pairs).collect())
}

/// Whether a line has no stop tokens.
fn no_stop_tokens(ids: &[u32]) -> bool {
    ids.is_empty()
}

/// Whether a line has no stop texts.
fn no_stop(stop: &[String]) -> bool {
    stop.is_empty()
}

/// The ranges of sampled tokens: the turns.
pub fn turns(mask: &[bool]) -> Vec<Range<usize>> {
    let mut turns = Vec::new();
    let mut at = 0;
    for run in mask.chunk_by(|a, b| a == b) {
        if run[0] {
            turns.push(at..at + run.len());
        }
        at += run.len();
    }
    turns
}

/// The digest of the policy of `model`: `sha256:` of the compute dtype and of the names, shapes and f32 master weights
/// of all parameters, in walk order.
///
/// # Errors
/// The model keeps no master weights; a device cannot be read.
pub fn policy_digest(model: &Model) -> Result<String, Error> {
    policy_digest_of(model, model.compute())
}

/// [`policy_digest`] of the same weights with another compute dtype.
///
/// # Errors
/// Those of [`policy_digest`].
pub fn policy_digest_of(model: &Model, compute: Dtype) -> Result<String, Error> {
    let mut hash = Sha256::new();
    hash.update(compute.to_string());
    for param in model.params.iter() {
        let tensor = param.value()?.to_host()?;
        hash.update(param.name());
        tensor.shape().iter().for_each(|n| hash.update((*n as u64).to_le_bytes()));
        let mut bytes = [0u8; 4 << 12];
        for part in tensor.data::<f32>()?.chunks(1 << 12) {
            let bytes = &mut bytes[..4 * part.len()];
            for (bytes, x) in bytes.as_chunks_mut().0.iter_mut().zip(part) {
                *bytes = x.to_le_bytes();
            }
            hash.update(bytes);
        }
    }
    let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{hex}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_reserved() {
        let values = |name: &str| match name {
            "prompt_ids" | "completion_ids" | "logprobs" | "processed_logprobs" | "top_logprobs" | "mask" => {
                Value::Array(Vec::new())
            }
            "stop_token_ids" => Value::Array(vec![Value::from(1)]),
            "stop" => Value::Array(vec![Value::from("x")]),
            "prompt" | "completion" | "policy" | "regex" | "kv" | "dtype" => Value::from("x"),
            "finish_reason" => Value::from("eos"),
            "truncated" | "trained" | "ignore_eos" => Value::from(true),
            "rewards" => Value::Object(Map::new()),
            _ => Value::from(1),
        };
        let names = RolloutLine::RESERVED_COLUMNS;
        let all: Map<String, Value> = names.iter().map(|name| (name.to_string(), values(name))).collect();
        let line: RolloutLine<'_> = serde_json::from_value(Value::Object(all)).unwrap();
        assert!(line.columns.is_empty(), "{:?}", line.columns);
        let written: Map<String, Value> = serde_json::from_slice(&line.to_json()).unwrap();
        assert_eq!(written.len(), names.len(), "{:?}", written.keys());
    }
}
