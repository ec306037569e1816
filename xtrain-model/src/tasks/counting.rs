//! Counting letters: `count ababcccaa=423`.
use xtrain_tensor::rng::PhiloxRng;

use super::task::{PromptSet, Task};
use super::words;
use crate::data::Permutation;

const LETTERS: &str = "abc";
const LENGTH: usize = 9;
/// Number of prompts. A twentieth of them is held out.
const SIZE: u64 = 19_683;
const HELD_OUT: u64 = SIZE / 20;

/// Counting how often the letters `a`, `b` and `c` occur in a word of nine of them: `count ababcccaa=423`. The answer
/// has one digit per letter. There are 19,683 prompts and 55 answers; the most frequent one, 333, has a share of 8.5
/// %.
///
/// A twentieth of the prompts is held out: those whose number under a fixed permutation is below a twentieth of their
/// count.
#[derive(Debug, Clone)]
pub struct Counting {
    order: Permutation,
}

impl Default for Counting {
    fn default() -> Counting {
        Counting { order: Permutation::new(SIZE, [0x63, 0x6f, 0x75, 0x6e, 0x74, 0x73]) }
    }
}

impl Counting {
    fn belongs(&self, index: u64, part: PromptSet) -> bool {
        (self.order.at(index) < HELD_OUT) == (part == PromptSet::HeldOut)
    }

    fn prompt(index: u64) -> String {
        format!("count {}=", words::word(index, LETTERS, LENGTH))
    }
}

impl Task for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn prompts(&self, part: PromptSet) -> Vec<String> {
        (0..SIZE).filter(|&index| self.belongs(index, part)).map(Counting::prompt).collect()
    }

    fn draw_prompt(&self, rng: &mut PhiloxRng) -> Option<String> {
        Some(Counting::prompt(words::draw(rng, SIZE, |index| self.belongs(index, PromptSet::Train))))
    }

    fn answer(&self, prompt: &str) -> Option<String> {
        let word = prompt.strip_prefix("count ")?.strip_suffix('=')?;
        words::index(word, LETTERS, LENGTH)?;
        Some(LETTERS.chars().map(|letter| word.matches(letter).count().to_string()).collect())
    }
}
