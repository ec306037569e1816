//! The place of a completion in a batch.

/// The place of a completion in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionIndex {
    /// The index of the prompt in the batch.
    pub prompt: usize,
    /// The index of the completion in the group of its prompt.
    pub completion: usize,
}

impl std::fmt::Display for CompletionIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "prompt {}, completion {}", self.prompt, self.completion)
    }
}
