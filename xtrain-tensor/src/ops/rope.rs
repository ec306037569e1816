//! Rotary position embedding, half-split pairs (Su et al. 2021, arXiv:2104.09864).
use half::bf16;

use super::{shapes, widened};
use crate::cpu::rope::Direction;
use crate::cpu::value::with_values;
use crate::gpu::RopeArgs;
use crate::{Device, Dtype, Error, Result, RopeTable, Tensor, cpu, gpu, reference};

/// Rotates every head of row `n` by the angle of its position: `(i, i + hd/2)` are a pair.
///
/// | operand | shape | |
/// |---|---|---|
/// | `x` | `[N, H, hd]` | f32 or bf16 |
/// | `pos` | `[N]` | absolute positions |
/// | returns | `[N, H, hd]` | in `out` |
///
/// # Errors
/// [`Error::Shape`] when shapes do not fit the table, [`Error::Index`] for a position beyond it.
pub fn rope_rows(x: &Tensor, table: &RopeTable, pos: &[u32], out: Dtype) -> Result<Tensor> {
    turn(x, (table, pos), Direction::Forward, out)
}

/// The gradient of [`rope_rows`]: the rotation back. `dy [N, H, hd]` f32 → f32.
///
/// # Errors
/// As [`rope_rows`].
pub fn rope_backward(dy: &Tensor, table: &RopeTable, pos: &[u32]) -> Result<Tensor> {
    turn(dy, (table, pos), Direction::Inverse, Dtype::F32)
}

/// [`rope_rows`] of a whole sequence `[T, H, hd]` from position 0, in the dtype of `x`.
///
/// # Errors
/// As [`rope_rows`]; [`Error::Argument`] for a `theta` that is not positive.
pub fn rope(x: &Tensor, theta: f64) -> Result<Tensor> {
    rope_at(x, theta, 0)
}

/// [`rope_rows`] of rows at positions `pos`, `pos + 1`, ...: each has the bits of the full
/// [`rope`]'s row.
///
/// # Errors
/// As [`rope`].
pub fn rope_at(x: &Tensor, theta: f64, pos: u32) -> Result<Tensor> {
    let n = x.shape().first().copied().unwrap_or(0);
    let positions: Vec<u32> = (0..n).map(|i| pos.saturating_add(i as u32)).collect();
    at_theta(x, &positions, theta, RopeArgs::At(pos))
}

/// [`rope_rows`] with a position for each row: each row equals [`rope_at`] of it alone.
///
/// # Errors
/// As [`rope`].
pub fn rope_pos(x: &Tensor, positions: &[u32], theta: f64) -> Result<Tensor> {
    at_theta(x, positions, theta, RopeArgs::Pos(positions))
}

fn at_theta(x: &Tensor, positions: &[u32], theta: f64, on_gpu: RopeArgs<'_>) -> Result<Tensor> {
    let end = positions.iter().max().map_or(1, |&p| p as usize + 1);
    let table = RopeTable::new(theta, x.width(), end)?;
    if let Device::Gpu(gpu) = x.device() {
        check("rope", x, &table, positions)?;
        return gpu::rope(gpu, x, &table, on_gpu, x.dtype());
    }
    rope_rows(x, &table, positions, x.dtype())
}

fn turn(x: &Tensor, (table, pos): (&RopeTable, &[u32]), direction: Direction, out: Dtype) -> Result<Tensor> {
    let op = if direction == Direction::Forward { "rope" } else { "rope_backward" };
    let (h, hd) = check(op, x, table, pos)?;
    let (device, shape) = (x.device(), x.shape());
    if let Device::Gpu(gpu) = device {
        let turn = if direction == Direction::Forward { RopeArgs::Rows(pos) } else { RopeArgs::Back(pos) };
        return gpu::rope(gpu, x, table, turn, out);
    }
    let Some(cpu) = device.fast() else {
        let rotate = if direction == Direction::Forward { reference::rotate } else { reference::rotate_back };
        let mut y = widened(x)?.into_owned();
        for (row, &pos) in y.chunks_exact_mut(h * hd).zip(pos) {
            let (cos, sin) = table.row(pos as usize);
            row.chunks_exact_mut(hd).for_each(|head| rotate(head, cos, sin));
        }
        return Tensor::new(device, shape, y)?.cast(out);
    };
    with_values!(x = x => match out {
        Dtype::BF16 => Tensor::new(device, shape, cpu::rope::rope::<_, bf16>(cpu, x, table, pos, direction)),
        _ => Tensor::new(device, shape, cpu::rope::rope::<_, f32>(cpu, x, table, pos, direction)),
    })
}

pub(super) fn check(op: &'static str, x: &Tensor, table: &RopeTable, pos: &[u32]) -> Result<(usize, usize)> {
    let &[n, h, hd] = x.shape() else {
        return Err(Error::Shape { op, want: "x [N, H, hd]", got: shapes(&[x]) });
    };
    if hd != table.head_dim() || n != pos.len() {
        let got = vec![x.shape().to_vec(), vec![table.head_dim()], vec![pos.len()]];
        return Err(Error::Shape { op, want: "x [N, H, hd], a table of hd, N positions", got });
    }
    let bound = table.max_positions();
    match pos.iter().position(|&p| p as usize >= bound) {
        Some(at) => {
            Err(Error::Index { op, what: "position", at, got: u64::from(pos[at]), bound: bound as u64 })
        }
        None => Ok((h, hd)),
    }
}
