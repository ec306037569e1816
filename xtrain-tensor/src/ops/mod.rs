//! The operations. Each file holds the contract and the checks of an operation and of its backward.
mod attention;
mod checks;
mod cross_entropy;
mod device_sampler;
mod elementwise;
mod embedding;
mod heads;
mod int8;
mod kv;
mod linear;
mod log_prob;
mod optim;
mod packing;
#[cfg(test)]
mod refusals;
mod rms_norm;
mod rope;
mod rows;
mod sample;

pub use attention::{attention, attention_backward, decode_attention};
pub use cross_entropy::{cross_entropy, cross_entropy_backward, cross_entropy_kept};
pub use device_sampler::DeviceSampler;
pub use elementwise::{accumulate, add, first_non_finite, silu_mul, silu_mul_backward};
pub use embedding::{embedding, embedding_backward, weight_rows};
pub use heads::{norm_rope, norm_rope_backward, write_heads};
pub use int8::{int8_attention, quantize_heads};
pub use kv::{cat_seq, repeat_kv, repeat_kv_backward};
pub use linear::{
    linear, linear_add, linear_backward_bias, linear_backward_input, linear_backward_weight, linears, swiglu,
    swiglu_kept,
};
pub use log_prob::log_prob;
pub use optim::{adamw_all, sum_of_squares};
pub use packing::WeightPacker;
pub use rms_norm::{rms_norm, rms_norm_backward};
pub use rope::{RopeAngles, rope, rope_at, rope_backward, rope_pos, rope_rows};
pub use rows::{copy_slots, copy_slots_within, gather_rows, gather_rows_backward, scatter_rows};
pub use sample::sample_rows;

pub use operands::{
    AdamWScalars, Affine, AttnMask, AttnSaved, CodeBits, GainGradient, Int8Head, KeptSet, LogProb, LossRows,
    LossValues, Norm, Outcome, Piece, QkNorm, QuantBlock, QuantFormat, RopeArgs, SampleFailure, SampleRow,
    Sampled, Samples, SlotRange, Slots, StepLists, Target, UnrotatedHeads, Update, Updated, Weight,
};

use crate::operands;
