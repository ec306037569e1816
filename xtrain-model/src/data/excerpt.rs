//! What a training sample is made of.
use xtrain_tensor::faults::{self, Fault};

/// Tokens that are read, and after each of them the token that it has to predict, where there is one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenWindow {
    /// What is read.
    pub inputs: Vec<u32>,
    /// What follows each of them, where that is to be learnt; as long as `inputs`.
    pub targets: Vec<Option<u32>>,
    /// Where its second document begins, the third, ...: rising places in `inputs`.
    pub starts: Vec<usize>,
}

impl TokenWindow {
    /// The tokens `ids`: all but the last are read, each predicts the next where `learnt` says so of that one.
    /// `learnt` is as long as `ids`.
    pub fn new(ids: &[u32], learnt: &[bool]) -> TokenWindow {
        let inputs = ids[..ids.len().saturating_sub(1)].to_vec();
        let following = ids.iter().zip(learnt).skip(1);
        let targets = following.map(|(&id, &learnt)| learnt.then_some(id)).collect();
        TokenWindow { inputs, targets, starts: Vec::new() }
    }

    /// Adds what `other` holds as documents of their own.
    pub fn append(&mut self, other: TokenWindow) {
        let at = self.inputs.len();
        let joined = at == 0 || other.inputs.is_empty() || faults::on(Fault::WindowJoinsItsDocuments);
        let first = (!joined).then_some(at);
        self.starts.extend(first.into_iter().chain(other.starts.iter().map(|start| at + start)));
        self.inputs.extend(other.inputs);
        self.targets.extend(other.targets);
    }

    /// How many tokens are to be predicted.
    pub fn target_count(&self) -> usize {
        self.targets.iter().flatten().count()
    }
}
