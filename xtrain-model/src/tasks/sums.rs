//! Sums of two numbers from 0 to 99: `37+45=082`.
use super::{Part, Task};
use crate::data::Permutation;

/// Operands are below it.
const OPERANDS: u32 = 100;
/// Unordered pairs of operands, and how many of them are held out: a tenth.
const PAIRS: u64 = 5050;
const HELD_OUT: u64 = PAIRS / 10;

/// Sums of two operands from 0 to 99, written with a fixed width: `07+05=012`. The prompt ends with `=`, the
/// answer has three digits, so every digit has its place and a small model soon sees it.
///
/// A tenth of the pairs is held out, (a, b) and (b, a) together: a pair is its number under a fixed permutation
/// of all unordered pairs, below a tenth of them. Neither the answer nor a seed comes into it.
#[derive(Debug, Clone)]
pub struct Sums {
    order: Permutation,
}

impl Default for Sums {
    fn default() -> Sums {
        Sums { order: Permutation::new(PAIRS, [0x73, 0x75, 0x6d, 0x73, 0x21, 0x0a]) }
    }
}

impl Sums {
    /// Bytes of an answer.
    pub const ANSWER_LEN: usize = 3;

    /// Whether `a + b` belongs to `part`; operands are below 100.
    pub fn belongs(&self, (a, b): (u32, u32), part: Part) -> bool {
        let (low, high) = (u64::from(a.min(b)), u64::from(a.max(b)));
        let held_out = self.order.at(high * (high + 1) / 2 + low) < HELD_OUT;
        held_out == (part == Part::HeldOut)
    }

    /// The ordered pairs of `part`, rising.
    pub fn pairs(&self, part: Part) -> Vec<(u32, u32)> {
        let all = (0..OPERANDS).flat_map(|a| (0..OPERANDS).map(move |b| (a, b)));
        all.filter(|&pair| self.belongs(pair, part)).collect()
    }

    /// The question `a + b`.
    pub fn prompt((a, b): (u32, u32)) -> String {
        format!("{a:02}+{b:02}=")
    }

    /// The question with its answer: a document of the corpus.
    pub fn document((a, b): (u32, u32)) -> String {
        format!("{}{:03}", Sums::prompt((a, b)), a + b)
    }
}

impl Task for Sums {
    fn name(&self) -> &str {
        "sums"
    }

    fn prompts(&self, part: Part) -> Vec<String> {
        self.pairs(part).into_iter().map(Sums::prompt).collect()
    }

    fn answer(&self, prompt: &str) -> Option<String> {
        let (a, b) = prompt.strip_suffix('=')?.split_once('+')?;
        let operand = |text: &str| {
            let two_digits = text.len() == 2 && text.bytes().all(|c| c.is_ascii_digit());
            two_digits.then(|| text.parse::<u32>().ok())?
        };
        Some(format!("{:03}", operand(a)? + operand(b)?))
    }
}
