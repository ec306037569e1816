//! Constraints: the texts that the new tokens of a completion may form.
use std::fmt;
use std::sync::Arc;

use xtrain_tensor::faults::{self, Fault};

use crate::sampler::{SampleError, TokenMask};

/// A set of texts. The new tokens of a completion are always the beginning of a text of the set, and a completion that
/// ends by itself is a text of the set (docs/numerics.md, section 7).
///
/// What it allows depends on the new tokens only, so the tokens of a completion do not depend on the batch, the cache
/// or the schedule.
pub trait Constraint: fmt::Debug + Send + Sync {
    /// The state before the first new token, and what it allows.
    ///
    /// # Errors
    /// [`SampleError::Constraint`] if the allowed tokens cannot be computed.
    fn start(&self) -> Result<(Box<dyn ConstraintState>, Allowed), SampleError>;
}

/// A constraint after some new tokens.
pub trait ConstraintState: fmt::Debug + Send {
    /// Appends `token`, which the last [`Allowed`] contains as a text token. Returns what it allows next.
    ///
    /// # Errors
    /// [`SampleError::Constraint`] if the allowed tokens cannot be computed. The state is not used again.
    fn advance(&mut self, token: u32) -> Result<Allowed, SampleError>;

    /// A copy of the state, which advances separately.
    fn fork(&self) -> Box<dyn ConstraintState>;
}

/// What a constraint allows next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// The text tokens that may follow. End-of-text tokens are not among them.
    pub text: TokenMask,
    /// The tokens so far are a text of the set: end-of-text tokens may follow.
    pub may_end: bool,
}

impl Allowed {
    /// The tokens that may follow: text, and the tokens `eos` where the text may end. A token of `eos` is no text,
    /// whatever its bytes are.
    #[must_use]
    pub fn mask(self, eos: &[u32]) -> TokenMask {
        let Allowed { text: mut mask, may_end } = self;
        let early = faults::on(Fault::EndOfTextAllowedEarly);
        for &eos in eos {
            if may_end || early {
                mask.allow(eos);
            } else {
                mask.disallow(eos);
            }
        }
        mask
    }
}

/// A constraint that several requests share. Two of them are equal if they are the same object.
#[derive(Debug, Clone)]
pub struct SharedConstraint(pub Arc<dyn Constraint>);

impl PartialEq for SharedConstraint {
    fn eq(&self, other: &SharedConstraint) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
