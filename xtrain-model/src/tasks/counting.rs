//! Counting letters: `count ababcccaa=423`.
use super::task::PromptSet;
use super::words::WordTask;
use crate::data::Permutation;

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
        Counting { order: Permutation::new(Counting::SIZE, [0x63, 0x6f, 0x75, 0x6e, 0x74, 0x73]) }
    }
}

impl WordTask for Counting {
    const NAME: &'static str = "counting";
    const VERB: &'static str = "count";
    const ALPHABET: &'static str = "abc";
    const LENGTH: usize = 9;
    const ANSWER_ALPHABET: &'static str = "0123456789";

    fn belongs(&self, index: u64, part: PromptSet) -> bool {
        (self.order.at(index) < Counting::SIZE / 20) == (part == PromptSet::HeldOut)
    }

    fn answer_of(word: &str) -> String {
        Counting::ALPHABET.chars().map(|letter| word.matches(letter).count().to_string()).collect()
    }

    /// The counts without the last letter.
    fn mistake_of(word: &str) -> String {
        Counting::answer_of(&word[..Counting::LENGTH - 1])
    }
}
