//! The loss of a model over tokens that it was not trained on.
use std::ops::Range;

use crate::model::data::{DataError, Tokens};
use crate::model::tokenizer::Tokenizer;
use crate::model::{self, Model, TrainingExample, objective};

/// Rows of one forward pass of an evaluation.
const ROWS: u64 = 2048;

/// What a model makes of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// The mean of `-log p` over all targets, in nats.
    pub loss: f64,
    /// Targets.
    pub tokens: u64,
    /// Bytes of text that the targets stand for.
    pub bytes: u64,
}

impl Evaluation {
    /// `e^loss`.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }

    /// Bits that the model would take to send a byte of the text.
    pub fn bits_per_byte(&self) -> f64 {
        self.loss * self.tokens as f64 / std::f64::consts::LN_2 / (self.bytes.max(1) as f64)
    }
}

/// Why an evaluation could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The tokens.
    Data(DataError),
    /// The forward pass.
    Model(model::Error),
    /// There is nothing to predict.
    Empty,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Data(e) => e.fmt(f),
            Error::Model(e) => e.fmt(f),
            Error::Empty => write!(f, "nothing to evaluate: want at least 2 tokens"),
        }
    }
}

impl std::error::Error for Error {}

impl From<DataError> for Error {
    fn from(e: DataError) -> Error {
        Error::Data(e)
    }
}

impl From<model::Error> for Error {
    fn from(e: model::Error) -> Error {
        Error::Model(e)
    }
}

/// The loss over `windows` of `tokens`: each is read by itself, all but its last token, and predicts what is to
/// be learnt of what follows.
///
/// The mean is an f64 sum in the order of the tokens: the same bits for any thread count.
///
/// # Errors
/// [`Error::Empty`] where nothing is predicted; a read that fails; an id outside the model's vocabulary.
pub fn evaluate(
    model: &Model,
    tokens: &Tokens,
    windows: &[Range<u64>],
    tokenizer: &Tokenizer,
) -> Result<Evaluation, Error> {
    let (mut sum, mut count, mut bytes) = (0f64, 0u64, 0u64);
    let mut rest = windows;
    while !rest.is_empty() {
        let (pass, others) = rest.split_at(fitting(rest));
        rest = others;
        let excerpts = pass.iter().map(|w| tokens.window(w.clone())).collect::<Result<Vec<_>, _>>()?;
        let samples: Vec<TrainingExample> = excerpts.into_iter().map(TrainingExample::from).collect();
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

/// How many of the first windows one pass takes: [`ROWS`] rows, or one window.
fn fitting(windows: &[Range<u64>]) -> usize {
    let mut rows = 0;
    let beyond = windows.iter().position(|window| {
        rows += window.end - window.start - 1;
        rows > ROWS
    });
    beyond.unwrap_or(windows.len()).max(1)
}
