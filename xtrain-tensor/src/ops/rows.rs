//! Rows moved from place to place: picked out, put into slots of a pool, copied in ranges. Of any dtype;
//! no value changes.
use super::shapes;
use crate::{Device, Dtype, Error, Result, Stored, Tensor, gpu};

/// A function of tensors, for the type of their elements.
macro_rules! by_dtype {
    ($dtype:expr, $f:ident($($x:expr),*)) => {
        match $dtype {
            Dtype::F32 => $f::<f32>($($x),*),
            Dtype::BF16 => $f::<half::bf16>($($x),*),
            Dtype::U32 => $f::<u32>($($x),*),
            Dtype::I32 => $f::<i32>($($x),*),
        }
    };
}

/// `len` rows that go from row `from` on to row `to` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRange {
    /// The first row read.
    pub from: usize,
    /// The first row written.
    pub to: usize,
    /// The number of rows.
    pub len: usize,
}

/// `y[n] = x[rows[n]]`: `x [M, ..]` → `[N, ..]`.
///
/// # Errors
/// [`Error::Index`] for a row that is not below `M`, [`Error::Shape`] for a scalar.
pub fn gather_rows(x: &Tensor, rows: &[u32]) -> Result<Tensor> {
    const OP: &str = "gather_rows";
    let [m, rest @ ..] = x.shape() else {
        return Err(Error::Shape { op: OP, want: "x [M, ..]", got: shapes(&[x]) });
    };
    index(OP, ("row", *m), rows)?;
    if let Device::Gpu(gpu) = x.device() {
        return gpu::gather_rows(gpu, x, rows);
    }
    fn gather<T: Stored>(x: &Tensor, (rows, rest): (&[u32], &[usize])) -> Result<Tensor> {
        let (data, width) = (x.data::<T>()?, rest.iter().product());
        let mut y = Vec::with_capacity(rows.len() * width);
        rows.iter().for_each(|&row| y.extend_from_slice(&data[row as usize * width..][..width]));
        Tensor::new(x.device(), &[&[rows.len()], rest].concat(), y)
    }
    by_dtype!(x.dtype(), gather(x, (rows, rest)))
}

/// `pool[slots[n]] = x[n]`: `x [N, ..]`, `pool [S, ..]`. No two slots are alike; where two are, the slot
/// holds one of their rows.
///
/// # Errors
/// [`Error::Index`] for a slot that is not below `S`, [`Error::Shape`] unless `x` is `[N, ..]` with rows
/// like the pool's, [`Error::Dtype`] unless both have one dtype.
pub fn scatter_rows(pool: &mut Tensor, x: &Tensor, slots: &[u32]) -> Result<()> {
    const OP: &str = "scatter_rows";
    let (&[s, ref rest @ ..], true) = (pool.shape(), x.shape().first() == Some(&slots.len())) else {
        return Err(Error::Shape { op: OP, want: "pool [S, ..], x [N, ..]", got: shapes(&[pool, x]) });
    };
    alike(OP, pool, x)?;
    index(OP, ("slot", s), slots)?;
    let width = rest.iter().product();
    if let Device::Gpu(gpu) = &pool.device().clone() {
        return gpu::scatter_rows(gpu, pool, x, slots);
    }
    fn scatter<T: Stored>(pool: &mut Tensor, x: &Tensor, (slots, width): (&[u32], usize)) -> Result<()> {
        let (pool, x) = (pool.data_mut::<T>()?, x.data::<T>()?);
        for (n, &slot) in slots.iter().enumerate() {
            pool[slot as usize * width..][..width].copy_from_slice(&x[n * width..][..width]);
        }
        Ok(())
    }
    by_dtype!(x.dtype(), scatter(pool, x, (slots, width)))
}

/// `to[m.to + i] = from[m.from + i]` for every range `m` of `moves` and `i` below `m.len`: `to [S, ..]`,
/// `from [R, ..]`. The ranges written do not meet.
///
/// # Errors
/// [`Error::Index`] for a range that leaves a tensor, [`Error::Shape`] unless both have rows alike,
/// [`Error::Dtype`] unless both have one dtype.
pub fn copy_slots(to: &mut Tensor, from: &Tensor, moves: &[SlotRange]) -> Result<()> {
    const OP: &str = "copy_slots";
    let (&[s, ref rest @ ..], &[r, ..]) = (to.shape(), from.shape()) else {
        return Err(Error::Shape { op: OP, want: "to [S, ..], from [R, ..]", got: shapes(&[to, from]) });
    };
    alike(OP, to, from)?;
    inside(OP, moves, [r, s])?;
    let width = rest.iter().product();
    if let Device::Gpu(gpu) = &to.device().clone() {
        return gpu::copy_slots(gpu, to, from, moves);
    }
    fn copy<T: Stored>(to: &mut Tensor, from: &Tensor, (moves, w): (&[SlotRange], usize)) -> Result<()> {
        let (to, from) = (to.data_mut::<T>()?, from.data::<T>()?);
        for m in moves {
            to[m.to * w..][..m.len * w].copy_from_slice(&from[m.from * w..][..m.len * w]);
        }
        Ok(())
    }
    by_dtype!(from.dtype(), copy(to, from, (moves, width)))
}

