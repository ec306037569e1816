//! Embedding lookup.
use super::{At, Gpu, Grid, args};
use crate::{Dtype, Result, Tensor};

/// `y[n] = w[id[n]]`. An f32 table is rounded if `dtype` is bf16. The ids have been checked.
pub(crate) fn embedding(gpu: &Gpu, w: &Tensor, id: &[u32], dtype: Dtype) -> Result<Tensor> {
    rows(gpu, w, gpu.indices(id)?, id.len(), dtype)
}

/// [`embedding`] for `n` ids in device memory. A bf16 table is widened.
pub(super) fn rows(gpu: &Gpu, w: &Tensor, id: At, n: usize, dtype: Dtype) -> Result<Tensor> {
    let c = w.width();
    let y = Tensor::on_gpu(gpu, &[n, c], Dtype::F32)?;
    let (kernel, table) = match (w.dtype(), dtype) {
        (Dtype::BF16, _) => ("table_rows_bf16", Dtype::BF16),
        (_, Dtype::BF16) => ("embedding_bf16", Dtype::F32),
        _ => ("embedding_f32", Dtype::F32),
    };
    let args = args![w.at(gpu, table)?, id, y.at(gpu, Dtype::F32)?, c];
    // SAFETY: w is [V, c], ids are below V, y is [N, c]; one block per id.
    unsafe { gpu.launch(kernel, Grid::blocks([n, 1, 1], 256), args)? };
    Ok(y)
}

/// `dw[id[n]] += dy[n]`, rows in ascending order. The ids have been checked.
pub(crate) fn embedding_backward(gpu: &Gpu, dw: &mut Tensor, id: &[u32], dy: &Tensor) -> Result<()> {
    let c = dw.width();
    let args = args![dw.at_mut(gpu, Dtype::F32)?, gpu.indices(id)?, dy.at(gpu, Dtype::F32)?, id.len(), c];
    // SAFETY: dw [V, c], ids below V, dy [N, c].
    unsafe { gpu.launch("embedding_backward_f32", Grid::over(c, 32), args) }
}
