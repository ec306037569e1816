//! The result of verifying one setting.
use std::fmt;

use super::Setting;
use crate::decode::Completion;
use crate::tensor::faults::{self, Fault};

/// The result of verifying one setting.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The setting.
    pub setting: Setting,
    /// Number of compared rows of logits.
    pub rows: u64,
    /// Expected number of rows of logits, without those that preempted sequences computed again.
    pub rows_expected: u64,
    /// Number of compared rows that preempted sequences computed again.
    pub rows_recomputed: u64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Number of drafted tokens that were verified.
    pub drafted: u64,
    /// Number of forward passes that started before the host had the tokens of the pass before.
    pub passes_ahead: u64,
    /// Number of compared values: logits, and two log-probabilities per token.
    pub values: u64,
    /// Number of values that differ in any bit.
    pub differing: u64,
    /// Number of new tokens that differ from the naive rollout.
    pub tokens_differing: u64,
    /// The first difference. `None`: there is none.
    pub first: Option<Difference>,
}

/// A difference between a rollout and the training forward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Id of the sequence.
    pub id: u64,
    /// The position of the row.
    pub position: usize,
    /// The value that differs: `logit 17`, `token`, `log-probability`.
    pub what: String,
    /// The expected bits in hexadecimal; the id of a token; `none` if there is none.
    pub want: String,
    /// What was found, in the same form.
    pub got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { id, position, what, want, got } = self;
        write!(f, "sequence {id}, position {position}, {what}: expected {want}, found {got}")
    }
}

impl Verdict {
    /// A verdict before anything was compared.
    pub(super) fn new(setting: Setting, rows_expected: u64) -> Verdict {
        Verdict {
            setting,
            rows: 0,
            rows_expected,
            rows_recomputed: 0,
            preemptions: 0,
            drafted: 0,
            passes_ahead: 0,
            values: 0,
            differing: 0,
            tokens_differing: 0,
            first: None,
        }
    }

    /// Whether all expected rows were compared and nothing differs.
    pub fn holds(&self) -> bool {
        let rows = self.rows_expected + self.rows_recomputed;
        let all = self.rows == rows || faults::on(Fault::VerifyAcceptsMissingRows);
        self.differing == 0 && self.tokens_differing == 0 && all
    }

    /// Records the first difference.
    fn record(&mut self, id: u64, position: usize, what: String, [want, got]: [String; 2]) {
        self.first.get_or_insert(Difference { id, position, what, want, got });
    }

    /// Compares the values of one row of sequence `id` bit for bit. `name` names the value at an index.
    pub(super) fn compare(
        &mut self,
        id: u64,
        position: usize,
        got: &[f32],
        want: &[f32],
        name: impl Fn(usize) -> String,
    ) {
        self.values += got.len().max(want.len()) as u64;
        let missing = got.len().abs_diff(want.len()) as u64;
        let pairs = got.iter().zip(want).map(|(got, want)| [want.to_bits(), got.to_bits()]);
        let mut differ = pairs.enumerate().filter(|(_, [want, got])| want != got);
        let first = differ.next();
        self.differing += missing + u64::from(first.is_some()) + differ.count() as u64;
        match first {
            Some((at, bits)) => self.record(id, position, name(at), bits.map(|bits| format!("{bits:08x}"))),
            None if missing > 0 => {
                let lengths = [want.len(), got.len()].map(|n| n.to_string());
                self.record(id, position, "number of values".into(), lengths);
            }
            None => (),
        }
    }

    /// Compares tokens and log-probabilities.
    pub(super) fn compare_completion(&mut self, got: &Completion, want: &Completion) {
        let (id, start) = (got.id, want.prompt_len);
        for at in 0..got.tokens.len().max(want.tokens.len()) {
            let pair = [want, got].map(|c| c.tokens.get(at).copied());
            if pair[0] != pair[1] {
                self.tokens_differing += 1;
                let found = pair.map(|id| id.map_or_else(|| "none".to_string(), |id| id.to_string()));
                self.record(id, start + at, "token".into(), found);
            }
        }
        for (what, got, want) in [
            ("log-probability", &got.logprobs, &want.logprobs),
            ("processed log-probability", &got.processed_logprobs, &want.processed_logprobs),
        ] {
            for at in 0..got.len().max(want.len()) {
                let one = |all: &'_ [f32]| all.get(at..at + 1).unwrap_or(&[]).to_vec();
                self.compare(id, start + at, &one(got), &one(want), |_| what.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{FinishReason, KvKind};
    use crate::tensor::Device;
    use crate::verify::{RequestedSetting, settings};

    fn completion(tokens: &[u32]) -> Completion {
        let values: Vec<f32> = tokens.iter().map(|&token| token as f32).collect();
        Completion {
            index: 0,
            id: 7,
            prompt_len: 4,
            tokens: tokens.to_vec(),
            logprobs: values.clone(),
            processed_logprobs: values,
            top_logprobs: Vec::new(),
            finish_reason: FinishReason::Length,
        }
    }

    #[test]
    fn the_first_difference_of_a_completion_is_at_its_position_in_the_sequence() {
        let requested = RequestedSetting { threads: 1, kv: KvKind::default(), chunk: None };
        let want = completion(&[1, 2, 3]);
        for (got, differing, position, ids) in [
            (completion(&[1, 19, 8]), 2, 5, ["2", "19"]),
            (completion(&[1, 2]), 1, 6, ["3", "none"]),
            (completion(&[1, 2, 3, 4]), 1, 7, ["none", "4"]),
        ] {
            let setting = settings(1, &requested, &Device::cpu()).remove(0);
            let mut verdict = Verdict::new(setting, 0);
            verdict.compare_completion(&got, &want);
            let [want, got] = ids.map(String::from);
            let first = Difference { id: 7, position, what: "token".into(), want, got };
            assert_eq!((verdict.tokens_differing, verdict.first), (differing, Some(first)));
        }
    }
}
