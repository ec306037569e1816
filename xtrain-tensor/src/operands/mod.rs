//! Operand types of the operations, other than plain tensors. They depend on tensors and devices only, so that every
//! backend can import them.
mod adamw;
mod attn_mask;
mod heads;
mod int8_head;
pub(crate) mod loss;
mod norm;
mod packing;
mod rope_table;
mod samples;
mod sampling;
mod weight;

pub use adamw::{AdamWScalars, Update, Updated};
pub use attn_mask::{AttnMask, SlotRange, Slots};
pub(crate) use heads::Heads;
pub use heads::{AttnSaved, QkNorm, UnrotatedHeads};
pub use int8_head::Int8Head;
pub use loss::{KeptSet, LogProb, LossRows, LossValues, Target, max_loss_logits};
pub use norm::{GainGradient, Norm};
pub(crate) use packing::{AllRows, Lines, Packer, RowSink};
pub(crate) use packing::{BLOCK as QUANT_BLOCK, HALF as QUANT_HALF};
pub use packing::{CodeBits, Piece, QuantBlock, QuantFormat};
pub use rope_table::{RopeArgs, RopeTable};
pub use samples::Samples;
pub(crate) use sampling::{MAX_LISTS, SampleRing};
pub use sampling::{Outcome, SampleFailure, SampleRow, Sampled, StepLists};
pub(crate) use weight::PackedMatrix;
pub use weight::{Affine, Weight};
