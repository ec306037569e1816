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
    let (n, c) = (id.len(), dw.width());
    let [order, end] = rows_by_id(id);
    let (id, order, end) = (gpu.indices(id)?, gpu.indices(&order)?, gpu.indices(&end)?);
    let args = args![dw.at_mut(gpu, Dtype::F32)?, id, order, end, dy.at(gpu, Dtype::F32)?, c];
    // SAFETY: dw [V, c], ids below V, order and end [N] with values up to N, dy [N, c].
    unsafe { gpu.launch("embedding_backward_f32", Grid::blocks([n, c.div_ceil(128), 1], 128), args) }
}

/// The rows by id, those of one id in ascending order; and for the first row of each id the end of its rows in this
/// list, 0 for the others.
fn rows_by_id(id: &[u32]) -> [Vec<u32>; 2] {
    let mut order: Vec<u32> = (0..id.len() as u32).collect();
    order.sort_by_key(|&n| id[n as usize]);
    let (mut end, mut first) = (vec![0; id.len()], 0);
    for rows in order.chunk_by(|&a, &b| id[a as usize] == id[b as usize]) {
        end[first] = (first + rows.len()) as u32;
        first += rows.len();
    }
    [order, end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_an_id_keep_their_order() {
        assert_eq!(rows_by_id(&[7, 3, 7, 3, 1]), [vec![4, 1, 3, 0, 2], vec![1, 3, 0, 5, 0]]);
        assert_eq!(rows_by_id(&[]), [vec![], vec![]]);
    }
}
