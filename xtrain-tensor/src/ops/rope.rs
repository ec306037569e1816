//! Rotary position embedding over half-split pairs (Su et al. 2021, arXiv:2104.09864).
use super::checks::{check_float, check_index, misfit, misfit_shapes, refuse_dtype};
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::Result;
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
/// [`Error::Shape`](crate::Error::Shape) if shapes do not match the table,
/// [`Error::Index`](crate::Error::Index) for a position beyond it, [`Error::Dtype`](crate::Error::Dtype) unless `x` and
/// `out` are f32 or bf16.
pub fn rope_rows(x: &Tensor, rope: RopeArgs<'_>, out: Dtype) -> Result<Tensor> {
    check("rope", x, rope)?;
    check_float("rope", out)?;
    backend(x.device()).rope_rows(x, rope, out)
}

/// The gradient of [`rope_rows`]: the inverse rotation. `dy [N, H, hd]` f32 → f32.
///
/// # Errors
/// As [`rope_rows`]; [`Error::Dtype`](crate::Error::Dtype) unless `dy` is f32.
pub fn rope_backward(dy: &Tensor, rope: RopeArgs<'_>) -> Result<Tensor> {
    const OP: &str = "rope_backward";
    check(OP, dy, rope)?;
    refuse_dtype(dy.dtype() != Dtype::F32, OP, "dy in f32", dy.dtype())?;
    backend(dy.device()).rope_backward(dy, rope)
}

/// [`rope_rows`] of a whole sequence `[T, H, hd]` from position 0, in the dtype of `x`. `angles` is a `theta` or a
/// `&RopeTable`.
///
/// # Errors
/// As [`rope_rows`]; [`Error::Argument`](crate::Error::Argument) for a `theta` that is not positive.
pub fn rope<'a>(x: &Tensor, angles: impl Into<RopeAngles<'a>>) -> Result<Tensor> {
    rope_at(x, angles, 0)
}

/// The angles of [`rope_at`] and [`rope_pos`]: a base `theta`, or an existing table.
///
/// A model with scaled frequencies (linear, llama3, YaRN) has no single `theta`; its table holds them.
#[derive(Debug, Clone, Copy)]
pub enum RopeAngles<'a> {
    /// Unscaled frequencies of this base. The call computes a table for its positions.
    Theta(f64),
    /// The rows of this table.
    Table(&'a RopeTable),
}

impl From<f64> for RopeAngles<'_> {
    fn from(theta: f64) -> Self {
        RopeAngles::Theta(theta)
    }
}

impl<'a> From<&'a RopeTable> for RopeAngles<'a> {
    fn from(table: &'a RopeTable) -> Self {
        RopeAngles::Table(table)
    }
}

/// [`rope_rows`] of rows at positions `first`, `first + 1`, ... Each row is bit-identical to the row at the same
/// position in [`rope`] of a whole sequence. `angles` is a `theta` or a `&RopeTable`.
///
/// # Errors
/// As [`rope`].
pub fn rope_at<'a>(x: &Tensor, angles: impl Into<RopeAngles<'a>>, first: u32) -> Result<Tensor> {
    let n = x.shape().first().copied().unwrap_or(0);
    let positions: Vec<u32> = (0..n).map(|i| first.saturating_add(i as u32)).collect();
    let rope = RopeArgs { table: &table(x, angles.into(), &positions)?, positions: &positions };
    check("rope", x, rope)?;
    backend(x.device()).rope_at(x, rope, first)
}

/// [`rope_rows`] with a position for each row. Each row is bit-identical to [`rope_at`] of that row alone. `angles`
/// is a `theta` or a `&RopeTable`.
///
/// # Errors
/// As [`rope`].
pub fn rope_pos<'a>(x: &Tensor, positions: &[u32], angles: impl Into<RopeAngles<'a>>) -> Result<Tensor> {
    let rope = RopeArgs { table: &table(x, angles.into(), positions)?, positions };
    check("rope", x, rope)?;
    backend(x.device()).rope_pos(x, rope)
}

/// A table with the rows of `positions`. A clone of a table shares its rows.
fn table(x: &Tensor, angles: RopeAngles<'_>, positions: &[u32]) -> Result<RopeTable> {
    match angles {
        RopeAngles::Table(table) => Ok(table.clone()),
        RopeAngles::Theta(theta) => {
            let end = positions.iter().max().map_or(1, |&p| p as usize + 1);
            RopeTable::new(theta, x.width(), end)
        }
    }
}

/// Returns an error if the heads `x [N, H, hd]` are of integers or do not match the table, or if a position is beyond it.
pub(super) fn check(op: &'static str, x: &Tensor, RopeArgs { table, positions }: RopeArgs<'_>) -> Result<()> {
    let &[n, _, hd] = x.shape() else {
        return Err(misfit(op, "x [N, H, hd]", &[x]));
    };
    if hd != table.head_dim() || n != positions.len() {
        let got = [x.shape(), &[table.head_dim()], &[positions.len()]];
        return Err(misfit_shapes(op, "x [N, H, hd], a table of hd, N positions", &got));
    }
    check_float(op, x.dtype())?;
    check_index(op, "position", table.max_positions(), positions)
}
