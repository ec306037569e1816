//! The interface between operations and devices: one method per operation.
use std::fmt;

use crate::dtype::Dtype;
use crate::error::Result;
use crate::operands::{
    AdamWScalars, Affine, AttnMask, AttnSaved, GainGradient, Heads, LogProb, LossRows, LossValues, Norm,
    Outcome, Packer, QuantFormat, RopeArgs, SampleRing, SampleRow, Samples, SlotRange, UnrotatedHeads,
    Update, Updated, Weight,
};
use crate::tensor::{Tensor, Tensors};

/// The operations that a backend implements.
///
/// Each method implements the operation of the same name in [`crate::ops`], whose documentation states the formula
/// and the order of arithmetic. The operation checks shapes, dtypes and indices before it calls the method. A backend
/// checks that its operands are on its own device, and returns an error if it has no kernel for them.
///
/// This trait, [`RowOps`] and [`SharedOps`] have no default bodies: an operation that a backend lacks does not compile.
pub(crate) trait Backend: RowOps + SharedOps {
    fn cast(&self, x: &Tensor, dtype: Dtype) -> Result<Tensor>;
    fn accumulate(&self, a: &mut Tensor, b: &Tensor) -> Result<()>;
    fn silu_mul(&self, gate: &Tensor, up: &Tensor, out: Dtype) -> Result<Tensor>;
    fn silu_mul_backward(&self, gate: &Tensor, up: &Tensor, dy: &Tensor, out: Dtype) -> Result<[Tensor; 2]>;
    fn first_non_finite(&self, xs: &[&Tensor]) -> Result<Option<usize>>;

