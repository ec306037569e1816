//! Rewards of completions: built-in tasks and external programs.
//!
//! A [`Reward`] has one or more named functions. It maps a batch of completions to one number per function, or
//! `None`.
mod error;
mod external;
mod index;
mod pending;
mod process;
mod protocol;
mod reward;
mod task;
#[cfg(test)]
mod tests;

pub use error::{ReplyLocation, RewardError};
pub use external::{ExternalOptions, ExternalReward};
pub use index::CompletionIndex;
pub use protocol::{RESERVED_COLUMNS, Reply};
pub use reward::{Reward, RewardInput, RewardRow};
pub use task::TaskReward;
