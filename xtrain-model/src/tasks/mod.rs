//! Tasks with verifiable answers, and training text generated from a seed.
mod corpus;
mod countdown;
mod counting;
mod expression;
mod file;
mod prompt_file;
mod registry;
mod reversing;
mod sentences;
mod sorting;
mod sums;
mod task;
mod task_corpus;
#[cfg(test)]
mod tests;
mod words;

pub use corpus::{Corpus, Mix};
pub use countdown::Countdown;
pub use counting::Counting;
pub use file::FileTask;
pub use prompt_file::{EncodedPrompt, PromptContent, PromptFile, PromptRecord};
pub use registry::{NAMES, by_name};
pub use reversing::Reversing;
pub use sorting::Sorting;
pub use sums::Sums;
pub use task::{PromptSet, Task, exact_match};
pub use task_corpus::{TaskCorpus, TaskDocument};
