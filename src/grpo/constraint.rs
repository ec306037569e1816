//! What the completions of a run have to match, and the tokens that it allows.
use super::Error;
use super::batch::Sample;
use crate::decode::constraint::SharedConstraint;
use crate::grammar::Language;
use crate::tensor::ops::KeptSet;

/// The constraint of all rollouts of a run.
#[derive(Debug, Clone)]
pub struct RolloutConstraint {
    /// As the configuration says.
    pub language: Language,
    /// For the tokenizer of the run.
    pub shared: SharedConstraint,
}

impl RolloutConstraint {
    /// The tokens that the sampler kept before each token of `sample`, as far as the constraint removed others: the
    /// kept sets of the update. `None` for an appended token. `eos`: the end-of-text tokens of the rollouts.
    ///
    /// # Errors
    /// [`Error::Decode`] if the allowed tokens cannot be computed.
    pub fn kept_sets(&self, sample: &Sample, eos: &[u32]) -> Result<Vec<Option<KeptSet>>, Error> {
        let mut sets = vec![None; sample.tokens.len()];
        let failed =
            |position: usize| move |source| crate::decode::Error::Sample { id: sample.id, position, source };
        for turn in sample.turns() {
            let (mut state, allowed) = self.shared.0.start().map_err(failed(turn.start))?;
            let mut mask = allowed.mask(eos);
            for at in turn.clone() {
                sets[at] = KeptSet::from_ids(mask.vocab(), &mask.ids().collect::<Vec<_>>());
                if at + 1 < turn.end {
                    mask = state.advance(sample.tokens[at]).map_err(failed(at + 1))?.mask(eos);
                }
            }
        }
        Ok(sets)
    }
}