    fn rms_norm(&self, x: &Tensor, norm: Norm<'_>, out: Dtype) -> Result<Tensor>;
    fn rms_norm_backward(
        &self,
        x: &Tensor,
        norm: Norm<'_>,
        dy: &Tensor,
        dw: &mut Tensor,
        samples: &Samples,
        onto: Option<Tensor>,
    ) -> Result<Tensor>;

    fn rope_rows(&self, x: &Tensor, rope: RopeArgs<'_>, out: Dtype) -> Result<Tensor>;
    fn rope_backward(&self, dy: &Tensor, rope: RopeArgs<'_>) -> Result<Tensor>;
    fn norm_rope(&self, x: &Tensor, norm: Norm<'_>, rope: RopeArgs<'_>) -> Result<Tensor>;
    /// The samples count the rows of `x [N, H, hd]`.
    fn norm_rope_backward(
        &self,
        x: &Tensor,
        norm: Norm<'_>,
        rope: RopeArgs<'_>,
        dy: &Tensor,
        gain: GainGradient<'_>,
        out: Dtype,
    ) -> Result<Tensor>;

    /// Packs `w [out, in]` for products in `dtype`, f32 or bf16.
    fn pack(&self, w: &Tensor, dtype: Dtype) -> Result<Weight>;
    /// Packs each of `ws` for the forward and, if the backend has its own layout for it, for the backward.
    fn pack_for_training(&self, ws: &[&Tensor], dtype: Dtype) -> Result<Vec<Weight>>;
    /// Creates a packer of a matrix `[out, in]` whose values arrive in pieces.
    fn packer(&self, shape: [usize; 2], dtype: Dtype) -> Result<Box<dyn Packer>>;
    /// A packer of the blocks of a quantized matrix, for products in f32. Its rows are whole blocks.
    fn quantized_packer(&self, shape: [usize; 2], format: QuantFormat) -> Result<Box<dyn Packer>>;
    /// Bytes of what [`Backend::quantized_packer`] packs. `None`: the blocks are expanded.
    fn quantized_bytes(&self, shape: [usize; 2], format: QuantFormat) -> Option<usize>;

    fn linear(&self, x: &Tensor, w: Affine<'_>, out: Dtype) -> Result<Tensor>;
    fn linear_add(&self, h: &Tensor, x: &Tensor, w: Affine<'_>) -> Result<Tensor>;
    fn linear_backward_input(&self, dys: &[&Tensor], ws: &[&Weight]) -> Result<Tensor>;
    fn linear_backward_weight(
        &self,
        dw: &mut Tensor,
        dy: &Tensor,
        x: &Tensor,
        samples: &Samples,
    ) -> Result<()>;
    fn linear_backward_bias(&self, db: &mut Tensor, dy: &Tensor, samples: &Samples) -> Result<()>;

    fn attention(&self, qkv: [&Tensor; 3], heads: Heads, mask: &AttnMask<'_>) -> Result<(Tensor, Tensor)>;
    /// `k` and `v` are `[S, nkv, words]` u32.
    fn int8_attention(&self, qkv: [&Tensor; 3], heads: Heads, mask: &AttnMask<'_>) -> Result<Tensor>;
    /// `dy` is in the dtype of `q`.
    fn attention_backward(
        &self,
        saved: &AttnSaved<'_>,
        dy: &Tensor,
        heads: Heads,
        mask: &AttnMask<'_>,
    ) -> Result<[Tensor; 3]>;

    fn embedding(&self, w: &Tensor, id: &[u32], dtype: Dtype) -> Result<Tensor>;
    fn weight_rows(&self, w: &Weight, id: &[u32]) -> Result<Tensor>;
    fn embedding_backward(&self, dw: &mut Tensor, id: &[u32], dy: &Tensor) -> Result<()>;

    /// One entry per row; `None` for a row without a target.
    fn cross_entropy(&self, x: &Tensor, head: &Weight, rows: &LossRows<'_>) -> Result<Vec<Option<LogProb>>>;
    /// As [`Backend::cross_entropy`]. Also returns the kept set of each row with a target that does not keep all.
    fn cross_entropy_kept(&self, x: &Tensor, head: &Weight, rows: &LossRows<'_>) -> Result<LossValues>;
    /// As [`Backend::cross_entropy`]. Also returns `dx`, and adds the gradient of the head to `dhead`.
    fn cross_entropy_backward(
        &self,
        x: &Tensor,
        head: &Weight,
        rows: &LossRows<'_>,
        dhead: &mut Tensor,
    ) -> Result<(Vec<Option<LogProb>>, Tensor)>;
    fn log_prob(&self, logits: &Tensor, target: &[u32]) -> Result<Vec<LogProb>>;
}

/// Operations that copy or add whole rows. Both host backends implement them alike (`reference/rows.rs`).
pub(crate) trait RowOps {
    fn cat_seq(&self, a: &Tensor, b: &Tensor) -> Result<Tensor>;
    fn repeat_kv(&self, x: &Tensor, n_heads: usize) -> Result<Tensor>;
    fn repeat_kv_backward(&self, dy: &Tensor, n_kv_heads: usize) -> Result<Tensor>;
    fn gather_rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor>;
    fn scatter_rows(&self, pool: &mut Tensor, x: &Tensor, slots: &[u32]) -> Result<()>;
    fn copy_slots(&self, to: &mut Tensor, from: &Tensor, ranges: &[SlotRange]) -> Result<()>;
    fn copy_slots_within(&self, pool: &mut Tensor, range: SlotRange) -> Result<()>;
}

/// Further operations that both host backends implement alike ([`crate::host`]). A GPU has its own kernels.
pub(crate) trait SharedOps {
    fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor>;
    /// The positions of `rope` are `first`, `first + 1`, ...
    fn rope_at(&self, x: &Tensor, rope: RopeArgs<'_>, first: u32) -> Result<Tensor>;
    fn rope_pos(&self, x: &Tensor, rope: RopeArgs<'_>) -> Result<Tensor>;
    fn write_heads(&self, new: &UnrotatedHeads<'_>, pools: [&mut Tensor; 2]) -> Result<Tensor>;
    fn linears(&self, x: &Tensor, ws: &[Affine<'_>]) -> Result<Tensors>;
    fn swiglu(&self, x: &Tensor, gate_up: [Affine<'_>; 2]) -> Result<Tensor>;
    /// `[y, gate, up]`.
    fn swiglu_kept(&self, x: &Tensor, gate_up: [Affine<'_>; 2]) -> Result<[Tensor; 3]>;
    fn decode_attention(&self, qkv: [&Tensor; 3], heads: Heads, mask: &AttnMask<'_>) -> Result<Tensor>;
    /// `[N, H, hd]` → `[N, H, words]` u32.
    fn quantize_heads(&self, x: &Tensor) -> Result<Tensor>;

    fn sample_rows(&self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<Vec<Outcome>>;
    /// Creates the state of a sampler of up to `rows` rows and `steps` steps.
    fn sample_ring(&self, rows: usize, steps: usize) -> Result<Box<dyn SampleRing>>;
    fn adamw_all(&self, all: &mut [Update<'_>], max_norm: f32, s: &AdamWScalars) -> Result<Updated>;
    fn sum_of_squares(&self, g: &Tensor) -> Result<f32>;
}

/// A backend whose tensors are in host memory.
pub(crate) trait HostBackend: Backend + Clone + fmt::Debug + Send + 'static {
    /// The *sum32* of the squares of each row, for all rows of all gradients in order.
    fn row_squares(&self, gs: &[&Tensor]) -> Result<Vec<f32>>;
    /// The *sum32* of `x`.
    fn sum(&self, x: &[f32]) -> f32;
    /// Updates all parameters with gradients scaled by `clip`. Returns whether all updated values are finite.
    fn update(&self, all: &mut [Update<'_>], clip: f32, s: &AdamWScalars) -> Result<bool>;
}
