//! Speculative decoding: drafted tokens that a forward pass verifies.
//!
//! The rows of the next token and of the drafted tokens run in one pass. The sampler samples a token from each of these
//! rows with the random number of its position, as it would without drafts. A drafted token is accepted if the sampler
//! chose the same token; the rows after the first rejected one are removed from the cache. So the completion does
//! not depend on the drafts.
//!
//! | file | contents |
//! |---|---|
//! | `control` | how many tokens a sequence drafts |
//! | `lookup` | drafts from the tokens of the sequence |
//! | `draft_model` | drafts from a smaller model |
mod control;
mod draft_model;
mod lookup;

pub(super) use control::{DraftControl, cost_in_batch, row_cost};
pub(super) use draft_model::DraftModel;
pub(super) use lookup::look_up;
