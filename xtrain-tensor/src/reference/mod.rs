//! The reference backend: a slow and simple implementation of docs/numerics.md. Every fast path must equal it bit for
//! bit.
//!
//! It is generic over a [`Mode`], so the same code also runs in f64 for gradient checks.
mod attention;
mod backend;
mod linear;
mod loss;
mod mode;
mod norm;
mod optim;
mod pack;
mod pointwise;
mod reduce;
mod rows;
mod sample;

#[cfg(test)]
pub(crate) use attention::AttentionOutput;
pub(crate) use attention::{AttentionSaved, attention, attention_backward};
pub(crate) use linear::{linear, linear_db, linear_dw, linear_dx};
pub(crate) use loss::{RowLoss, dlogits, log_prob};
pub(crate) use mode::{Ampere, Bf16, F32, Hopper, Mma, Mode, fma_flushed};
#[cfg(test)]
pub(crate) use mode::{Plain, Scalar};
pub(crate) use norm::{rms_norm, rms_norm_backward};
pub(crate) use optim::{adamw, row_squares};
pub(crate) use pointwise::{rotate, rotate_back, silu_mul, silu_mul_backward};
pub(crate) use reduce::sum32;
#[cfg(test)]
pub(crate) use reduce::{dot, lse};
pub(crate) use sample::sample;
use sample::{integer_weights, largest, removed};

#[cfg(test)]
pub(crate) use crate::operands::Heads;
