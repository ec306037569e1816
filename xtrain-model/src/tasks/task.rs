//! Tasks: prompts whose completions can be checked.
use std::fmt::Debug;

/// A part of a task's prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptSet {
    /// Prompts that may occur in training text.
    Train,
    /// Prompts that never occur in training text, to measure accuracy.
    HeldOut,
}

/// Prompts with verifiable completions.
pub trait Task: Debug {
    /// The name of the task in tables.
    fn name(&self) -> &str;

    /// The prompts of `part`, in a fixed order.
    fn prompts(&self, part: PromptSet) -> Vec<String>;

    /// The correct completion of `prompt`. `None`: the task does not contain the prompt.
    fn answer(&self, prompt: &str) -> Option<String>;

    /// Whether `completion` matches the answer. See [`exact_match`].
    fn check(&self, prompt: &str, completion: &str) -> bool {
        self.answer(prompt).is_some_and(|answer| exact_match(&answer, completion))
    }
}

/// Whether `completion` equals `answer`, ignoring whitespace around both. If the answer is one line, only the first
/// line of the completion is compared.
pub fn exact_match(answer: &str, completion: &str) -> bool {
    let (answer, mut completion) = (answer.trim(), completion.trim());
    if !answer.contains('\n') {
        completion = completion.lines().next().unwrap_or("").trim_end();
    }
    answer == completion
}
