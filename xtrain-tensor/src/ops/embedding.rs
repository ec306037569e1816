//! Rows of a table by index.
use super::weight::{Layout, Source};
use super::{Weight, shapes};
use crate::cpu::{Disjoint, Packed};
use crate::dtype::from_bf16;
use crate::{Device, Dtype, Error, Result, Tensor, gpu, round_bf16};

/// Elements that one thread takes at a time.
const GRAIN: usize = 8192;

/// Elements of a line of cache.
const LINE: usize = 16;

/// `y[n] = w[id[n]]` in f32; with `dtype` bf16 the row of the bf16 copy, widened.
///
/// `w [V, C]` f32, `id [N]` → `[N, C]` f32.
///
/// # Errors
/// [`Error::Index`] for an id that is not below `V`, [`Error::Shape`] unless `w` is a matrix, [`Error::Dtype`]
/// unless it is f32.
pub fn embedding(w: &Tensor, id: &[u32], dtype: Dtype) -> Result<Tensor> {
    let &[v, c] = w.shape() else {
        return Err(Error::Shape { op: "embedding", want: "w [V, C]", got: shapes(&[w]) });
    };
    if w.dtype() != Dtype::F32 {
        return Err(Error::Dtype { op: "embedding", want: "w in f32", got: w.dtype() });
    }
    check("embedding", id, v)?;
    if let Device::Gpu(gpu) = w.device() {
        return gpu::embedding(gpu, w, id, dtype);
    }
    let (table, cpu) = (w.data::<f32>()?, w.device().as_cpu()?);
    let mut y = cpu.recycler.acquire::<f32>(id.len() * c);
    let rows = (GRAIN / c.max(1)).max(1);
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

/// [`embedding`] of the matrix that `w` was packed of, in the dtype of `w`: `[N, in]` f32.
///
/// # Errors
/// [`Error::Index`] for an id that is not below `out`; [`Error::Argument`] for bf16 panels that are not a
/// [table](super::Packing::table)'s, which do not know their denormals.
pub fn weight_rows(w: &Weight, id: &[u32]) -> Result<Tensor> {
    const OP: &str = "weight_rows";
    let exact = match w.source() {
        Source::Master(table) => return embedding(table, id, w.dtype()),
        Source::Alone { exact, .. } => exact,
    };
    check(OP, id, w.out_features())?;
    let c = w.in_features();
    let mut y = vec![0f32; id.len() * c];
    let rows = id.iter().zip(y.chunks_exact_mut(c));
    match (w.forward(), w.device()) {
        (Layout::Device(table), Device::Gpu(gpu)) => return gpu::embedding(gpu, table, id, w.dtype()),
        (Layout::Device(_), device) => {
            return Err(Error::Device { what: format!("want a weight on a GPU, got one on {device}") });
        }
        (Layout::Rows(table), _) => rows.for_each(|(&i, y)| y.copy_from_slice(&table[i as usize * c..][..c])),
        (Layout::Packed(Packed::Bf16(_)), _) if exact.is_none() => {
            let got = "a weight without its denormals".into();
            return Err(Error::Argument { op: OP, want: "a weight packed as a table", got });
        }
        (Layout::Packed(table), _) => rows.for_each(|(&i, y)| match exact.as_ref().and_then(|e| e.get(&i)) {
            Some(row) => y.iter_mut().zip(row).for_each(|(y, &x)| *y = from_bf16(x)),
            None => table.column(i as usize, y),
        }),
    }
    Tensor::new(w.device(), &[id.len(), c], y)
}

/// `dw[id[n]] += dy[n]`, rows in rising order. All f32.
///
/// # Errors
/// As [`embedding`]; [`Error::Shape`] unless `dw` is `[V, C]` and `dy` `[N, C]`.
pub fn embedding_backward(dw: &mut Tensor, id: &[u32], dy: &Tensor) -> Result<()> {
    const OP: &str = "embedding_backward";
    let (&[v, c], true) = (dw.shape(), dy.shape() == [id.len(), dw.width()]) else {
        return Err(Error::Shape { op: OP, want: "dw [V, C], dy [N, C]", got: shapes(&[dw, dy]) });
    };
    check(OP, id, v)?;
    if let Device::Gpu(gpu) = &dw.device().clone() {
        return gpu::embedding_backward(gpu, dw, id, dy);
    }
    let cpu = dw.device().as_cpu()?.clone();
    let (dw, dy) = (Disjoint::new(dw.data_mut::<f32>()?), dy.data::<f32>()?);
    // by columns: the rows that are added to one have an order
    let share =
        c.div_ceil(if dy.len() < GRAIN { 1 } else { cpu.pool.threads() }).next_multiple_of(LINE).max(LINE);
    cpu.pool.run(c.div_ceil(share), |part| {
        let columns = part * share..c.min((part + 1) * share);
        for (&i, dy) in id.iter().zip(dy.chunks_exact(c)) {
            let row = i as usize * c;
            // SAFETY: these columns of all rows belong to this part alone, and parts do not meet.
            let dw = unsafe { dw.slice(row + columns.start..row + columns.end) };
            dw.iter_mut().zip(&dy[columns.clone()]).for_each(|(a, b)| *a += b);
        }
    });
    Ok(())
}

fn check(op: &'static str, id: &[u32], v: usize) -> Result<()> {
    match id.iter().position(|&i| i as usize >= v) {
        Some(at) => Err(Error::Index { op, what: "id", at, got: u64::from(id[at]), bound: v as u64 }),
        None => Ok(()),
    }
}
