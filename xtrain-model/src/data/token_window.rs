//! Input and target tokens of a training example.
use xtrain_tensor::faults::{self, Fault};

/// Input tokens and the target of each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenWindow {
    /// The input tokens.
    pub inputs: Vec<u32>,
    /// The target of each input token, as long as `inputs`. `None`: no target.
    pub targets: Vec<Option<u32>>,
    /// The start of the second document, the third, ...: increasing offsets in `inputs`.
    pub starts: Vec<usize>,
}

impl TokenWindow {
    /// A window over the tokens `ids`: all except the last are inputs, and each input predicts the next token if
    /// `target_mask` is set for that token. `target_mask` is as long as `ids`.
    pub fn new(ids: &[u32], target_mask: &[bool]) -> TokenWindow {
        let inputs = ids[..ids.len().saturating_sub(1)].to_vec();
        let following = ids.iter().zip(target_mask).skip(1);
        let targets = following.map(|(&id, &is_target)| is_target.then_some(id)).collect();
        TokenWindow { inputs, targets, starts: Vec::new() }
    }

    /// Appends the documents of `other` as separate documents.
    pub fn append(&mut self, other: TokenWindow) {
        let at = self.inputs.len();
        let joined = at == 0 || other.inputs.is_empty() || faults::on(Fault::DocumentBoundariesLost);
        let first = (!joined).then_some(at);
        self.starts.extend(first.into_iter().chain(other.starts.iter().map(|start| at + start)));
        self.inputs.extend(other.inputs);
        self.targets.extend(other.targets);
    }
}
