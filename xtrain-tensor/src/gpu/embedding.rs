//! Rows of a table by index.
use super::{Gpu, Grid, args};
use crate::{Dtype, Result, Tensor};

/// `y[n] = w[id[n]]`, rounded where `dtype` is bf16; ids have been checked.
pub(crate) fn embedding(gpu: &Gpu, w: &Tensor, id: &[u32], dtype: Dtype) -> Result<Tensor> {
    let c = w.width();
    let y = Tensor::on_gpu(gpu, &[id.len(), c], Dtype::F32)?;
    let id_at = gpu.indices(id)?;
    let kernel = if dtype == Dtype::BF16 { "embedding_bf16" } else { "embedding_f32" };
    let args = args![w.at(gpu, Dtype::F32)?, id_at, y.at(gpu, Dtype::F32)?, c as u32];
    // SAFETY: w [V, c], ids below V, y [N, c], a block for each id.
    unsafe { gpu.launch(kernel, Grid::blocks([id.len(), 1, 1], 256), args)? };
    Ok(y)
}

/// `y[n] = w[id[n]]`, widened where `w` is bf16; ids have been checked.
pub(crate) fn table_rows(gpu: &Gpu, w: &Tensor, id: &[u32]) -> Result<Tensor> {
    if w.dtype() == Dtype::F32 {
        return embedding(gpu, w, id, Dtype::F32);
    }
    let c = w.width();
    let y = Tensor::on_gpu(gpu, &[id.len(), c], Dtype::F32)?;
    let args = args![w.at(gpu, Dtype::BF16)?, gpu.indices(id)?, y.at(gpu, Dtype::F32)?, c as u32];
    // SAFETY: w [V, c] in bf16, ids below V, y [N, c], a block for each id.
    unsafe { gpu.launch("table_rows_bf16", Grid::blocks([id.len(), 1, 1], 256), args)? };
    Ok(y)
}

/// `dw[id[n]] += dy[n]`, rows in rising order; ids have been checked.
pub(crate) fn embedding_backward(gpu: &Gpu, dw: &mut Tensor, id: &[u32], dy: &Tensor) -> Result<()> {
    let c = dw.width();
    let id_at = gpu.indices(id)?;
    let (rows, dy_at) = (id.len() as u32, dy.at(gpu, Dtype::F32)?);
    let args = args![dw.at_mut(gpu, Dtype::F32)?, id_at, dy_at, rows, c as u32];
    // SAFETY: dw [V, c], ids below V, dy [N, c].
    unsafe { gpu.launch("embedding_backward_f32", Grid::over(c, 32), args) }
}
