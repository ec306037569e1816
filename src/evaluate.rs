//! The loss of a model on held-out tokens.
use std::ops::Range;

use crate::model::comm::{self, Communicator};
use crate::model::data::{DataError, TokenWindow, Tokens};
use crate::model::tokenizer::Tokenizer;
use crate::model::{self, Model, TrainingExample, objective, shard_samples};
use crate::tensor::faults::{self, Fault};
use crate::tensor::math::exp_f64;
use crate::training::data_loader::windows_within;

/// Maximum number of rows per forward pass.
pub const MAX_ROWS: u64 = 2048;

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
        exp_f64(self.loss)
    }

    /// Cross-entropy per byte of text, in bits. `None`: no target token has text.
    pub fn bits_per_byte(&self) -> Option<f64> {
        let bits = self.loss * self.tokens as f64 / std::f64::consts::LN_2;
        (self.bytes > 0).then(|| bits / self.bytes as f64)
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
    /// Another process has ended.
    #[error(transparent)]
    Communication(#[from] comm::Error),
    /// There is nothing to predict.
    #[error("nothing to evaluate: expected a target token after the first token, found none")]
    Empty,
}

/// The mean loss over the target tokens of `windows`. The windows do not attend to each other; the input of a window
/// is all but its last token. Each process evaluates a part of them and returns the result for all.
///
/// The sum is in f64 and in token order: bit-identical for any number of threads and processes. A pass has one window, or
/// several of at most `max_rows` rows together; no bit depends on it.
///
/// # Errors
/// [`Error::Empty`] if there are no target tokens; reading fails; an id is outside the vocabulary of the model; another
/// process has ended.
pub fn evaluate(
    model: &Model,
    tokens: &Tokens,
    windows: &[Range<u64>],
    tokenizer: &Tokenizer,
    max_rows: u64,
    comm: &dyn Communicator,
) -> Result<Evaluation, Error> {
    let own = &windows[shard_samples(windows.len(), comm.size(), comm.rank())];
    let mut total = Total::default();
    if comm.size() == 1 {
        total.bytes = each_log_prob(model, tokens, own, tokenizer, max_rows, |log_prob| total.add(log_prob))?;
    } else {
        let mut message = vec![0; 8];
        let send = |log_prob: f32| message.extend(log_prob.to_le_bytes());
        let bytes = each_log_prob(model, tokens, own, tokenizer, max_rows, send)?;
        message[..8].copy_from_slice(&bytes.to_le_bytes());
        total = Total::of_messages(&comm.all_gather(&message)?);
    }
    total.evaluation().ok_or(Error::Empty)
}

/// The sum so far.
#[derive(Debug, Default)]
struct Total {
    sum: f64,
    count: u64,
    bytes: u64,
}

impl Total {
    fn add(&mut self, log_prob: f32) {
        self.sum -= f64::from(log_prob);
        self.count += 1;
    }

    /// The sum over the messages of all processes: a number of bytes, then log-probabilities.
    fn of_messages(messages: &[Vec<u8>]) -> Total {
        let mut total = Total::default();
        for message in messages {
            let before = faults::on(Fault::LossSummedByProcess).then(|| std::mem::take(&mut total.sum));
            let (head, log_probs) =
                message.split_first_chunk().expect("every process sends its number of bytes");
            total.bytes += u64::from_le_bytes(*head);
            log_probs.as_chunks().0.iter().for_each(|&log_prob| total.add(f32::from_le_bytes(log_prob)));
            total.sum += before.unwrap_or(0.0);
        }
        total
    }

    /// `None`: there was no log-probability.
    fn evaluation(self) -> Option<Evaluation> {
        let Total { sum, count, bytes } = self;
        (count > 0).then(|| Evaluation { loss: sum / count as f64, tokens: count, bytes })
    }
}

/// Passes the log-probabilities of the target tokens of `windows` to `take`, in token order. Returns their number of text
/// bytes.
fn each_log_prob(
    model: &Model,
    tokens: &Tokens,
    windows: &[Range<u64>],
    tokenizer: &Tokenizer,
    max_rows: u64,
    mut take: impl FnMut(f32),
) -> Result<u64, Error> {
    let (mut bytes, mut rest) = (0u64, windows);
    while !rest.is_empty() {
        let (pass, others) = rest.split_at(windows_within(rest, max_rows));
        rest = others;
        let pass = pass.iter().map(|w| tokens.window(w.clone())).collect::<Result<Vec<_>, _>>()?;
        for window in &pass {
            let ids: Vec<u32> = window.targets.iter().flatten().copied().collect();
            bytes += tokenizer.text_bytes(&ids);
        }
        window_log_probs(model, pass)?.into_iter().flatten().for_each(&mut take);
    }
    Ok(bytes)
}

/// The log-probability of each target of each window, in token order, from one forward pass over all windows. The
/// windows do not attend to each other; no bit depends on how they are divided into calls.
///
/// # Errors
/// An id outside the vocabulary; a document longer than the context; logits that are not finite.
pub fn window_log_probs(
    model: &Model,
    windows: impl IntoIterator<Item = TokenWindow>,
) -> Result<Vec<Vec<f32>>, model::Error> {
    let examples: Vec<TrainingExample> = windows.into_iter().map(TrainingExample::from).collect();
    let values = objective::evaluate(model, &examples, &mut 0.0)?;
    let mut at = 0;
    let of_example = |example: &TrainingExample| {
        let rows = at..at + example.targets.len();
        at = if faults::on(Fault::ScoresBeginWithPass) { 0 } else { rows.end };
        values[rows].iter().flatten().map(|value| value.log_prob).collect()
    };
    Ok(examples.iter().map(of_example).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_are_added_in_token_order_on_any_number_of_processes() {
        // 2^53 + 1 is not an f64, so the sum of these depends on its order
        let log_probs = [-9_007_199_254_740_992f32, -1.0, -1.0];
        let parts = |cuts: &[usize]| {
            let message = |cut: &[usize]| {
                let own = &log_probs[cut[0]..cut[1]];
                let values = own.iter().flat_map(|log_prob| log_prob.to_le_bytes());
                (own.len() as u64).to_le_bytes().into_iter().chain(values).collect()
            };
            Total::of_messages(&cuts.windows(2).map(message).collect::<Vec<_>>()).evaluation().unwrap()
        };
        let want = Evaluation { loss: 9_007_199_254_740_992.0 / 3.0, tokens: 3, bytes: 3 };
        for cuts in [&[0, 3][..], &[0, 1, 3], &[0, 2, 3], &[0, 1, 1, 2, 3]] {
            assert_eq!(parts(cuts), want, "{cuts:?}");
        }
        #[cfg(feature = "faults")]
        assert_ne!(faults::with(Fault::LossSummedByProcess, || parts(&[0, 1, 3])), want);
        assert_eq!(Total::of_messages(&[vec![0; 8], vec![0; 8]]).evaluation(), None);
    }
}
