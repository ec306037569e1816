//! Cases of RoPE.
use super::DTYPES;
use crate::gates::case::{Case, pick, split, tensor};
use crate::gates::values::{CaseRng, Values, label};
use crate::ops::{self, RopeArgs};
use crate::{Dtype, Result, RopeTable, Tensor};

/// Rows, heads, head size.
const SHAPES: [[usize; 3]; 10] = [
    [1, 1, 2],
    [3, 5, 4],
    [33, 2, 6],
    [7, 1, 16],
    [5, 3, 24],
    [31, 1, 32],
    [9, 2, 64],
    [4, 4, 80],
    [3, 1, 128],
    [2, 3, 256],
];

/// An operation that rotates rows `[n, h, hd]` at positions.
type Rotate = fn(&Tensor, &[u32], Dtype) -> Result<Tensor>;

fn cases(
    op: &'static str,
    dtypes: &[Dtype],
    at: fn(&mut CaseRng, usize) -> Vec<u32>,
    rotate: Rotate,
) -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, [n, h, hd]) in SHAPES.into_iter().enumerate() {
        for (d, &dtype) in dtypes.iter().enumerate() {
            let (seed, values) = ((i * 2 + d) as u64 + 801, Values::of(i + d));
            let (x, pos) = (values.fill(n * h * hd, seed), at(&mut CaseRng::new(seed), n));
            let out = DTYPES[(i + d) % 2];
            let name = format!("{n}x{h}x{hd}-{}", label(dtype, values));
            cases.push(Case::rows(op, name, seed, n, move |dev, rows| {
                let x = tensor(dev, &[rows.len(), h, hd], &pick(&x, h * hd, rows), dtype)?;
                split(&rotate(&x, &pick(&pos, 1, rows), out)?, rows.len())
            }));
        }
    }
    cases
}

fn scattered(rng: &mut CaseRng, n: usize) -> Vec<u32> {
    (0..n).map(|i| rng.below(if i == 0 { 1 << 20 } else { 3000 }) as u32).collect()
}

fn table(x: &Tensor, pos: &[u32]) -> Result<RopeTable> {
    RopeTable::new(1e4, x.width(), pos.iter().max().map_or(1, |&p| p as usize + 1))
}

pub(crate) fn rope_rows() -> Vec<Case> {
    cases("rope_rows", &DTYPES, scattered, |x, pos, out| {
        ops::rope_rows(x, RopeArgs { table: &table(x, pos)?, positions: pos }, out)
    })
}

pub(crate) fn rope_backward() -> Vec<Case> {
    cases("rope_backward", &[Dtype::F32], scattered, |x, pos, _| {
        ops::rope_backward(x, RopeArgs { table: &table(x, pos)?, positions: pos })
    })
}

pub(crate) fn rope_pos() -> Vec<Case> {
    cases("rope_pos", &DTYPES, scattered, |x, pos, _| ops::rope_pos(x, pos, 1e6))
}

/// Each row alone, at its position.
pub(crate) fn rope_at() -> Vec<Case> {
    cases("rope_at", &DTYPES, scattered, |x, pos, _| {
        let width = x.len() / pos.len();
        let (wide, mut y) = (x.to_f32()?, Vec::<f32>::new());
        for (i, &p) in pos.iter().enumerate() {
            let row = &wide.to_vec::<f32>()?[i * width..][..width];
            let row = tensor(x.device(), &[1, x.shape()[1], x.shape()[2]], row, x.dtype())?;
            y.extend(ops::rope_at(&row, 1e6, p)?.to_f32()?.to_vec::<f32>()?);
        }
        Tensor::new(x.device(), x.shape(), y)
    })
}

/// A sequence from position 0 to the largest requested position.
pub(crate) fn rope() -> Vec<Case> {
    cases(
        "rope",
        &DTYPES,
        |_, n| (0..n as u32).collect(),
        |x, pos, _| {
            let (width, end) = (x.len() / pos.len(), pos.iter().max().map_or(0, |&p| p as usize + 1));
            let (x32, mut full) = (x.to_f32()?, vec![0f32; end * width]);
            for (row, &p) in x32.to_vec::<f32>()?.chunks_exact(width).zip(pos) {
                full[p as usize * width..][..width].copy_from_slice(row);
            }
            let full = tensor(x.device(), &[end, x.shape()[1], x.shape()[2]], &full, x.dtype())?;
            let y = ops::rope(&full, 1e4)?.to_f32()?;
            let rows: Vec<usize> = pos.iter().map(|&p| p as usize).collect();
            Tensor::new(x.device(), x.shape(), pick(&y.to_vec::<f32>()?, width, &rows))
        },
    )
}
