//! The sampling options and their ranges.
use super::error::SampleError;

/// How a token is sampled. The default samples from the whole softmax.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleOptions {
    /// Softmax temperature: 0 (greedy) or at least [`SampleOptions::COLDEST`].
    pub temperature: f32,
    /// Keeps the `k` most likely tokens, at least 1. Of equal logits the lower ids are kept. `None`: keeps all.
    pub top_k: Option<usize>,
    /// Removes the least likely tokens whose probabilities add up to at most `1 - top_p`. In (0, 1]. `None`: keeps
    /// all.
    pub top_p: Option<f32>,
    /// Keeps tokens with at least this fraction of the largest probability. In [0, 1]. `None`: keeps all.
    pub min_p: Option<f32>,
    /// Divides the positive logits of ids in prompt and output by this value, and multiplies the others. Finite and
    /// above 0. `None`: no penalty.
    pub repetition_penalty: Option<f32>,
}

impl Default for SampleOptions {
    fn default() -> SampleOptions {
        SampleOptions { temperature: 1.0, top_k: None, top_p: None, min_p: None, repetition_penalty: None }
    }
}

impl SampleOptions {
    /// The lowest temperature above 0: any logit below 10^8 can be divided by it. At 10^-6 all but the largest logits
    /// have weight 0 already.
    pub const COLDEST: f32 = 1e-30;

    /// Greedy sampling: always the largest logit.
    pub fn greedy() -> SampleOptions {
        SampleOptions { temperature: 0.0, ..SampleOptions::default() }
    }

    /// Sampling with filters as flags and files write them: `top_k` 0, `top_p` 1 and `min_p` 0 keep all tokens. Other
    /// values are kept as they are, for [`SampleOptions::check`].
    pub fn filtered(temperature: f32, top_k: usize, top_p: f32, min_p: f32) -> SampleOptions {
        SampleOptions {
            temperature,
            top_k: (top_k > 0).then_some(top_k),
            top_p: (top_p != 1.0).then_some(top_p),
            min_p: (min_p != 0.0).then_some(min_p),
            repetition_penalty: None,
        }
    }

    /// Checks that every option is in its range.
    ///
    /// # Errors
    /// [`SampleError::Option`] for the first option that is not.
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

    /// The processed logits equal the given ones for every row: no penalty, temperature 1, no filter.
    pub(super) fn leaves_logits_unchanged(&self) -> bool {
        *self == SampleOptions::default()
    }
}
