//! The scores of `xtrain score` and their totals.
use serde::Serialize;

use super::line::Line;
use crate::report::units;
use crate::tensor::math::exp_f64;

/// The score of a line.
#[derive(Serialize)]
pub(super) struct Score {
    sum_logprob: f64,
    /// `None`: there are no targets.
    mean_logprob: Option<f64>,
    tokens: usize,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<f32>>,
}

/// The totals of the scored lines.
#[derive(Default)]
pub(super) struct Totals {
    pub(super) lines: usize,
    tokens: usize,
    sum: f64,
}

impl Totals {
    /// Adds the score of a line.
    pub(super) fn add(&mut self, score: &Score) {
        self.lines += 1;
        self.tokens += score.tokens;
        self.sum += score.sum_logprob;
    }

    /// What a command prints at its end.
    pub(super) fn text(&self, lines: &[Line]) -> String {
        let count = |is: fn(&Line) -> bool| lines.iter().filter(|line| is(line)).count() as u64;
        let mut text = String::new();
        for (count, what) in [
            (count(|line| line.split), "longer than the context: split into windows"),
            (count(|line| line.truncated), "longer than the context: truncated"),
        ] {
            if count > 0 {
                text += &format!("note: {} {what}\n", units::many(count, "line"));
            }
        }
        let lines = units::many(self.lines as u64, "line");
        if self.tokens == 0 {
            return text + &format!("{lines}, no target token");
        }
        let (loss, targets) =
            (-self.sum / self.tokens as f64, units::many(self.tokens as u64, "target token"));
        text + &format!(
            "{lines}, {targets}, loss {loss:.4}, perplexity {}",
            units::perplexity(exp_f64(loss), 3)
        )
    }
}

impl Score {
    /// The score of a line. The sum is in f64 and in token order.
    pub(super) fn new(line: &Line, logprobs: Vec<f32>, totals_only: bool) -> Score {
        let tokens = logprobs.len();
        let sum_logprob = logprobs.iter().fold(0.0, |sum, &logprob| sum + f64::from(logprob));
        Score {
            sum_logprob,
            mean_logprob: (tokens > 0).then(|| sum_logprob / tokens as f64),
            tokens,
            truncated: line.truncated,
            target_ids: (!totals_only).then(|| target_ids(line)),
            logprobs: (!totals_only).then_some(logprobs),
        }
    }
}

/// The targets of a line, in the order of its tokens.
fn target_ids(line: &Line) -> Vec<u32> {
    line.windows.iter().flat_map(|window| window.targets.iter().flatten().copied()).collect()
}
