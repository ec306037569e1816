//! Tasks with verifiable answers, and the quickstart's corpus, generated from a seed.
mod corpus;
mod file;
mod sentences;
mod sums;
mod task;
#[cfg(test)]
mod tests;

pub use corpus::{Corpus, Mix};
pub use file::FileTask;
pub use sums::Sums;
pub use task::{PromptSet, Task, exact_match};
