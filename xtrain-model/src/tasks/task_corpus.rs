//! Training text of a task, with a share of wrong answers.
use rand::RngExt as _;
use xtrain_tensor::rng::{PhiloxRng, Purpose};

use super::corpus::{DOCUMENTS, tokens};
use super::task::Task;
use crate::data::{DataError, Tokens};
use crate::tokenizer::Tokenizer;

/// Number of attempts to draw a wrong answer.
const ATTEMPTS: usize = 256;

/// A sequence of 2^63 documents `prompt + answer` with the training prompts of a task. With probability `wrong`, the
/// answer is replaced by a wrong one in the same format: with probability 1/2 the task's typical mistake
/// ([`Task::typical_mistake`]) if it is wrong for this prompt; otherwise, with equal probabilities, the answer of
/// another training prompt, or the correct answer with one character replaced ([`Task::substitutes`]). A replacement
/// that the task accepts is drawn again. Above 2/3 wrong answers, the typical mistake is more frequent than the correct
/// answer. A base model trained on this text is correct in a share of about `1 - wrong` of its samples.
///
/// Document n is a pure function of (seed, n): its generator starts at the address (seed, 2^63 + n, 0) of purpose
/// [`Purpose::DataOrder`]. The distributions of `rand` may change between its versions, and the text with them.
#[derive(Debug, Clone, Copy)]
pub struct TaskCorpus<'t> {
    task: &'t dyn Task,
    seed: u64,
    wrong: f64,
}

/// A document of a [`TaskCorpus`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskDocument {
    /// The prompt.
    pub prompt: String,
    /// The answer.
    pub answer: String,
    /// Whether the answer is correct.
    pub correct: bool,
}

impl<'t> TaskCorpus<'t> {
    /// The corpus of `task` and `seed` with the share `wrong` of wrong answers.
    ///
    /// # Errors
    /// `wrong` outside 0..=1; a task without training prompts; `wrong > 0` for a task without wrong answers that can
    /// be drawn.
    pub fn new(task: &'t dyn Task, seed: u64, wrong: f64) -> Result<TaskCorpus<'t>, DataError> {
        if !(0.0..=1.0).contains(&wrong) {
            return Err(DataError::argument("corpus", "a share of wrong answers from 0 to 1", wrong));
        }
        let corpus = TaskCorpus { task, seed, wrong };
        let mut rng = corpus.rng(0);
        let Some((prompt, answer)) = corpus.draw(&mut rng) else {
            let got = format!("task {:?} without them", task.name());
            return Err(DataError::argument("corpus", "a task with training prompts and answers", got));
        };
        if wrong > 0.0 && corpus.wrong_answer(&mut rng, &prompt, &answer).is_none() {
            let got = format!("task {:?} with only one answer", task.name());
            return Err(DataError::argument("corpus", "a task with different answers", got));
        }
        Ok(corpus)
    }

    /// Document `n`, below 2^63.
    ///
    /// # Panics
    /// If the task has no training prompt or no wrong answer after all, which [`new`](TaskCorpus::new) checks.
    pub fn sample(&self, n: u64) -> TaskDocument {
        let mut rng = self.rng(n);
        let (prompt, answer) = self.draw(&mut rng).expect("new checked that the task has training prompts");
        if !rng.random_bool(self.wrong) {
            return TaskDocument { prompt, answer, correct: true };
        }
        let wrong = self.wrong_answer(&mut rng, &prompt, &answer);
        let answer = wrong.expect("new checked that the task has wrong answers");
        TaskDocument { prompt, answer, correct: false }
    }

    /// The text of document `n`: its prompt and its answer.
    pub fn document(&self, n: u64) -> String {
        let TaskDocument { prompt, answer, .. } = self.sample(n);
        prompt + &answer
    }

    /// Documents 0, 1, 2, ...
    pub fn documents(&self) -> impl Iterator<Item = String> + '_ {
        (0..DOCUMENTS).map(|n| self.document(n))
    }

    /// Complete documents, each ended by the tokenizer's separator, with at least `count` tokens in total. A model
    /// trained on them ends an answer with the separator.
    ///
    /// # Errors
    /// A tokenizer without a separator, or one that cannot encode a document.
    pub fn tokens(&self, tokenizer: &Tokenizer, count: usize) -> Result<Tokens, DataError> {
        tokens(self.documents(), tokenizer, count)
    }

    fn rng(&self, n: u64) -> PhiloxRng {
        PhiloxRng::new(self.seed, DOCUMENTS | n, Purpose::DataOrder)
    }

    /// A training prompt and its answer.
    fn draw(&self, rng: &mut PhiloxRng) -> Option<(String, String)> {
        let prompt = self.task.draw_prompt(rng)?;
        let answer = self.task.answer(&prompt)?;
        Some((prompt, answer))
    }

    /// A wrong answer to `prompt`, whose correct answer is `answer`. `None`: no attempt was wrong.
    fn wrong_answer(&self, rng: &mut PhiloxRng, prompt: &str, answer: &str) -> Option<String> {
        let is_wrong = |candidate: &String| !self.task.check(prompt, candidate);
        let mistake = self.task.typical_mistake(prompt).filter(is_wrong);
        if let Some(mistake) = mistake.filter(|_| rng.random_bool(0.5)) {
            return Some(mistake);
        }
        (0..ATTEMPTS).find_map(|_| {
            let candidate = if rng.random_bool(0.5) {
                self.draw(rng)?.1
            } else {
                self.with_one_character_replaced(rng, answer)?
            };
            is_wrong(&candidate).then_some(candidate)
        })
    }

    /// `answer` with a random character replaced by one of its substitutes. `None`: the character has none.
    fn with_one_character_replaced(&self, rng: &mut PhiloxRng, answer: &str) -> Option<String> {
        let mut characters: Vec<char> = answer.chars().collect();
        let at = (!characters.is_empty()).then(|| rng.random_range(0..characters.len() as u64) as usize)?;
        let substitutes: Vec<char> = self.task.substitutes(characters[at]).chars().collect();
        if substitutes.is_empty() {
            return None;
        }
        characters[at] = substitutes[rng.random_range(0..substitutes.len() as u64) as usize];
        Some(characters.into_iter().collect())
    }
}
