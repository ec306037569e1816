//! Log-probabilities and losses. Their values come to the host once a call: 12 bytes a row, from which the
//! loss is summed and a row that is not finite is named.
use std::ops::Range;

use super::linear::{self, After, Forward, Group, Part, Tile};
use super::{At, Buffer, Gpu, Grid, args};
use crate::ops::loss_blocks as blocks;
use crate::ops::{LogProb, LossRows, Samples, Target, Weight};
use crate::{Dtype, Error, Result, Tensor};

/// The target of a row that has none.
const ABSENT: u32 = u32::MAX;

/// Logits in memory at a time, unless 256 rows of a chunk of 4,096 have more: 512 MiB of them. 2,560 rows of
/// 50,000 are enough tiles of `dx` to occupy a device.
const LOGITS: usize = 1 << 27;

/// What the logits of each row say of its target; targets have been checked.
pub(crate) fn log_prob(gpu: &Gpu, logits: &Tensor, target: &[u32]) -> Result<Vec<LogProb>> {
    let (n, v) = (target.len(), logits.width());
    let (values, target) = (gpu.buffer(n * 12)?, gpu.upload(target)?);
    let place = Place { target: target.arg(), values: values.arg(), ..Place::default() };
    // SAFETY: logits [n, v], n targets below v, room for 3 n values.
    unsafe { values_of(gpu, logits.at(gpu, Dtype::F32)?, &place, [n, v], (1.0, Entropy::Now))? };
    downloaded(gpu, &values)
}

/// What is known of each row, from some row on.
#[derive(Clone, Copy)]
struct Place {
    target: At,
    factors: At,
    values: At,
    last: At,
    cut: At,
}

impl Default for Place {
    fn default() -> Place {
        Place { target: At(0), factors: At(0), values: At(0), last: At(0), cut: At(0) }
    }
}

/// `at` and the address of the row `row` of `bytes` bytes a row; null stays null.
fn row(at: At, row: usize, bytes: usize) -> At {
    if at == At(0) { at } else { At(at.0 + (row * bytes) as u64) }
}

impl Place {
    fn from(self, first: usize) -> Place {
        Place {
            target: row(self.target, first, 4),
            factors: row(self.factors, first, 8),
            values: row(self.values, first, 12),
            last: row(self.last, first, 4),
            cut: row(self.cut, first, 4),
        }
    }
}

/// When the entropy of rows is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entropy {
    /// With their other values.
    Now,
    /// With their gradients, which do not need it.
    Later,
}

/// # Safety
/// `logits [n, v]` f32, and a `place` of as many rows.
unsafe fn values_of(
    gpu: &Gpu,
    logits: At,
    place: &Place,
    [n, v]: [usize; 2],
    (t, entropy): (f32, Entropy),
) -> Result<()> {
    let chunks = v.div_ceil(128);
    let grid = Grid::blocks([n, 1, 1], 32 * chunks.min(16) as u32).shared(chunks * 8);
    let now = u32::from(entropy == Entropy::Now);
    let args = args![logits, place.target, place.last, place.cut, place.values, v as u32, t, now];
    // SAFETY: as promised by the caller; 8 bytes of shared memory a chunk.
    unsafe { gpu.launch("log_prob_f32", grid, args) }
}

fn downloaded(gpu: &Gpu, values: &Buffer) -> Result<Vec<LogProb>> {
    let values = gpu.download::<[f32; 3]>(values)?;
    Ok(values.into_iter().map(|[lse, log_prob, entropy]| LogProb { lse, log_prob, entropy }).collect())
}

/// What each row with a target gives, and with `dhead` the gradient `dx`, while the head's is added into it;
/// all operands have been checked.
pub(crate) fn loss(
    gpu: &Gpu,
    (x, head): (&Tensor, &Weight),
    rows: &LossRows<'_>,
    dhead: Option<&mut Tensor>,
) -> Result<(Vec<Option<LogProb>>, Tensor)> {
    bounded(gpu, (x, head), rows, (dhead, LOGITS))
}

