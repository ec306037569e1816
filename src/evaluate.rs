//! The loss of a model on held-out tokens.
use std::ops::Range;

use crate::model::data::{DataError, Tokens};
use crate::model::tokenizer::Tokenizer;
use crate::model::{self, Model, TrainingExample, objective};
use crate::training::data_loader::windows_within;

/// Maximum number of rows per forward pass.
const MAX_ROWS: u64 = 2048;

/// The result of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Mean of `-log p` over all target tokens, in nats.
    pub loss: f64,
    /// Number of target tokens.
    pub tokens: u64,
    /// Number of text bytes of the target tokens.
    pub bytes: u64,
}

impl Evaluation {
    /// `e^loss`.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }

    /// Cross-entropy per byte of text, in bits.
    pub fn bits_per_byte(&self) -> f64 {
        self.loss * self.tokens as f64 / std::f64::consts::LN_2 / (self.bytes.max(1) as f64)
    }
}

/// Why an evaluation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading the tokens failed.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The forward pass failed.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// There is nothing to predict.
    #[error("nothing to evaluate: expected at least 2 tokens")]
    Empty,
}

/// The mean loss over the target tokens of `windows`. The windows do not attend to each other; the input of a window
/// is all but its last token.
///
/// The sum is in f64 and in token order: bit-identical for any number of threads.
///
/// # Errors
/// [`Error::Empty`] if there are no target tokens; reading fails; an id is outside the vocabulary of the model.
pub fn evaluate(
    model: &Model,
    tokens: &Tokens,
    windows: &[Range<u64>],
    tokenizer: &Tokenizer,
) -> Result<Evaluation, Error> {
    let (mut sum, mut count, mut bytes) = (0f64, 0u64, 0u64);
    let mut rest = windows;
    while !rest.is_empty() {
        let (pass, others) = rest.split_at(windows_within(rest, MAX_ROWS));
        rest = others;
        let token_windows = pass.iter().map(|w| tokens.window(w.clone())).collect::<Result<Vec<_>, _>>()?;
        let samples: Vec<TrainingExample> = token_windows.into_iter().map(TrainingExample::from).collect();
        for sample in &samples {
            let ids: Vec<u32> = sample.targets.iter().flatten().map(|t| t.id).collect();
            bytes += tokenizer.text_bytes(&ids);
        }
        for value in objective::evaluate(model, &samples, &mut 0.0)?.into_iter().flatten() {
            sum -= f64::from(value.log_prob);
            count += 1;
        }
    }
    if count == 0 {
        return Err(Error::Empty);
    }
    Ok(Evaluation { loss: sum / count as f64, tokens: count, bytes })
}
