//! Gather, scatter and copy of rows. Any dtype; no value changes.
use super::checks::{check_index, misfit, refuse, refuse_dtype};
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::operands::SlotRange;
use crate::tensor::Tensor;

/// `y[n] = x[rows[n]]`: `x [M, ..]` → `[N, ..]`.
///
/// # Errors
/// [`Error::Index`] for a row that is not below `M`, [`Error::Shape`] for a scalar.
pub fn gather_rows(x: &Tensor, rows: &[u32]) -> Result<Tensor> {
    const OP: &str = "gather_rows";
    let [m, ..] = x.shape() else {
        return Err(misfit(OP, "x [M, ..]", &[x]));
    };
    check_index(OP, "row", *m, rows)?;
    backend(x.device()).gather_rows(x, rows)
}

/// The gradient of [`gather_rows`] in f32: `dx[m] = 0 + dy[n] + ..` over all `n` with `rows[n] = m`, in ascending
/// order. `dy [N, ..]` → `[m, ..]`.
///
/// # Errors
/// As [`gather_rows`]; [`Error::Shape`] unless `dy` has one row for each of `rows`.
pub fn gather_rows_backward(dy: &Tensor, rows: &[u32], m: usize) -> Result<Tensor> {
    const OP: &str = "gather_rows_backward";
    let Some((&n, row)) = dy.shape().split_first().filter(|(n, _)| **n == rows.len()) else {
        return Err(misfit(OP, "dy [N, ..] for N rows", &[dy]));
    };
    check_index(OP, "row", m, rows)?;
    let width: usize = row.iter().product();
    let mut dx = Tensor::zeros(dy.device(), &[m, width], Dtype::F32)?;
    backend(dy.device()).embedding_backward(&mut dx, rows, &dy.reshape(&[n, width])?)?;
    dx.reshape(&[&[m], row].concat())
}

/// `pool[slots[n]] = x[n]`: `x [N, ..]`, `pool [S, ..]`. The slots must be distinct; a repeated slot receives one of
/// its rows.
///
/// # Errors
/// [`Error::Index`] for a slot that is not below `S`, [`Error::Shape`] unless `x` is `[N, ..]` with rows of the
/// pool's shape, [`Error::Dtype`] unless both have the same dtype.
pub fn scatter_rows(pool: &mut Tensor, x: &Tensor, slots: &[u32]) -> Result<()> {
    const OP: &str = "scatter_rows";
    let (&[s, ..], true) = (pool.shape(), x.shape().first() == Some(&slots.len())) else {
        return Err(misfit(OP, "pool [S, ..], x [N, ..]", &[pool, x]));
    };
    alike(OP, pool, x)?;
    check_index(OP, "slot", s, slots)?;
    backend(&pool.device().clone()).scatter_rows(pool, x, slots)
}

/// `to[m.to + i] = from[m.from + i]` for every range `m` of `moves` and `i` below `m.len`: `to [S, ..]`,
/// `from [R, ..]`. The written ranges must not overlap.
///
/// # Errors
/// [`Error::Index`] for a range outside a tensor, [`Error::Shape`] unless rows have the same shape,
/// [`Error::Dtype`] unless both have the same dtype.
pub fn copy_slots(to: &mut Tensor, from: &Tensor, moves: &[SlotRange]) -> Result<()> {
    const OP: &str = "copy_slots";
    let (&[s, ..], &[r, ..]) = (to.shape(), from.shape()) else {
        return Err(misfit(OP, "to [S, ..], from [R, ..]", &[to, from]));
    };
    alike(OP, to, from)?;
    inside(OP, moves, [r, s])?;
    backend(&to.device().clone()).copy_slots(to, from, moves)
}

/// `pool[range.to + i] = pool[range.from + i]` for `i` below `range.len`: `pool [S, ..]`.
///
/// # Errors
/// [`Error::Index`] for a range outside the pool, [`Error::Argument`] if the two ranges overlap,
/// [`Error::Shape`] for a scalar.
pub fn copy_slots_within(pool: &mut Tensor, range: SlotRange) -> Result<()> {
    const OP: &str = "copy_slots_within";
    let &[s, ..] = pool.shape() else {
        return Err(misfit(OP, "pool [S, ..]", &[pool]));
    };
    inside(OP, &[range], [s, s])?;
    if range.from.abs_diff(range.to) < range.len {
        let got = format!("{range:?}");
        return Err(Error::Argument { op: OP, want: "ranges that do not overlap", got });
    }
    backend(&pool.device().clone()).copy_slots_within(pool, range)
}

/// Returns an error if the rows differ in shape or dtype.
fn alike(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    refuse(a.shape().get(1..) != b.shape().get(1..), op, "rows of one shape", &[a, b])?;
    refuse_dtype(a.dtype() != b.dtype(), op, "one dtype", b.dtype())
}

/// Returns an error for a range outside `[read, written]` rows.
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
    use crate::{Device, Dtype};

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
        assert!(text(error).starts_with("copy_slots_within: expected ranges that do not overlap"));
        assert_eq!(to.data::<f32>().unwrap(), pool(&cpu, 4).data::<f32>().unwrap(), "nothing was written");
    }

    #[test]
    fn ranges_may_reach_the_end_and_each_other() {
        let cpu = Device::cpu();
        let (mut to, from) = (pool(&cpu, 4), pool(&cpu, 2));
        copy_slots(&mut to, &from, &[SlotRange { from: 0, to: 2, len: 2 }]).unwrap();
        assert_eq!(to.data::<f32>().unwrap()[6..], *from.data::<f32>().unwrap());
        copy_slots_within(&mut to, SlotRange { from: 1, to: 3, len: 1 }).unwrap();
        copy_slots_within(&mut to, SlotRange { from: 2, to: 0, len: 2 }).unwrap();
        assert_eq!(to.data::<f32>().unwrap()[3..6], [3.0, 4.0, 5.0]);
        let error = copy_slots_within(&mut to, SlotRange { from: 0, to: 2, len: 3 }).unwrap_err().to_string();
        assert_eq!(error, "copy_slots_within: the end of a range 5 at index 0 is not below 5");
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
