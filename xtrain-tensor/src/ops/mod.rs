//! The operations. Each file holds the contract and the checks of an operation and of its backward.
mod add;
mod attention;
mod cast;
mod checks;
mod cross_entropy;
mod device_sampler;
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
mod silu_mul;
mod weight;

pub use add::{accumulate, add};
pub use attention::{attention, attention_backward, decode_attention};
pub use cross_entropy::{cross_entropy, cross_entropy_backward, cross_entropy_kept};
pub use device_sampler::DeviceSampler;
pub use embedding::{embedding, embedding_backward, weight_rows};
pub use finite::first_non_finite;
pub use fused::write_heads;
pub use heads::{norm_rope, norm_rope_backward};
pub use kv::{cat_seq, repeat_kv, repeat_kv_backward};
pub use linear::{linear, linear_add, linear_backward_bias, linear_backward_input, linear_backward_weight};
pub use log_prob::log_prob;
pub use normed::{linears, swiglu};
pub use optim::{adamw_all, sum_of_squares};
pub use packing::WeightPacker;
pub use rms_norm::{rms_norm, rms_norm_backward};
pub use rope::{RopeAngles, rope, rope_at, rope_backward, rope_pos, rope_rows};
pub use rows::{copy_slots, copy_slots_within, gather_rows, scatter_rows};
pub use sample::sample_rows;
pub use silu_mul::{silu_mul, silu_mul_backward};

pub use operands::{
    AdamWScalars, Affine, AttnMask, AttnSaved, KeptSet, LogProb, LossRows, LossValues, Norm, Outcome, Piece,
    QkNorm, RopeArgs, SampleFailure, SampleRow, Sampled, Samples, SlotRange, Slots, StepLists, Target,
    UnrotatedHeads, Update, Updated, Weight,
};

use crate::operands;