/// [`loss`] with at most so many logits at a time.
fn bounded(
    gpu: &Gpu,
    (x, head): (&Tensor, &Weight),
    rows: &LossRows<'_>,
    (dhead, most): (Option<&mut Tensor>, usize),
) -> Result<(Vec<Option<LogProb>>, Tensor)> {
    let n = x.shape()[0];
    let known = Known::new(gpu, rows, head.out_features())?;
    let walk = Walk { gpu, x: x.at(gpu, head.dtype())?, head, rows, place: known.place(), most };
    let dx = match dhead {
        None => {
            walk.values(n)?;
            Tensor::zeros(x.device(), &[0], Dtype::F32)?
        }
        Some(dhead) => {
            let dx = Tensor::on_gpu(gpu, x.shape(), Dtype::F32)?;
            walk.gradients(n, (dx.at(gpu, Dtype::F32)?, dhead.at_mut(gpu, Dtype::F32)?))?;
            dx
        }
    };
    let values = downloaded(gpu, &known.values)?;
    let values: Vec<_> = rows.targets.iter().zip(values).map(|(t, value)| t.map(|_| value)).collect();
    match values.iter().position(|v| v.is_some_and(|v| !v.lse.is_finite())) {
        Some(row) => Err(Error::NotFinite { what: "logits".into(), row }),
        None => Ok((values, dx)),
    }
}

/// Targets and values of all rows of a loss, on the device.
struct Known {
    target: Buffer,
    factors: Buffer,
    values: Buffer,
    /// Index and value of the last logit that each row keeps.
    cut: Option<[Buffer; 2]>,
}

impl Known {
    fn new(gpu: &Gpu, rows: &LossRows<'_>, out: usize) -> Result<Known> {
        let n = rows.targets.len();
        let id = |t: &Option<Target>| t.map_or(ABSENT, |t| t.id);
        let factors = |t: &Option<Target>| t.map_or([0.0; 2], |t| [t.weight, t.bonus]);
        let cut = match rows.top_k {
            Some(k) if k < out => Some([gpu.buffer(4 * n)?, gpu.buffer(4 * n)?]),
            _ => None,
        };
        Ok(Known {
            target: gpu.upload(&rows.targets.iter().map(id).collect::<Vec<u32>>())?,
            factors: gpu.upload(&rows.targets.iter().map(factors).collect::<Vec<[f32; 2]>>())?,
            values: gpu.zeros(n * 12)?,
            cut,
        })
    }

    fn place(&self) -> Place {
        let [last, cut] = self.cut.as_ref().map_or([At(0); 2], |c| [c[0].arg(), c[1].arg()]);
        Place { target: self.target.arg(), factors: self.factors.arg(), values: self.values.arg(), last, cut }
    }
}

/// What the logits of a loss are made of, and how many of them may be there at a time.
struct Walk<'a> {
    gpu: &'a Gpu,
    x: At,
    head: &'a Weight,
    rows: &'a LossRows<'a>,
    place: Place,
    most: usize,
}

