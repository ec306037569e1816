//! Questions with answers that can be checked, and the quickstart's corpus, made from a seed.
mod corpus;
mod file;
mod sentences;
mod sums;

use std::fmt::Debug;

pub use corpus::{Corpus, Mix};
pub use file::FileTask;
pub use sums::Sums;

/// Which questions of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Those that may occur in training text.
    Train,
    /// Those that never do: what accuracy is measured on.
    HeldOut,
}

/// Prompts whose completions are right or wrong.
pub trait Task: Debug {
    /// What it is called in tables.
    fn name(&self) -> &str;

    /// The prompts of `part`, always in the same order.
    fn prompts(&self, part: Part) -> Vec<String>;

    /// The right completion of `prompt`, if it is one of the task's.
    fn answer(&self, prompt: &str) -> Option<String>;

    /// Whether `completion` says exactly the answer: [`exact_match`].
    fn check(&self, prompt: &str, completion: &str) -> bool {
        self.answer(prompt).is_some_and(|answer| exact_match(&answer, completion))
    }
}

/// Whether `completion` is `answer`, spaces and line ends around both left out. Where the answer is one line,
/// what the completion says after its own first line does not count.
pub fn exact_match(answer: &str, completion: &str) -> bool {
    let (answer, mut said) = (answer.trim(), completion.trim());
    if !answer.contains('\n') {
        said = said.lines().next().unwrap_or("").trim_end();
    }
    answer == said
}

#[cfg(test)]
mod tests;
