//! The place of a completion in a batch.

/// The place of a completion in a batch. The order is by prompt, then by completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CompletionIndex {
    /// The index of the prompt in the batch.
    pub prompt: usize,
    /// The index of the completion in the group of its prompt.
    pub completion: usize,
}

impl CompletionIndex {
    /// The reward process of the completion: (prompt + completion) mod `processes`, so all turns of a completion go to
    /// one process.
    pub(super) fn process(self, processes: usize) -> usize {
        (self.prompt + self.completion) % processes
    }
}

impl std::fmt::Display for CompletionIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "prompt {}, completion {}", self.prompt, self.completion)
    }
}
