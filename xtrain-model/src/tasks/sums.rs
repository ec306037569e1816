//! Sums of two numbers from 0 to 99: `37+45=082`.
use xtrain_tensor::rng::PhiloxRng;

use super::task::{PromptSet, Task};
use super::words;
use crate::data::Permutation;

/// Exclusive upper bound of operands.
const OPERANDS: u32 = 100;
/// Number of unordered pairs of operands, and the tenth of them that is held out.
const PAIRS: u64 = 5050;
const HELD_OUT: u64 = PAIRS / 10;

/// Sums of two operands from 0 to 99 with a fixed width: `07+05=012`. The prompt ends with `=` and the answer has
/// three digits. Every digit has a fixed position, so that a small model learns the task quickly.
///
/// A tenth of the pairs is held out, (a, b) and (b, a) together: the pairs whose number under a fixed permutation of
/// all unordered pairs is below a tenth of their count. The choice depends neither on the answer nor on a seed.
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
    /// Length of an answer in bytes.
    pub const ANSWER_LEN: usize = 3;

    /// Whether `a + b` belongs to `part`. Operands are below 100.
    pub fn belongs(&self, a: u32, b: u32, part: PromptSet) -> bool {
        let (low, high) = (u64::from(a.min(b)), u64::from(a.max(b)));
        let held_out = self.order.at(high * (high + 1) / 2 + low) < HELD_OUT;
        held_out == (part == PromptSet::HeldOut)
    }

    /// The ordered pairs of `part`, in increasing order.
    pub fn pairs(&self, part: PromptSet) -> Vec<(u32, u32)> {
        let all = (0..OPERANDS).flat_map(|a| (0..OPERANDS).map(move |b| (a, b)));
        all.filter(|&(a, b)| self.belongs(a, b, part)).collect()
    }

    /// The prompt of `a + b`.
    pub fn prompt(a: u32, b: u32) -> String {
        format!("{a:02}+{b:02}=")
    }

    /// The prompt with its answer: a document of the corpus.
    pub fn document(a: u32, b: u32) -> String {
        format!("{}{:03}", Sums::prompt(a, b), a + b)
    }
}

impl Task for Sums {
    fn name(&self) -> &'static str {
        "sums"
    }

    fn prompts(&self, part: PromptSet) -> Vec<String> {
        self.pairs(part).into_iter().map(|(a, b)| Sums::prompt(a, b)).collect()
    }

    fn draw_prompt(&self, rng: &mut PhiloxRng) -> Option<String> {
        let operands = |index: u64| ((index / 100) as u32, (index % 100) as u32);
        let index = words::draw(rng, u64::from(OPERANDS * OPERANDS), |index| {
            let (a, b) = operands(index);
            self.belongs(a, b, PromptSet::Train)
        });
        let (a, b) = operands(index);
        Some(Sums::prompt(a, b))
    }

    fn answer(&self, prompt: &str) -> Option<String> {
        let (a, b) = operands(prompt)?;
        Some(format!("{:03}", a + b))
    }

    /// The sum without the carry of the ones.
    fn typical_mistake(&self, prompt: &str) -> Option<String> {
        let (a, b) = operands(prompt)?;
        Some(format!("{:03}", (a / 10 + b / 10) * 10 + (a % 10 + b % 10) % 10))
    }
}

/// The operands of a prompt. `None`: the task does not contain the prompt.
fn operands(prompt: &str) -> Option<(u32, u32)> {
    let (a, b) = prompt.strip_suffix('=')?.split_once('+')?;
    let operand = |text: &str| {
        let two_digits = text.len() == 2 && text.bytes().all(|c| c.is_ascii_digit());
        two_digits.then(|| text.parse::<u32>().ok())?
    };
    Some((operand(a)?, operand(b)?))
}
