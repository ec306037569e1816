//! Rows of a table by index.
use super::checks::{check_index, misfit, refuse_dtype};
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::operands::Weight;
use crate::tensor::Tensor;

/// `y[n] = w[id[n]]` in f32. If `dtype` is bf16, the row is rounded to bf16 and widened.
///
/// `w [V, C]` f32, `id [N]` → `[N, C]` f32.
///
/// # Errors
/// [`Error::Index`](crate::Error::Index) for an id that is not below `V`, [`Error::Shape`](crate::Error::Shape) unless
/// `w` is a matrix, [`Error::Dtype`](crate::Error::Dtype) unless it is f32.
pub fn embedding(w: &Tensor, id: &[u32], dtype: Dtype) -> Result<Tensor> {
    let &[v, _] = w.shape() else {
        return Err(misfit("embedding", "w [V, C]", &[w]));
    };
    refuse_dtype(w.dtype() != Dtype::F32, "embedding", "w in f32", w.dtype())?;
    check_index("embedding", "id", v, id)?;
    backend(w.device()).embedding(w, id, dtype)
}

/// [`embedding`] of the matrix that `w` was packed from, in the dtype of `w`: `[N, in]` f32.
///
/// # Errors
/// [`Error::Index`](crate::Error::Index) for an id that is not below `out`;
/// [`Error::Argument`](crate::Error::Argument) for bf16 panels that were not packed as a
/// [table](super::WeightPacker::table): they hold denormals as zeros.
pub fn weight_rows(w: &Weight, id: &[u32]) -> Result<Tensor> {
    check_index("weight_rows", "id", w.out_features(), id)?;
    backend(w.device()).weight_rows(w, id)
}

/// `dw[id[n]] += dy[n]`, rows in ascending order. All f32.
///
/// # Errors
/// As [`embedding`]; [`Error::Shape`](crate::Error::Shape) unless `dw` is `[V, C]` and `dy` `[N, C]`.
pub fn embedding_backward(dw: &mut Tensor, id: &[u32], dy: &Tensor) -> Result<()> {
    const OP: &str = "embedding_backward";
    let (&[v, _], true) = (dw.shape(), dy.shape() == [id.len(), dw.width()]) else {
        return Err(misfit(OP, "dw [V, C], dy [N, C]", &[dw, dy]));
    };
    check_index(OP, "id", v, id)?;
    backend(&dw.device().clone()).embedding_backward(dw, id, dy)
}
