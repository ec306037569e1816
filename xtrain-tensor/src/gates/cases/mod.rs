//! The cases of every operation: ugly sizes, ugly values, f32 and bf16.
mod attention;
mod fused;
mod heads;
mod input_gradients;
mod int8;
mod linear;
mod loss;
mod new_rows;
mod norm;
mod normed;
mod optim;
mod pointwise;
mod rope;
mod rows;
mod sample;
mod tables;

pub(super) use attention::{attention, attention_backward, decode_attention, int8_attention};
pub(super) use fused::write_heads;
pub(super) use heads::{norm_rope, norm_rope_backward};
pub(super) use input_gradients::{linear_backward_rounded, linear_backward_swiglu};
pub(super) use int8::quantize_heads;
pub(super) use linear::{
    linear, linear_add, linear_backward_bias, linear_backward_input, linear_backward_weight,
};
pub(super) use loss::{cross_entropy, cross_entropy_backward, cross_entropy_kept, log_prob};
pub(super) use new_rows::append_attention;
pub(super) use norm::{rms_norm, rms_norm_backward};
pub(super) use normed::{linear_add_norm, linears, norm_linears, norm_swiglu, swiglu, swiglu_kept};
pub(super) use optim::{adamw_all, sum_of_squares};
pub(super) use pointwise::{accumulate, add, first_non_finite, silu_mul, silu_mul_backward};
pub(super) use rope::{rope, rope_at, rope_backward, rope_pos, rope_rows};
pub(super) use rows::{copy_slots, copy_slots_within, gather_rows, gather_rows_backward, scatter_rows};
pub(super) use sample::sample_rows;
pub(super) use tables::{cat_seq, embedding, embedding_backward, repeat_kv, repeat_kv_backward, weight_rows};

use std::ops::Range;

use crate::Dtype;
use crate::ops::Samples;

/// The compute dtypes.
const DTYPES: [Dtype; 2] = [Dtype::F32, Dtype::BF16];

/// Lengths of training examples: numbers of rows around every chunk of a sum over rows.
const SAMPLES: [&[usize]; 6] =
    [&[1, 33, 5], &[255, 1, 3], &[31, 32, 65, 7], &[256, 2], &[1, 1, 1, 1], &[257, 1, 70]];

/// The range of rows of the training examples `part`, and their lengths.
fn part_of(lengths: &[usize], part: &Range<usize>) -> (Range<usize>, Samples) {
    let start = lengths[..part.start].iter().sum::<usize>();
    let taken = &lengths[part.clone()];
    (start..start + taken.iter().sum::<usize>(), Samples::of_lengths(taken.iter().copied()))
}