impl Walk<'_> {
    fn bytes(&self) -> usize {
        self.head.dtype().bytes()
    }

    /// Fills in what the rows give, a few rows of the whole vocabulary at a time.
    fn values(&self, n: usize) -> Result<()> {
        let out = self.head.out_features();
        let step = (self.most / out).clamp(1, n.max(1));
        let z = self.gpu.buffer(4 * step * out)?;
        for start in (0..n).step_by(step) {
            let block = start..n.min(start + step);
            self.logits(&block, 0..out, &z)?;
            self.known(&block, &z, Entropy::Now)?;
        }
        Ok(())
    }

    /// The values of the rows, `dx`, and the head's gradient. The rows and the vocabulary are cut as on a
    /// processor: where 256 rows of logits fit, by rows alone, and logits become gradients in place;
    /// otherwise also by columns, whose logits are computed a second time.
    fn gradients(&self, n: usize, (dx, dhead): (At, At)) -> Result<()> {
        let (width, out) = (self.head.in_features(), self.head.out_features());
        let whole = 256 * out <= self.most;
        if !whole {
            self.values(n)?;
        }
        let bonus = self.rows.targets.iter().flatten().any(|t| t.bonus != 0.0);
        let entropy = if whole && !bonus { Entropy::Later } else { Entropy::Now };
        let blocks = blocks::of_rows(self.rows.samples, self.most, out);
        let columns_of =
            |rows: usize| blocks::of_columns(out, if whole { out } else { self.most / rows.max(1) });
        let size = |rows: usize| rows * columns_of(rows).map(|c| c.len()).max().unwrap_or(0);
        let size = blocks.iter().map(|(rows, _)| size(rows.len())).max().unwrap_or(0);
        let z = self.gpu.buffer(4 * size)?;
        let rounded = self.gpu.buffer(if self.head.dtype() == Dtype::BF16 { 2 * size } else { 0 })?;
        for (block, samples) in &blocks {
            for columns in columns_of(block.len()) {
                self.logits(block, columns.clone(), &z)?;
                if whole {
                    self.known(block, &z, entropy)?;
                }
                let dz = self.gradient(block, &columns, (&z, &rounded), entropy)?;
                let dhead = row(dhead, columns.start, 4 * width);
                let dx = row(dx, block.start, 4 * width);
                self.products((block, samples), &columns, (dz, dx, dhead))?;
            }
        }
        Ok(())
    }

    /// `z` becomes the logits of the rows `block`, of the outputs `columns`.
    fn logits(&self, block: &Range<usize>, columns: Range<usize>, z: &Buffer) -> Result<()> {
        let (width, dtype) = (self.head.in_features(), self.head.dtype());
        let product = Forward {
            x: row(self.x, block.start, width * self.bytes()),
            w: row(self.head.at(self.gpu)?, columns.start, width * self.bytes()),
            shape: [block.len(), columns.len(), width],
            dtype,
        };
        let to = (z.arg(), Dtype::F32);
        let tile = Tile::of_forward(block.len(), columns.len(), dtype);
        // SAFETY: rows and columns within x and the head, and z has room for their product.
        unsafe { linear::forward(self.gpu, product, After::default(), to, tile) }
    }

    /// The values of the rows `block`, from all of their logits.
    fn known(&self, block: &Range<usize>, z: &Buffer, entropy: Entropy) -> Result<()> {
        let (place, shape) = (self.place.from(block.start), [block.len(), self.head.out_features()]);
        let t = self.rows.temperature;
        if let (Some(k), true) = (self.rows.top_k, place.last != At(0)) {
            let (v, k) = (shape[1] as u32, k as u32);
            let args = args![z.arg(), place.target, place.last, place.cut, v, k, t];
            // SAFETY: z [block, v], a place of as many rows, k below v.
            unsafe {
                self.gpu.launch("cross_entropy_cutoff_f32", Grid::blocks([shape[0], 1, 1], 256), args)?
            };
        }
        // SAFETY: z [block, v] and a place of as many rows.
        unsafe { values_of(self.gpu, z.arg(), &place, shape, (t, entropy)) }
    }

    /// Where the gradients of the logits `z` are: in place, or rounded.
    fn gradient(
        &self,
        block: &Range<usize>,
        columns: &Range<usize>,
        (z, rounded): (&Buffer, &Buffer),
        entropy: Entropy,
    ) -> Result<At> {
        let (gpu, place) = (self.gpu, self.place.from(block.start));
        let (rows, chunks) = (block.len(), columns.len().div_ceil(128));
        let entropies = match entropy {
            Entropy::Later => Some(gpu.buffer(4 * rows * chunks)?),
            Entropy::Now => None,
        };
        let to = if self.head.dtype() == Dtype::BF16 { rounded.arg() } else { At(0) };
        let (first, n) = (columns.start as u32, columns.len() as u32);
        let args = args![
            z.arg(),
            place.target,
            place.factors,
            place.values,
            place.last,
            place.cut,
            entropies.as_ref().map_or(At(0), Buffer::arg),
            to,
            n,
            first,
            self.rows.temperature
        ];
        let grid = Grid::blocks([rows, chunks.div_ceil(8), 1], 256);
        // SAFETY: z [block, columns], a place of as many rows, room for as many rounded gradients.
        unsafe { gpu.launch("cross_entropy_gradient_f32", grid, args)? };
        if let Some(entropies) = entropies {
            let args = args![entropies.arg(), place.values, chunks as u32, rows as u32];
            // SAFETY: the entropies of as many chunks and rows, and a place of as many rows.
            unsafe { gpu.launch("cross_entropy_entropy_f32", Grid::over(rows, 256), args)? };
        }
        Ok(if to == At(0) { z.arg() } else { to })
    }

    /// `dx` goes on with the outputs `columns`, the first ones begin it; their rows of `dhead` get theirs.
    fn products(
        &self,
        (block, samples): (&Range<usize>, &Samples),
        columns: &Range<usize>,
        (dz, dx, dhead): (At, At, At),
    ) -> Result<()> {
        let (gpu, width, dtype) = (self.gpu, self.head.in_features(), self.head.dtype());
        let x = row(self.x, block.start, width * self.bytes());
        let w = row(self.head.at(gpu)?, columns.start, width * self.bytes());
        let start = if columns.start == 0 { At(0) } else { dx };
        let part = Part { dy: dz, w, outs: columns.len() };
        let group = Group { parts: [part, Part::default(), Part::default()], dtype };
        let (shape, dims) = ([columns.len(), width], [block.len(), width]);
        // SAFETY: dz [block, columns]; rows and columns within x, the head and their gradients.
        unsafe {
            linear::weights(gpu, dhead, (dz, x, dtype), (shape, samples), Tile::of(shape[0], width))?;
            linear::input(gpu, &group, dims, (start, dx), Tile::of(dims[0], width))
        }
    }
}

#[cfg(test)]
mod tests;
