//! Reversing words: `reverse abcd=dcba`.
use super::task::PromptSet;
use super::words::WordTask;
use crate::data::Permutation;

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
        Reversing { order: Permutation::new(Reversing::SIZE, [0x72, 0x65, 0x76, 0x65, 0x72, 0x73]) }
    }
}

impl WordTask for Reversing {
    const NAME: &'static str = "reversing";
    const VERB: &'static str = "reverse";
    const ALPHABET: &'static str = "abcdefghij";
    const LENGTH: usize = 4;
    const ANSWER_ALPHABET: &'static str = "abcdefghij";

    fn belongs(&self, index: u64, part: PromptSet) -> bool {
        let reverse = Reversing::index(&Reversing::answer_of(&Reversing::word(index)));
        let key = reverse.map_or(index, |reverse| reverse.min(index));
        (self.order.at(key) < Reversing::SIZE / 10) == (part == PromptSet::HeldOut)
    }

    fn answer_of(word: &str) -> String {
        word.chars().rev().collect()
    }

    /// The word itself.
    fn mistake_of(word: &str) -> String {
        word.to_string()
    }
}
