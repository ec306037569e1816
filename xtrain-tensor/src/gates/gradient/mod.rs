//! Gradients: the reference in f64 against finite differences, at the tolerances of PyTorch's
//! gradcheck, and the f32 and bf16 operations against the reference in f64.
mod attention;
mod check;
mod f64;
mod graph;
mod linear;
mod loss;
mod pointwise;

pub(super) use attention::attention;
pub(super) use check::Sample;
pub(super) use linear::{linear, linear_add};
pub(super) use loss::cross_entropy;
pub(super) use pointwise::{add, embedding, gather_rows, repeat_kv, rms_norm, rope_rows, silu_mul};
