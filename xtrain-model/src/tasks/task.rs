//! Tasks: prompts whose completions can be checked.
use std::fmt::Debug;

use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::rng::{PhiloxRng, Purpose};

/// Separates the random number addresses of training prompts from those of the prompts of `verify`.
const TRAINING_PROMPTS: u64 = 1 << 63;

/// A part of a task's prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptSet {
    /// Prompts that may occur in training text.
    Train,
    /// Prompts that never occur in training text, to measure accuracy.
    HeldOut,
}

/// Prompts with verifiable completions.
pub trait Task: Debug + Send + Sync {
    /// The name of the task in tables.
    fn name(&self) -> &str;

    /// The prompts of `part`, in a fixed order. They do not depend on a seed.
    fn prompts(&self, part: PromptSet) -> Vec<String>;

    /// A random training prompt, drawn with numbers of `rng`. `None`: the task has no training prompts.
    fn draw_prompt(&self, rng: &mut PhiloxRng) -> Option<String> {
        let _ = rng;
        None
    }

    /// Training prompt `n < 2^63` of `seed`, a pure function of (seed, n): [`draw_prompt`](Task::draw_prompt) with
    /// the generator at the address (seed, 2^63 + n, 0) of purpose [`Purpose::Prompts`]. Prompts may repeat. The
    /// distributions of `rand` may change between its versions, and the prompts with them.
    ///
    /// `None`: the task has no training prompts.
    fn training_prompt(&self, seed: u64, n: u64) -> Option<String> {
        self.draw_prompt(&mut PhiloxRng::new(seed, TRAINING_PROMPTS | n, Purpose::Prompts))
    }

    /// A correct completion of `prompt`. `None`: the task does not contain the prompt.
    fn answer(&self, prompt: &str) -> Option<String>;

    /// Whether `completion` is correct. By default: whether it matches the answer, see [`exact_match`].
    fn check(&self, prompt: &str, completion: &str) -> bool {
        self.answer(prompt).is_some_and(|answer| exact_match(&answer, completion))
    }

    /// A typical wrong answer, in the format of an answer. It may be correct for some prompts.
    /// Used to generate wrong answers. `None`: none is known.
    fn typical_mistake(&self, prompt: &str) -> Option<String> {
        let _ = prompt;
        None
    }

    /// The characters that may replace `c` in an answer without changing its format; empty: none. Used to generate
    /// wrong answers. By default, a digit may be replaced by any digit.
    fn substitutes(&self, c: char) -> &'static str {
        if c.is_ascii_digit() { "0123456789" } else { "" }
    }
}

/// Whether `completion` equals `answer`, ignoring whitespace around both. If the answer is one line, only the first
/// line of the completion is compared.
pub fn exact_match(answer: &str, completion: &str) -> bool {
    let answer = answer.trim();
    let whole = answer.contains('\n') && !faults::on(Fault::FirstLineOfAnswerCompared);
    let completion = if whole { completion.trim() } else { first_line(completion) };
    answer == completion
}

/// The first line of `completion` that is not blank, without the whitespace around it; empty if there is none.
pub(super) fn first_line(completion: &str) -> &str {
    completion.trim().lines().next().unwrap_or("").trim_end()
}
