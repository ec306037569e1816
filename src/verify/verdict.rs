//! What was compared, and the first difference.
use std::fmt;

use super::Setting;
use crate::decode::Completion;

/// What a setting was found to be.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The setting.
    pub setting: Setting,
    /// Rows of logits that were compared.
    pub rows: u64,
    /// Rows of logits that there are to compare in this setting.
    pub rows_due: u64,
    /// Values that were compared: logits, and two log-probabilities a token.
    pub values: u64,
    /// Values whose bits differ.
    pub differing: u64,
    /// New tokens that differ from the naive rollout's.
    pub tokens_differing: u64,
    /// The first difference.
    pub first: Option<Difference>,
}

/// Where a rollout left the training forward.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The sequence's own number.
    pub id: u64,
    /// The position of the row.
    pub position: usize,
    /// What differs: `logit 17`, `token`, `log-probability`.
    pub what: String,
    /// The bits of the training forward (of a token its id), in hexadecimal.
    pub want: String,
    /// The bits that were found.
    pub got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { id, position, what, want, got } = self;
        write!(f, "sequence {id}, position {position}, {what}: want {want}, got {got}")
    }
}

impl Verdict {
    /// Whether every row was compared, and every value and token is the same.
    pub fn holds(&self) -> bool {
        self.differing == 0 && self.tokens_differing == 0 && self.rows == self.rows_due
    }

    fn note(&mut self, (id, position): (u64, usize), what: String, [want, got]: [u32; 2]) {
        let hex = |bits: u32| format!("{bits:08x}");
        let difference = || Difference { id, position, what, want: hex(want), got: hex(got) };
        self.first.get_or_insert_with(difference);
    }

    /// Values of one row, by bits.
    pub(super) fn compare(
        &mut self,
        place: (u64, usize),
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
            Some((at, bits)) => self.note(place, name(at), bits),
            None if missing > 0 => self.note(place, "values".into(), [want.len() as u32, got.len() as u32]),
            None => (),
        }
    }

    /// Tokens and log-probabilities.
    pub(super) fn compare_completion(&mut self, got: &Completion, want: &Completion) {
        let place = |at: usize| (got.id, want.prompt_len + at);
        for at in 0..got.tokens.len().max(want.tokens.len()) {
            let pair = [want, got].map(|c| c.tokens.get(at).copied());
            if pair[0] != pair[1] {
                self.tokens_differing += 1;
                self.note(place(at), "token".into(), pair.map(|id| id.unwrap_or(u32::MAX)));
            }
        }
        for (what, got, want) in [
            ("log-probability", &got.logprobs, &want.logprobs),
            ("processed log-probability", &got.processed_logprobs, &want.processed_logprobs),
        ] {
            for at in 0..got.len().max(want.len()) {
                let one = |all: &'_ [f32]| all.get(at..at + 1).unwrap_or(&[]).to_vec();
                self.compare(place(at), &one(got), &one(want), |_| what.to_string());
            }
        }
    }
}