/// `pool[range.to + i] = pool[range.from + i]` for `i` below `range.len`: `pool [S, ..]`.
///
/// # Errors
/// [`Error::Index`] for a range that leaves the pool, [`Error::Argument`] where its two places meet,
/// [`Error::Shape`] for a scalar.
pub fn copy_slots_within(pool: &mut Tensor, range: SlotRange) -> Result<()> {
    const OP: &str = "copy_slots_within";
    let &[s, ref rest @ ..] = pool.shape() else {
        return Err(Error::Shape { op: OP, want: "pool [S, ..]", got: shapes(&[pool]) });
    };
    inside(OP, &[range], [s, s])?;
    if range.from.abs_diff(range.to) < range.len {
        let got = format!("{range:?}");
        return Err(Error::Argument { op: OP, want: "places that do not meet", got });
    }
    let width = rest.iter().product();
    if let Device::Gpu(gpu) = &pool.device().clone() {
        return gpu::copy_slots_within(gpu, pool, range);
    }
    fn copy<T: Stored>(
        pool: &mut Tensor,
        (SlotRange { from, to, len }, w): (SlotRange, usize),
    ) -> Result<()> {
        pool.data_mut::<T>()?.copy_within(from * w..(from + len) * w, to * w);
        Ok(())
    }
    by_dtype!(pool.dtype(), copy(pool, (range, width)))
}

/// Refuses tensors whose rows differ in shape or dtype.
fn alike(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    if a.shape().get(1..) != b.shape().get(1..) {
        return Err(Error::Shape { op, want: "rows of one shape", got: shapes(&[a, b]) });
    }
    if a.dtype() != b.dtype() {
        return Err(Error::Dtype { op, want: "one dtype", got: b.dtype() });
    }
    Ok(())
}

pub(super) fn index(op: &'static str, (what, bound): (&'static str, usize), rows: &[u32]) -> Result<()> {
    match rows.iter().position(|&row| row as usize >= bound) {
        Some(at) => Err(Error::Index { op, what, at, got: u64::from(rows[at]), bound: bound as u64 }),
        None => Ok(()),
    }
}

/// Refuses ranges that leave `[read, written]` rows.
fn inside(op: &'static str, moves: &[SlotRange], bounds: [usize; 2]) -> Result<()> {
    for (at, m) in moves.iter().enumerate() {
        let ends = [m.from.checked_add(m.len), m.to.checked_add(m.len)];
        for (end, bound) in ends.into_iter().zip(bounds) {
            if end.is_none_or(|end| end > bound) {
                let (got, bound) = (end.unwrap_or(usize::MAX) as u64, bound as u64 + 1);
                return Err(Error::Index { op, what: "the end of a range", at, got, bound });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(device: &Device, rows: usize) -> Tensor {
        Tensor::new(device, &[rows, 3], (0..rows * 3).map(|i| i as f32).collect()).unwrap()
    }

    #[test]
    fn rows_and_ranges_outside_a_tensor_are_refused_by_name() {
        let cpu = Device::cpu();
        let (mut to, from) = (pool(&cpu, 4), pool(&cpu, 2));
        let text = |error: Error| error.to_string();
        let error = gather_rows(&from, &[1, 2]).unwrap_err();
        assert_eq!(text(error), "gather_rows: row 2 at index 1 is not below 2");
        let error = scatter_rows(&mut to, &from, &[3, 4]).unwrap_err();
        assert_eq!(text(error), "scatter_rows: slot 4 at index 1 is not below 4");
        let past = |from, to, len| SlotRange { from, to, len };
        for range in [past(1, 0, 2), past(0, 3, 2), past(0, usize::MAX, 1)] {
            assert!(matches!(copy_slots(&mut to, &from, &[range]), Err(Error::Index { .. })), "{range:?}");
        }
        let error = copy_slots_within(&mut to, past(0, 1, 2)).unwrap_err();
        assert!(text(error).starts_with("copy_slots_within: want places that do not meet"));
        assert_eq!(to.data::<f32>().unwrap(), pool(&cpu, 4).data::<f32>().unwrap(), "nothing was written");
    }

    #[test]
    fn rows_of_another_shape_or_dtype_are_refused() {
        let cpu = Device::cpu();
        let mut to = pool(&cpu, 4);
        let narrow = Tensor::zeros(&cpu, &[1, 2], Dtype::F32).unwrap();
        assert!(matches!(scatter_rows(&mut to, &narrow, &[0]), Err(Error::Shape { .. })));
        let half = Tensor::zeros(&cpu, &[1, 3], Dtype::BF16).unwrap();
        assert!(matches!(scatter_rows(&mut to, &half, &[0]), Err(Error::Dtype { .. })));
        assert!(matches!(copy_slots(&mut to, &half, &[]), Err(Error::Dtype { .. })));
    }
}
