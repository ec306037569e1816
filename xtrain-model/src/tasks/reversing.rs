//! Reversing words: `reverse abcd=dcba`.
use xtrain_tensor::rng::PhiloxRng;

use super::task::{PromptSet, Task};
use super::words;
use crate::data::Permutation;

const LETTERS: &str = "abcdefghij";
const LENGTH: usize = 4;
/// Number of prompts, and the number of keys of which the first are held out.
const SIZE: u64 = 10_000;
const HELD_OUT: u64 = SIZE / 10;

/// Reversing a word of four letters from `a` to `j`: `reverse abcd=dcba`. There are 10,000 prompts.
///
/// About a tenth of the words is held out, each together with its reverse: the words whose number under a fixed
/// permutation is below a tenth of their count. The number of a word is the smaller one of its own and that of its
/// reverse.
#[derive(Debug, Clone)]
pub struct Reversing {
    order: Permutation,
}

impl Default for Reversing {
    fn default() -> Reversing {
        Reversing { order: Permutation::new(SIZE, [0x72, 0x65, 0x76, 0x65, 0x72, 0x73]) }
    }
}

fn reversed(word: &str) -> String {
    word.chars().rev().collect()
}

impl Reversing {
    fn belongs(&self, index: u64, part: PromptSet) -> bool {
        let reverse = words::index(&reversed(&words::word(index, LETTERS, LENGTH)), LETTERS, LENGTH);
        let key = reverse.map_or(index, |reverse| reverse.min(index));
        (self.order.at(key) < HELD_OUT) == (part == PromptSet::HeldOut)
    }

    fn prompt(index: u64) -> String {
        format!("reverse {}=", words::word(index, LETTERS, LENGTH))
    }
}

impl Task for Reversing {
    fn name(&self) -> &'static str {
        "reversing"
    }

    fn prompts(&self, part: PromptSet) -> Vec<String> {
        (0..SIZE).filter(|&index| self.belongs(index, part)).map(Reversing::prompt).collect()
    }

    fn draw_prompt(&self, rng: &mut PhiloxRng) -> Option<String> {
        Some(Reversing::prompt(words::draw(rng, SIZE, |index| self.belongs(index, PromptSet::Train))))
    }

    fn answer(&self, prompt: &str) -> Option<String> {
        let word = prompt.strip_prefix("reverse ")?.strip_suffix('=')?;
        words::index(word, LETTERS, LENGTH)?;
        Some(reversed(word))
    }

    fn substitutes(&self, c: char) -> &'static str {
        if LETTERS.contains(c) { LETTERS } else { "" }
    }
}
