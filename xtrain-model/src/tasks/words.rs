//! Tasks on the words of a fixed length over a small alphabet.
use std::fmt::Debug;

use rand::RngExt as _;
use xtrain_tensor::rng::PhiloxRng;

use super::task::{PromptSet, Task};

/// A task on all words of [`LENGTH`](WordTask::LENGTH) letters. The prompt of a word is `VERB word=`.
pub(super) trait WordTask: Debug + Send + Sync {
    /// The name of the task in tables.
    const NAME: &'static str;
    /// The first word of a prompt.
    const VERB: &'static str;
    /// The letters of a word, in ASCII.
    const ALPHABET: &'static str;
    /// Number of letters of a word.
    const LENGTH: usize;
    /// The letters of an answer, which may replace each other in a wrong one.
    const ANSWER_ALPHABET: &'static str;
    /// Number of words.
    const SIZE: u64 = (Self::ALPHABET.len() as u64).pow(Self::LENGTH as u32);

    /// Whether word `index` belongs to `part`.
    fn belongs(&self, index: u64, part: PromptSet) -> bool;

    /// The answer to the prompt of `word`.
    fn answer_of(word: &str) -> String;

    /// A typical mistake in the answer to the prompt of `word`. It may be correct for some words.
    fn mistake_of(word: &str) -> String;

    /// Word `index`: the digits of `index` in base `ALPHABET.len()`, most significant first.
    fn word(mut index: u64) -> String {
        let (letters, base) = (Self::ALPHABET.as_bytes(), Self::ALPHABET.len() as u64);
        let mut text = vec![b' '; Self::LENGTH];
        for c in text.iter_mut().rev() {
            *c = letters[(index % base) as usize];
            index /= base;
        }
        text.into_iter().map(char::from).collect()
    }

    /// The number of `word`, the inverse of [`word`](WordTask::word). `None`: another length, or a character outside
    /// the alphabet.
    fn index(word: &str) -> Option<u64> {
        if word.len() != Self::LENGTH {
            return None;
        }
        let base = Self::ALPHABET.len() as u64;
        word.chars().try_fold(0, |index, c| Some(index * base + Self::ALPHABET.find(c)? as u64))
    }

    /// The prompt of word `index`.
    fn prompt(index: u64) -> String {
        format!("{} {}=", Self::VERB, Self::word(index))
    }
}

impl<T: WordTask> Task for T {
    fn name(&self) -> &str {
        T::NAME
    }

    fn prompts(&self, part: PromptSet) -> Vec<String> {
        (0..T::SIZE).filter(|&index| self.belongs(index, part)).map(T::prompt).collect()
    }

    fn draw_prompt(&self, rng: &mut PhiloxRng) -> Option<String> {
        Some(T::prompt(draw(rng, T::SIZE, |index| self.belongs(index, PromptSet::Train))))
    }

    fn answer(&self, prompt: &str) -> Option<String> {
        word_of::<T>(prompt).map(T::answer_of)
    }

    fn typical_mistake(&self, prompt: &str) -> Option<String> {
        word_of::<T>(prompt).map(T::mistake_of)
    }

    fn substitutes(&self, c: char) -> &'static str {
        if T::ANSWER_ALPHABET.contains(c) { T::ANSWER_ALPHABET } else { "" }
    }
}

/// The word of a prompt. `None`: the task does not contain the prompt.
fn word_of<T: WordTask>(prompt: &str) -> Option<&str> {
    let word = prompt.strip_prefix(T::VERB)?.strip_prefix(' ')?.strip_suffix('=')?;
    T::index(word).map(|_| word)
}

/// A uniformly distributed number below `size` for which `accepts` holds.
pub(super) fn draw(rng: &mut PhiloxRng, size: u64, accepts: impl Fn(u64) -> bool) -> u64 {
    loop {
        let index = rng.random_range(0..size);
        if accepts(index) {
            return index;
        }
    }
}
