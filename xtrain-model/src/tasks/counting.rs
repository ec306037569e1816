//! Counting letters: `count b in abcabbca=3`.
use xtrain_tensor::rng::PhiloxRng;

use super::task::{PromptSet, Task};
use super::words;
use crate::data::Permutation;

const LETTERS: &str = "abc";
const LENGTH: usize = 8;
/// Number of prompts: a letter and eight letters of the word. A twentieth of them is held out.
const SIZE: u64 = 19_683;
const HELD_OUT: u64 = SIZE / 20;

/// Counting how often a letter occurs in a word of eight letters from `a` to `c`: `count b in abcabbca=3`. There are
/// 19,683 prompts. The answer has one digit, from 0 to 8; the most frequent answers, 2 and 3, have a share of 27 % each.
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
        let text = words::word(index, LETTERS, LENGTH + 1);
        let (letter, word) = text.split_at(1);
        format!("count {letter} in {word}=")
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
        let (letter, word) = prompt.strip_prefix("count ")?.strip_suffix('=')?.split_once(" in ")?;
        words::index(letter, LETTERS, 1)?;
        words::index(word, LETTERS, LENGTH)?;
        Some(word.matches(letter).count().to_string())
    }

    fn substitutes(&self, c: char) -> &'static str {
        if c.is_ascii_digit() { "012345678" } else { "" }
    }
}
