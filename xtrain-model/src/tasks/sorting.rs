//! Sorting digits: `sort 31425=12345`.
use super::task::PromptSet;
use super::words::WordTask;
use crate::data::Permutation;

/// A tenth of the answers is held out, and of their prompts a tenth is used.
const TENTH: u64 = Sorting::SIZE / 10;

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
            answers: Permutation::new(Sorting::SIZE, [0x73, 0x6f, 0x72, 0x74, 0x61, 0x6e]),
            prompts: Permutation::new(Sorting::SIZE, [0x73, 0x6f, 0x72, 0x74, 0x70, 0x72]),
        }
    }
}

impl WordTask for Sorting {
    const NAME: &'static str = "sorting";
    const VERB: &'static str = "sort";
    const ALPHABET: &'static str = "0123456789";
    const LENGTH: usize = 5;
    const ANSWER_ALPHABET: &'static str = "0123456789";

    fn belongs(&self, index: u64, part: PromptSet) -> bool {
        let answer = Sorting::index(&Sorting::answer_of(&Sorting::word(index)));
        let held_out = answer.is_some_and(|answer| self.answers.at(answer) < TENTH);
        match part {
            PromptSet::Train => !held_out,
            PromptSet::HeldOut => held_out && self.prompts.at(index) < TENTH,
        }
    }

    fn answer_of(word: &str) -> String {
        let mut digits = word.as_bytes().to_vec();
        digits.sort_unstable();
        digits.into_iter().map(char::from).collect()
    }

    /// The digits in their old order.
    fn mistake_of(word: &str) -> String {
        word.to_string()
    }
}
