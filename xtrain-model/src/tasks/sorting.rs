//! Sorting digits: `sort 31425=12345`.
use xtrain_tensor::rng::PhiloxRng;

use super::task::{PromptSet, Task};
use super::words;
use crate::data::Permutation;

const DIGITS: &str = "0123456789";
const LENGTH: usize = 5;
/// Number of prompts.
const SIZE: u64 = 100_000;
/// A tenth of the answers is held out, and of their prompts a tenth is used.
const TENTH: u64 = SIZE / 10;

/// Sorting five digits in increasing order: `sort 31425=12345`. Digits may repeat. There are 100,000 prompts.
///
/// About a tenth of the answers is held out: those whose number under a fixed permutation is below a tenth of the
/// number of prompts. No prompt with a held-out answer is a training prompt. The held-out set contains about a tenth
/// of these prompts.
#[derive(Debug, Clone)]
pub struct Sorting {
    answers: Permutation,
    prompts: Permutation,
}

impl Default for Sorting {
    fn default() -> Sorting {
        Sorting {
            answers: Permutation::new(SIZE, [0x73, 0x6f, 0x72, 0x74, 0x61, 0x6e]),
            prompts: Permutation::new(SIZE, [0x73, 0x6f, 0x72, 0x74, 0x70, 0x72]),
        }
    }
}

fn sorted(digits: &str) -> String {
    let mut digits = digits.as_bytes().to_vec();
    digits.sort_unstable();
    digits.into_iter().map(char::from).collect()
}

impl Sorting {
    fn belongs(&self, index: u64, part: PromptSet) -> bool {
        let answer = words::index(&sorted(&words::word(index, DIGITS, LENGTH)), DIGITS, LENGTH);
        let held_out = answer.is_some_and(|answer| self.answers.at(answer) < TENTH);
        match part {
            PromptSet::Train => !held_out,
            PromptSet::HeldOut => held_out && self.prompts.at(index) < TENTH,
        }
    }

    fn prompt(index: u64) -> String {
        format!("sort {}=", words::word(index, DIGITS, LENGTH))
    }
}

impl Task for Sorting {
    fn name(&self) -> &'static str {
        "sorting"
    }

    fn prompts(&self, part: PromptSet) -> Vec<String> {
        (0..SIZE).filter(|&index| self.belongs(index, part)).map(Sorting::prompt).collect()
    }

    fn draw_prompt(&self, rng: &mut PhiloxRng) -> Option<String> {
        Some(Sorting::prompt(words::draw(rng, SIZE, |index| self.belongs(index, PromptSet::Train))))
    }

    fn answer(&self, prompt: &str) -> Option<String> {
        let digits = prompt.strip_prefix("sort ")?.strip_suffix('=')?;
        words::index(digits, DIGITS, LENGTH)?;
        Some(sorted(digits))
    }
}
