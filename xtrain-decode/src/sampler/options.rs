//! The sampling options and their ranges.
use super::SampleError;

/// How a token is chosen. The default draws from the whole softmax.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleOptions {
    /// Divides the logits: 0, which takes the largest, or from [`SampleOptions::COLDEST`].
    pub temperature: f32,
    /// Keeps so many of the largest, >= 1; of ties the lower indices.
    pub top_k: Option<usize>,
    /// Removes the smallest whose probabilities add up to at most 1 - top_p; in (0, 1].
    pub top_p: Option<f32>,
    /// Keeps the tokens with at least so much of the largest probability; in [0, 1].
    pub min_p: Option<f32>,
    /// Divides positive and multiplies other logits of ids that were seen before; finite and > 0.
    pub repetition_penalty: Option<f32>,
}

impl Default for SampleOptions {
    fn default() -> SampleOptions {
        SampleOptions { temperature: 1.0, top_k: None, top_p: None, min_p: None, repetition_penalty: None }
    }
}

impl SampleOptions {
    /// The lowest temperature above 0: any logit below 10^8 can be divided by it. At 10^-6 all but the
    /// largest logits have no weight already.
    pub const COLDEST: f32 = 1e-30;

    /// The largest logit, always.
    pub fn greedy() -> SampleOptions {
        SampleOptions { temperature: 0.0, ..SampleOptions::default() }
    }

    /// Whether every option is in its range.
    ///
    /// # Errors
    /// The first that is not: its name, its range and what it is.
    pub fn check(&self) -> Result<(), SampleError> {
        let require = |holds: bool, field, want, got: String| {
            if holds { Ok(()) } else { Err(SampleError::Option { field, want, got }) }
        };
        let t = self.temperature;
        let divides = t == 0.0 || t >= Self::COLDEST && t.is_finite();
        require(divides, "temperature", "0, or a finite number >= 1e-30", format!("{t:?}"))?;
        if let Some(k) = self.top_k {
            require(k >= 1, "top_k", "at least 1", k.to_string())?;
        }
        if let Some(p) = self.top_p {
            require(p > 0.0 && p <= 1.0, "top_p", "a number in (0, 1]", p.to_string())?;
        }
        if let Some(p) = self.min_p {
            require((0.0..=1.0).contains(&p), "min_p", "a number in [0, 1]", p.to_string())?;
        }
        if let Some(p) = self.repetition_penalty {
            require(p.is_finite() && p > 0.0, "repetition_penalty", "a finite number > 0", p.to_string())?;
        }
        Ok(())
    }

    /// Whether z is x for every row: no penalty, temperature 1, no filter.
    pub(super) fn leave_logits_alone(&self) -> bool {
        *self == SampleOptions::default()
    }
}
