//! Rewards of completions: built-in tasks and external programs.
//!
//! A [`Reward`] has one or more named functions. It maps each completion of a batch to one number per function, or
//! `None`, or to text that continues the completion.
mod distinct;
mod error;
mod external;
mod function;
mod index;
mod pending;
mod process;
mod protocol;
mod queue;
mod reward;
mod task;
#[cfg(test)]
mod tests;

pub use distinct::DistinctReward;
pub use error::{ReplyLocation, RewardError};
pub use external::{ExternalOptions, ExternalReward};
pub use function::FunctionReward;
pub use index::CompletionIndex;
#[cfg(unix)]
pub(crate) use process::kill_all;
pub use protocol::RESERVED_COLUMNS;
pub use reward::{Reward, RewardInput, RewardReply, RewardRow, Turn};
pub use task::TaskReward;
