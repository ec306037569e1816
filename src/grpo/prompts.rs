//! The order of the prompts: a pure function of (seed, number).
use std::fmt;
use std::sync::Arc;

use serde_json::Map;

use super::Error;
use super::batch::Prompt;
use crate::model::data::Permutation;
use crate::model::tasks::Task;
use crate::model::tokenizer::Tokenizer;
use crate::tensor::rng::{Purpose, uniform_u64};

/// Separates the random number addresses of prompt orders from those of training windows and documents.
const PROMPTS: u64 = 1 << 62;
/// Separates the numbers and addresses of prompts that replace a group.
const REPLACEMENTS: u64 = 1 << 61;

/// Prompts of a task that [`PromptSource::longest`] reads.
const TASK_PROMPTS: u64 = 64;

/// The training prompts of a run.
pub struct PromptSource<'a> {
    seed: u64,
    from: From<'a>,
}

enum From<'a> {
    /// A list. Each prompt is used once per epoch, in a new random order for each epoch.
    List(Vec<Arc<Prompt>>),
    /// A task, which draws a prompt for each number.
    Task { task: &'a dyn Task, tokenizer: &'a Tokenizer },
}

/// A prompt and its index in the list, or its number in the sequence of a task.
pub type Numbered = (u64, Arc<Prompt>);

impl fmt::Debug for PromptSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromptSource").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl<'a> PromptSource<'a> {
    /// The prompts of a list with at least one prompt. Each has at least one token, and at most `max_prompt_length`.
    pub fn list(prompts: Vec<Arc<Prompt>>, seed: u64) -> PromptSource<'a> {
        PromptSource { seed, from: From::List(prompts) }
    }

    /// The training prompts of a task; see [`Task::training_prompt`].
    pub fn task(task: &'a dyn Task, tokenizer: &'a Tokenizer, seed: u64) -> PromptSource<'a> {
        PromptSource { seed, from: From::Task { task, tokenizer } }
    }

    /// Checks that a list has a prompt, and that each has from 1 to `longest` tokens.
    ///
    /// # Errors
    /// [`Error::NoPrompts`]; [`Error::PromptLength`] for the first other prompt.
    pub(super) fn check_lengths(&self, longest: usize) -> Result<(), Error> {
        let From::List(prompts) = &self.from else { return Ok(()) };
        if prompts.is_empty() {
            return Err(Error::NoPrompts);
        }
        match prompts.iter().position(|prompt| !(1..=longest).contains(&prompt.ids.len())) {
            None => Ok(()),
            Some(prompt) => {
                let (want, found) = (format!("from 1 to {longest} tokens"), prompts[prompt].ids.len());
                Err(Error::PromptLength { prompt, want, found })
            }
        }
    }

    /// The prompt with this number in the sequence of the run.
    ///
    /// # Errors
    /// The tokenizer cannot encode a prompt of the task; the task has no training prompts.
    pub fn at(&self, number: u64) -> Result<Numbered, Error> {
        self.get(number, |count| {
            let key =
                |i: usize| uniform_u64(self.seed, PROMPTS | (number / count), i as u32, Purpose::DataOrder);
            Permutation::new(count, std::array::from_fn(key)).at(number % count)
        })
    }

    /// The prompt that replaces the group `slot` of generation batch `batch` in `round` below 256.
    ///
    /// # Errors
    /// As [`PromptSource::at`].
    pub fn replacement(&self, batch: u64, round: u64, slot: u64) -> Result<Numbered, Error> {
        let id = REPLACEMENTS | (batch * 256 + round);
        self.get(REPLACEMENTS | ((batch * 256 + round) << 20 | slot), |count| {
            let u = uniform_u64(self.seed, id, slot as u32, Purpose::DataOrder);
            ((u128::from(u) * u128::from(count)) >> 64) as u64
        })
    }

    /// The longest prompt of a list, or of the first prompts of a task.
    ///
    /// # Errors
    /// As [`PromptSource::at`].
    pub fn longest(&self) -> Result<Arc<Prompt>, Error> {
        let count = match &self.from {
            From::List(prompts) => prompts.len() as u64,
            From::Task { .. } => TASK_PROMPTS,
        };
        let mut longest = self.get(0, |_| 0)?.1;
        for number in 1..count {
            let (_, prompt) = self.get(number, |_| number)?;
            if prompt.ids.len() > longest.ids.len() {
                longest = prompt;
            }
        }
        Ok(longest)
    }

    fn get(&self, number: u64, index: impl FnOnce(u64) -> u64) -> Result<Numbered, Error> {
        match &self.from {
            From::List(prompts) => {
                if prompts.is_empty() {
                    return Err(Error::NoPrompts);
                }
                let at = index(prompts.len() as u64);
                Ok((at, prompts[at as usize].clone()))
            }
            From::Task { task, tokenizer } => {
                let text = task.training_prompt(self.seed, number).ok_or(Error::NoPrompts)?;
                Ok((number, Arc::new(text_prompt(text, tokenizer)?)))
            }
        }
    }
}

/// A prompt without other fields.
///
/// # Errors
/// The tokenizer cannot encode it.
pub fn text_prompt(text: String, tokenizer: &Tokenizer) -> Result<Prompt, Error> {
    let ids = tokenizer.encode_with_bos(&text)?;
    Ok(Prompt { text, ids, columns: Map::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tasks::Sums;

    fn prompt(text: &str) -> Arc<Prompt> {
        Arc::new(text_prompt(text.into(), &Tokenizer::byte()).unwrap())
    }

    #[test]
    fn the_longest_prompt_of_a_list_is_the_first_of_the_greatest_length() {
        for (texts, want) in [
            (&["a"][..], "a"),
            (&["ab", "c", "de"], "ab"),
            (&["a", "bcd", "ef", "ghi"], "bcd"),
            (&["a", "bc", "def"], "def"),
        ] {
            let source = PromptSource::list(texts.iter().map(|text| prompt(text)).collect(), 3);
            assert_eq!(source.longest().unwrap().text, want, "{texts:?}");
        }
    }

    #[test]
    fn the_longest_prompt_of_a_task_is_among_its_first_64() {
        let (task, tokenizer) = (Sums::default(), Tokenizer::byte());
        for seed in 0..20 {
            let length = |n| task.training_prompt(seed, n).unwrap().len();
            let source = PromptSource::task(&task, &tokenizer, seed);
            assert_eq!(
                source.longest().unwrap().text.len(),
                (0..64).map(length).max().unwrap(),
                "seed {seed}"
            );
        }
    }

    #[test]
    fn every_epoch_has_each_prompt_once_in_another_order() {
        let source = PromptSource::list((0..9).map(|n| prompt(&n.to_string())).collect(), 5);
        let epoch = |n: u64| (9 * n..9 * n + 9).map(|at| source.at(at).unwrap().0).collect::<Vec<_>>();
        for n in 0..4 {
            let mut sorted = epoch(n);
            sorted.sort_unstable();
            assert_eq!(sorted, (0..9).collect::<Vec<_>>());
            assert_ne!(epoch(n), epoch(n + 1));
        }
        let drawn: std::collections::BTreeSet<u64> =
            (0..200).map(|round| source.replacement(1, round, 0).unwrap().0).collect();
        assert_eq!(drawn.len(), 9, "a replacement can be every prompt");
    }
}
