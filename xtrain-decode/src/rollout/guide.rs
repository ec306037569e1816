//! The constraint of one sequence after its tokens so far.
use xtrain_tensor::faults::{self, Fault};

use super::request::StopConditions;
use crate::constraint::{Allowed, Constraint, ConstraintState};
use crate::sampler::{SampleError, TokenMask};

/// The tokens that a constraint allows after some new tokens.
#[derive(Debug)]
pub(super) struct Guide {
    /// The last new token. `None`: there is none yet.
    token: Option<u32>,
    /// `None`: the allowed tokens could not be computed.
    state: Option<Box<dyn ConstraintState>>,
    /// Text and end-of-text tokens.
    mask: Result<TokenMask, SampleError>,
    /// The tokens so far are a complete text that no text token continues.
    is_complete: bool,
}

impl Guide {
    /// Before the first new token.
    pub(super) fn start(constraint: &dyn Constraint, stop: &StopConditions) -> Guide {
        match constraint.start() {
            Ok((state, allowed)) => Guide::new(None, state, allowed, stop),
            Err(error) => Guide { token: None, state: None, mask: Err(error), is_complete: false },
        }
    }

    /// After `token`, which the mask allows and which is no end of text.
    pub(super) fn after(self, token: u32, stop: &StopConditions) -> Guide {
        let Some(mut state) = self.state else { return self };
        match state.advance(token) {
            Ok(allowed) => {
                let next = Guide::new(Some(token), state, allowed, stop);
                if faults::on(Fault::ConstraintStale) { Guide { mask: self.mask, ..next } } else { next }
            }
            Err(error) => Guide { token: Some(token), state: None, mask: Err(error), is_complete: false },
        }
    }

    /// As [`Guide::after`], for a drafted token. `None`: the sequence ends with the token, or the token is not allowed.
    pub(super) fn after_draft(&self, token: u32, stop: &StopConditions) -> Option<Guide> {
        let state = self.state.as_ref().filter(|_| self.mask.as_ref().is_ok_and(|mask| mask.allows(token)));
        let state = state.filter(|_| stop.reason(token).is_none())?;
        let same = Guide {
            token: self.token,
            state: Some(state.fork()),
            mask: self.mask.clone(),
            is_complete: false,
        };
        Some(same.after(token, stop)).filter(|next| next.mask.is_ok() && !next.is_complete)
    }

    fn new(
        token: Option<u32>,
        state: Box<dyn ConstraintState>,
        allowed: Allowed,
        stop: &StopConditions,
    ) -> Guide {
        let may_end = allowed.may_end;
        let mask = allowed.mask(&stop.eos);
        let ends = may_end || faults::on(Fault::DeadEndIsComplete);
        let is_complete = ends && mask.ids().all(|id| stop.eos.contains(&id));
        Guide { token, state: Some(state), mask: Ok(mask), is_complete }
    }

    /// The last new token.
    pub(super) fn token(&self) -> Option<u32> {
        self.token
    }

    /// The tokens that may follow, or why they are not known.
    pub(super) fn mask(&self) -> Result<&TokenMask, SampleError> {
        self.mask.as_ref().map_err(Clone::clone)
    }

    /// Nothing but an end of text may follow.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }
}
