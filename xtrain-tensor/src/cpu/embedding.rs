//! Rows of a table by index, and their gradient.
use super::pack::{Packed, PackedWeight};
use super::{Cpu, Disjoint, GRAIN, rows_per_part};
use crate::dtype::{Dtype, from_bf16, round_bf16};
use crate::error::{Error, Result};
use crate::operands::Weight;
use crate::tensor::Tensor;

const LINE: usize = 16;

/// `y[n] = w[id[n]]`, rounded to bf16 if `dtype` is bf16.
pub(super) fn embedding(cpu: &Cpu, w: &Tensor, id: &[u32], dtype: Dtype) -> Result<Tensor> {
    let (table, c) = (w.data::<f32>()?, w.width());
    let mut y = cpu.recycler.acquire::<f32>(id.len() * c);
    let rows = rows_per_part(c);
    cpu.pool.parts(&mut y, rows * c, |part, y| {
        for (&i, y) in id[part * rows..].iter().zip(y.chunks_exact_mut(c.max(1))) {
            let row = &table[i as usize * c..][..c];
            match dtype {
                Dtype::BF16 => y.iter_mut().zip(row).for_each(|(y, &x)| *y = round_bf16(x)),
                _ => y.copy_from_slice(row),
            }
        }
    });
    Tensor::new(w.device(), &[id.len(), c], y)
}

/// [`embedding`] of a weight without f32 master weights.
pub(super) fn weight_rows(cpu: &Cpu, w: &Weight, id: &[u32]) -> Result<Tensor> {
    let PackedWeight { matrix, exact_rows } = w.forward()?;
    if matches!(matrix, Packed::Bf16(_)) && exact_rows.is_none() {
        let got = "a weight without its denormals".into();
        return Err(Error::Argument { op: "weight_rows", want: "a weight packed as a table", got });
    }
    let c = w.in_features();
    let mut y = cpu.recycler.acquire::<f32>(id.len() * c);
    for (&i, y) in id.iter().zip(y.chunks_exact_mut(c)) {
        match exact_rows.as_ref().and_then(|rows| rows.get(&i)) {
            Some(row) => y.iter_mut().zip(row).for_each(|(y, &x)| *y = from_bf16(x)),
            None => matrix.column(i as usize, y),
        }
    }
    Tensor::new(w.device(), &[id.len(), c], y)
}

/// `dw[id[n]] += dy[n]`, rows in ascending order.
pub(super) fn embedding_backward(cpu: &Cpu, dw: &mut Tensor, id: &[u32], dy: &Tensor) -> Result<()> {
    let c = dw.width();
    let (dw, dy) = (Disjoint::new(dw.data_mut::<f32>()?), dy.data::<f32>()?);
    // split by columns, so that the rows added to one table row keep their order
    let share =
        c.div_ceil(if dy.len() < GRAIN { 1 } else { cpu.pool.threads() }).next_multiple_of(LINE).max(LINE);
    cpu.pool.run(c.div_ceil(share), |part| {
        let columns = part * share..c.min((part + 1) * share);
        for (&i, dy) in id.iter().zip(dy.chunks_exact(c)) {
            let row = i as usize * c;
            // SAFETY: these columns of all rows belong to this part alone; parts are disjoint.
            let dw = unsafe { dw.slice(row + columns.start..row + columns.end) };
            dw.iter_mut().zip(&dy[columns.clone()]).for_each(|(a, b)| *a += b);
        }
    });
    Ok(())
}
