//! One file an operation: its contract, its checks, its forward and backward.
mod add;
mod attention;
mod cross_entropy;
mod draws;
mod embedding;
mod finite;
mod fused;
mod heads;
mod kv;
mod linear;
mod log_prob;
mod normed;
mod optim;
mod packing;
mod rms_norm;
mod rope;
mod rows;
mod sample;
mod samples;
mod silu_mul;
mod weight;

pub use add::{accumulate, add};
pub use attention::{Saved, attention, attention_backward, decode_attention};
pub(crate) use cross_entropy::blocks as loss_blocks;
pub use cross_entropy::{LossRows, Target, cross_entropy, cross_entropy_backward};
pub use draws::DeviceSampler;
pub use embedding::{embedding, embedding_backward, weight_rows};
pub use finite::{all_finite, first_non_finite};
pub use fused::{UnrotatedHeads, add_rms_norm, write_heads};
pub use heads::{norm_rope, norm_rope_backward};
pub use kv::{cat_seq, repeat_kv, repeat_kv_backward};
pub use linear::{
    linear, linear_add, linear_add_norm, linear_backward_bias, linear_backward_input, linear_backward_weight,
};
pub use log_prob::{LogProb, log_prob};
pub use normed::{Affine, linears, norm_linears, norm_swiglu, swiglu};
pub use optim::{AdamWScalars, Update, Updated, adamw, adamw_all, global_norm, sum_of_squares};
pub use packing::{Packing, Piece};
pub use rms_norm::{rms_norm, rms_norm_backward};
pub use rope::{RopeAngles, rope, rope_at, rope_backward, rope_pos, rope_rows};
pub use rows::{SlotRange, copy_slots, copy_slots_within, gather_rows, scatter_rows};
pub use sample::{SampleFailure, SampleRow, Sampled, sample_rows};
pub use samples::Samples;
pub use silu_mul::{silu_mul, silu_mul_backward};
pub use visible::{AttnMask, Slots};
pub use weight::Weight;

mod visible;

use std::borrow::Cow;

use crate::{Dtype, Result, Tensor, from_bf16};

/// The values of a floating-point tensor, widened if they are bf16.
pub(crate) fn widened(x: &Tensor) -> Result<Cow<'_, [f32]>> {
    match x.dtype() {
        Dtype::BF16 => Ok(Cow::Owned(x.data::<half::bf16>()?.iter().map(|&x| from_bf16(x)).collect())),
        _ => Ok(Cow::Borrowed(x.data::<f32>()?)),
    }
}

/// The shapes of operands, for an error.
pub(crate) fn shapes(xs: &[&Tensor]) -> Vec<Vec<usize>> {
    xs.iter().map(|x| x.shape().to_vec()).collect()
}
