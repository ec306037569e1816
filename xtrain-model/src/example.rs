//! Training examples, and the processing of their logits.
use xtrain_tensor::ops::{KeptSet, Target};

use crate::data::TokenWindow;
use crate::prefix_tree::PrefixTree;

/// One training example: the smallest unit of a micro-batch. It may contain several documents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrainingExample {
    /// The input tokens.
    pub inputs: Vec<u32>,
    /// The target of each input token, as long as `inputs`. `None`: the token does not contribute to the loss.
    pub targets: Vec<Option<Target>>,
    /// The start of the second document, the third, ...: increasing offsets in `inputs`. Positions restart there, and
    /// attention is limited to the document.
    pub starts: Vec<usize>,
    /// Kept sets of an earlier pass ([`store_kept_sets`](crate::objective::store_kept_sets)), as long as `inputs`, or
    /// empty. They replace the filters of [`LogitsProcessing`] in their rows; the temperature still applies. `None`:
    /// the filters apply to the row.
    pub kept: Vec<Option<KeptSet>>,
    /// Continuations of `inputs`. The rows of `inputs` are computed once for all of them, and so are the rows of the
    /// first tokens of branches that begin with the same tokens. An example with branches has no targets, starts and
    /// kept sets of its own. Its gradient is that of the branches alone up to the order of its sums
    /// (docs/numerics.md, section 4); its values have the same bits.
    pub branches: Vec<Branch>,
}

/// A continuation of the inputs of a training example. Branches do not attend to each other.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Branch {
    /// The tokens after those of the example.
    pub inputs: Vec<u32>,
    /// The target of the example's last token, then of each token of `inputs`.
    pub targets: Vec<Option<Target>>,
    /// Kept sets, as long as `targets`, or empty; see [`TrainingExample::kept`].
    pub kept: Vec<Option<KeptSet>>,
}

/// The processing of logits before the log-probabilities of the loss: the sampler's, without the repetition penalty.
/// Temperature, top-k, top-p and min-p act in this order.
///
/// With the options of the sampler and the weights that sampled, a token's log-probability has the bits of the
/// sampler's processed log-probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitsProcessing {
    /// Divides the logits.
    pub temperature: f32,
    /// Number of largest logits that a row keeps, in addition to its target. At least 1. `None`: no limit.
    pub top_k: Option<usize>,
    /// Removes the smallest probabilities that add up to at most `1 - top_p`, except the target's. In (0, 1]; 1: off.
    pub top_p: f32,
    /// Removes tokens with less than this fraction of the largest probability, except the target. In [0, 1]; 0: off.
    pub min_p: f32,
}

impl Default for LogitsProcessing {
    fn default() -> LogitsProcessing {
        LogitsProcessing { temperature: 1.0, top_k: None, top_p: 1.0, min_p: 0.0 }
    }
}

impl TrainingExample {
    /// A window of running text: each token except the last predicts its successor, with loss weight `weight`: 1 for
    /// [`Trainer::step`](crate::Trainer::step), any number for
    /// [`Trainer::step_weighted`](crate::Trainer::step_weighted).
    pub fn window(tokens: &[u32], weight: f32) -> TrainingExample {
        let target = |&id: &u32| Some(Target { id, weight, bonus: 0.0 });
        let n = tokens.len().saturating_sub(1);
        TrainingExample {
            inputs: tokens[..n].to_vec(),
            targets: tokens[1.min(tokens.len())..].iter().map(target).collect(),
            ..TrainingExample::default()
        }
    }

    /// The number of rows of the example in a forward pass. Branches with an equal beginning share its rows.
    pub fn rows(&self) -> usize {
        let mut tree = PrefixTree::default();
        for branch in &self.branches {
            tree.insert(0, &branch.inputs, 1 + tree.len() as u32);
        }
        self.inputs.len() + tree.len()
    }

    /// The number of its targets and of those of its branches, `None` included.
    pub fn target_entries(&self) -> usize {
        self.targets.len() + self.branches.iter().map(|branch| branch.targets.len()).sum::<usize>()
    }

    /// The targets: those of the example, then those of each branch.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        let branches = self.branches.iter().flat_map(|branch| &branch.targets);
        self.targets.iter().chain(branches).flatten()
    }

    /// [`TrainingExample::targets`], mutable.
    pub fn targets_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        let branches = self.branches.iter_mut().flat_map(|branch| &mut branch.targets);
        self.targets.iter_mut().chain(branches).flatten()
    }
}

impl From<TokenWindow> for TrainingExample {
    /// The window with loss weights of 1. [`Trainer::step`](crate::Trainer::step) takes their mean.
    fn from(window: TokenWindow) -> TrainingExample {
        let TokenWindow { inputs, targets, starts } = window;
        let target = |id: Option<u32>| id.map(|id| Target { id, weight: 1.0, bonus: 0.0 });
        let targets = targets.into_iter().map(target).collect();
        TrainingExample { inputs, targets, starts, ..TrainingExample::default() }
    }
}
