//! The role of a token in training.

/// The role of a token in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Context only, never a target: a prompt.
    Context,
    /// Context, and a target that contributes to the loss.
    Target,
}
