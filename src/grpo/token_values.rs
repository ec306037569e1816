//! The values of the tokens of a completion under a model.

/// The values of the tokens of one completion; 0 for appended tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct TokenValues {
    pub(super) logp: Vec<f64>,
    pub(super) entropy: Vec<f64>,
}
