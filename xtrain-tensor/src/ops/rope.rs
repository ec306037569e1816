//! Rotary position embedding over half-split pairs (Su et al. 2021, arXiv:2104.09864).
use super::shapes::shapes;
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::operands::{RopeArgs, RopeTable};
use crate::tensor::Tensor;

/// Rotates every head of row `n` by the angles of its position. `(i, i + hd/2)` are a pair.
///
/// | operand | shape | |
/// |---|---|---|
/// | `x` | `[N, H, hd]` | f32 or bf16 |
/// | `rope` | `N` positions | absolute; a table of heads of `hd` values |
/// | returns | `[N, H, hd]` | in `out` |
///
/// # Errors
/// [`Error::Shape`] if shapes do not fit the table, [`Error::Index`] for a position beyond it.
pub fn rope_rows(x: &Tensor, rope: RopeArgs<'_>, out: Dtype) -> Result<Tensor> {
    check("rope", x, rope)?;
    backend(x.device()).rope_rows(x, rope, out)
}

/// The gradient of [`rope_rows`]: the inverse rotation. `dy [N, H, hd]` f32 → f32.
///
/// # Errors
/// As [`rope_rows`].
pub fn rope_backward(dy: &Tensor, rope: RopeArgs<'_>) -> Result<Tensor> {
    check("rope_backward", dy, rope)?;
    backend(dy.device()).rope_backward(dy, rope)
}

/// [`rope_rows`] of a whole sequence `[T, H, hd]` from position 0, in the dtype of `x`.
///
/// # Errors
/// As [`rope_rows`]; [`Error::Argument`] for a `theta` that is not positive.
pub fn rope(x: &Tensor, theta: f64) -> Result<Tensor> {
    rope_at(x, theta, 0)
}

/// [`rope_rows`] of rows at positions `first`, `first + 1`, ... Each row is bit-identical to the row at its position of
/// [`rope`] over a whole sequence.
///
/// # Errors
/// As [`rope`].
pub fn rope_at(x: &Tensor, theta: f64, first: u32) -> Result<Tensor> {
    let n = x.shape().first().copied().unwrap_or(0);
    let positions: Vec<u32> = (0..n).map(|i| first.saturating_add(i as u32)).collect();
    let rope = RopeArgs { table: &table(x, theta, &positions)?, positions: &positions };
    check("rope", x, rope)?;
    backend(x.device()).rope_at(x, rope, first)
}

/// [`rope_rows`] with a position for each row. Each row is bit-identical to [`rope_at`] of that row alone.
///
/// # Errors
/// As [`rope`].
pub fn rope_pos(x: &Tensor, positions: &[u32], theta: f64) -> Result<Tensor> {
    let rope = RopeArgs { table: &table(x, theta, positions)?, positions };
    check("rope", x, rope)?;
    backend(x.device()).rope_pos(x, rope)
}

/// A table with the rows of `positions`.
fn table(x: &Tensor, theta: f64, positions: &[u32]) -> Result<RopeTable> {
    let end = positions.iter().max().map_or(1, |&p| p as usize + 1);
    RopeTable::new(theta, x.width(), end)
}

/// Refuses heads `x [N, H, hd]` that do not fit the table, and positions beyond it.
pub(super) fn check(op: &'static str, x: &Tensor, RopeArgs { table, positions }: RopeArgs<'_>) -> Result<()> {
    let &[n, _, hd] = x.shape() else {
        return Err(Error::Shape { op, want: "x [N, H, hd]", got: shapes(&[x]) });
    };
    if hd != table.head_dim() || n != positions.len() {
        let got = vec![x.shape().to_vec(), vec![table.head_dim()], vec![positions.len()]];
        return Err(Error::Shape { op, want: "x [N, H, hd], a table of hd, N positions", got });
    }
    let bound = table.max_positions();
    match positions.iter().position(|&p| p as usize >= bound) {
        Some(at) => {
            Err(Error::Index { op, what: "position", at, got: u64::from(positions[at]), bound: bound as u64 })
        }
        None => Ok(()),
    }
}
