//! Log-probabilities and losses. Each call downloads 12 bytes per row, from which the host sums the loss and finds
//! rows that are not finite.
use std::ops::Range;

use super::linear::input::{Group, Part, input};
use super::linear::weights::{RowProduct, tile_of, weights};
use super::linear::{self, Epilogue, Forward};
use super::{At, Buffer, Gpu, Grid, args};
use crate::faults::{self, Fault};
use crate::operands::loss::blocks;
use crate::operands::{KeptSet, LogProb, LossRows, LossValues, Samples, Target, Weight};
use crate::{Dtype, Error, Result, Tensor};

/// Target of a row without a target; `NO_TARGET` of the kernels.
const NO_TARGET: u32 = u32::MAX;

/// Maximum number of logits in memory: 512 MiB of them, or 256 rows of a chunk of 4,096 columns if that is more.
/// 2,560 rows of 50,000 logits are enough tiles of `dx` to occupy a device.
pub(crate) const MAX_LOGITS: usize = 1 << 27;

/// Log-probability of the target, logsumexp and entropy of each row. The targets have been checked.
pub(crate) fn log_prob(gpu: &Gpu, logits: &Tensor, target: &[u32]) -> Result<Vec<LogProb>> {
    let (n, v) = (target.len(), logits.width());
    let (values, target) = (gpu.buffer(n * 12)?, gpu.upload(target)?);
    let buffers = RowBuffers { target: target.arg(), values: values.arg(), ..RowBuffers::default() };
    // SAFETY: logits [n, v], n targets below v, room for 3 n values.
    unsafe { values_of(gpu, logits.at(gpu, Dtype::F32)?, &buffers, [n, v], 1.0, Entropy::WithValues)? };
    download_values(gpu, &values)
}

/// Device addresses of the per-row buffers, from some row on. Null addresses are absent buffers.
#[derive(Clone, Copy)]
struct RowBuffers {
    target: At,
    factors: At,
    values: At,
    last: At,
    cut: At,
    kept: At,
    set: At,
    /// The bitmaps that `set` refers to.
    bits: At,
}

impl Default for RowBuffers {
    fn default() -> RowBuffers {
        let none = At(0);
        RowBuffers {
            target: none,
            factors: none,
            values: none,
            last: none,
            cut: none,
            kept: none,
            set: none,
            bits: none,
        }
    }
}

/// Address of row `row` for rows of `bytes` bytes. Null stays null.
fn row(at: At, row: usize, bytes: usize) -> At {
    if at == At(0) { at } else { At(at.0 + (row * bytes) as u64) }
}

impl RowBuffers {
    fn starting_at(self, first: usize) -> RowBuffers {
        let first = if faults::on(Fault::RowsOfBlocksShared) { 0 } else { first };
        RowBuffers {
            target: row(self.target, first, 4),
            factors: row(self.factors, first, 8),
            values: row(self.values, first, 12),
            last: row(self.last, first, 4),
            cut: row(self.cut, first, 4),
            kept: row(self.kept, first, 4),
            set: row(self.set, first, 4),
            bits: self.bits,
        }
    }
}

/// Which kernel computes the entropy of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entropy {
    /// `log_prob`, with the other values.
    WithValues,
    /// `cross_entropy_gradient`; possible if the gradient does not depend on the entropy.
    WithGradient,
}

/// # Safety
/// `logits [n, v]` f32, and `buffers` with n rows.
unsafe fn values_of(
    gpu: &Gpu,
    logits: At,
    buffers: &RowBuffers,
    [n, v]: [usize; 2],
    t: f32,
    entropy: Entropy,
) -> Result<()> {
    let chunks = v.div_ceil(128);
    let grid = Grid::blocks([n, 1, 1], 32 * chunks.min(16) as u32).shared(chunks * 8);
    let with_values = u32::from(entropy == Entropy::WithValues);
    let args =
        args![logits, buffers.target, buffers.last, buffers.cut, buffers.values, v as u32, t, with_values];
    // SAFETY: as promised by the caller; 8 bytes of shared memory per chunk.
    unsafe { gpu.launch("log_prob_f32", grid, args) }
}

fn download_values(gpu: &Gpu, values: &Buffer) -> Result<Vec<LogProb>> {
    let values = gpu.download::<[f32; 3]>(values)?;
    Ok(values
        .into_iter()
        .map(|[lse, log_prob, entropy]| LogProb { lse, log_prob, entropy, kept: true })
        .collect())
}

/// Values of each row with a target. With `dhead`, also returns the gradient `dx` and adds the head's gradient to
/// `dhead`. The operands have been checked.
pub(crate) fn loss(
    gpu: &Gpu,
    x: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
    dhead: Option<&mut Tensor>,
) -> Result<(Vec<Option<LogProb>>, Tensor)> {
    loss_bounded(gpu, x, head, rows, dhead, MAX_LOGITS)
}

/// Values of each row with a target, and its kept set. `None`: all tokens are kept. At most `max_logits` logits are in
/// memory.
pub(crate) fn values_and_kept(
    gpu: &Gpu,
    x: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
    max_logits: usize,
) -> Result<LossValues> {
    let row_state = RowState::new(gpu, rows, head.out_features())?;
    let (x, buffers) = (x.at(gpu, head.dtype())?, row_state.buffers());
    let pass = LossPass { gpu, x, head, rows, buffers, max_logits };
    let mut kept = rows.kept.to_vec();
    kept.resize(rows.targets.len(), None);
    pass.values(rows.targets.len(), Some(&mut kept))?;
    let log_probs = row_state.download(gpu, rows)?;
    for (kept, target) in kept.iter_mut().zip(rows.targets) {
        *kept = kept.take().filter(|_| target.is_some());
    }
    Ok(LossValues { log_probs, kept })
}

/// [`loss`] with at most `max_logits` logits in memory.
fn loss_bounded(
    gpu: &Gpu,
    x: &Tensor,
    head: &Weight,
    rows: &LossRows<'_>,
    dhead: Option<&mut Tensor>,
    max_logits: usize,
) -> Result<(Vec<Option<LogProb>>, Tensor)> {
    let n = x.shape()[0];
    let row_state = RowState::new(gpu, rows, head.out_features())?;
    let pass =
        LossPass { gpu, x: x.at(gpu, head.dtype())?, head, rows, buffers: row_state.buffers(), max_logits };
    let dx = match dhead {
        None => {
            pass.values(n, None)?;
            Tensor::zeros(x.device(), &[0], Dtype::F32)?
        }
        Some(dhead) => {
            let dx = Tensor::on_gpu(gpu, x.shape(), Dtype::F32)?;
            pass.gradients(n, dx.at(gpu, Dtype::F32)?, dhead.at_mut(gpu, Dtype::F32)?)?;
            dx
        }
    };
    Ok((row_state.download(gpu, rows)?, dx))
}

/// Targets and values of all rows on the device.
struct RowState {
    target: Buffer,
    factors: Buffer,
    values: Buffer,
    /// Column and value of the last logit that each row keeps, and whether the row keeps its target. `None`: no filter.
    cut: Option<[Buffer; 3]>,
    /// The given kept sets. `None`: no row has one.
    sets: Option<KeptRows>,
}

/// Given kept sets on the device.
struct KeptRows {
    /// `[N]`: the row of `bits`. [`NO_TARGET`]: the filters apply to the row.
    set: Buffer,
    /// One bitmap of `ceil(V / 32)` words for each row with a set.
    bits: Buffer,
}

impl KeptRows {
    fn new(gpu: &Gpu, rows: &LossRows<'_>) -> Result<Option<KeptRows>> {
        if rows.kept.iter().all(Option::is_none) {
            return Ok(None);
        }
        let (mut index, mut bits, mut count) = (vec![NO_TARGET; rows.targets.len()], Vec::new(), 0);
        for (n, set) in rows.kept.iter().enumerate() {
            if let (Some(set), Some(_)) = (set, rows.targets[n]) {
                set.push_bits(&mut bits);
                index[n] = count;
                count += 1;
            }
        }
        Ok(Some(KeptRows { set: gpu.upload(&index)?, bits: gpu.upload(&bits)? }))
    }
}

impl RowState {
    fn new(gpu: &Gpu, rows: &LossRows<'_>, out: usize) -> Result<RowState> {
        let n = rows.targets.len();
        let id = |t: &Option<Target>| t.map_or(NO_TARGET, |t| t.id);
        let factors = |t: &Option<Target>| t.map_or([0.0; 2], |t| [t.weight, t.bonus]);
        let cut = match rows.filters(out) {
            true => Some([gpu.buffer(4 * n)?, gpu.buffer(4 * n)?, gpu.zeros(4 * n)?]),
            false => None,
        };
        Ok(RowState {
            target: gpu.upload(&rows.targets.iter().map(id).collect::<Vec<u32>>())?,
            factors: gpu.upload(&rows.targets.iter().map(factors).collect::<Vec<[f32; 2]>>())?,
            values: gpu.zeros(n * 12)?,
            cut,
            sets: KeptRows::new(gpu, rows)?,
        })
    }

    /// Waits for the device and returns the values of each row with a target.
    fn download(&self, gpu: &Gpu, rows: &LossRows<'_>) -> Result<Vec<Option<LogProb>>> {
        let values = download_values(gpu, &self.values)?;
        let kept = self.cut.as_ref().map(|cut| gpu.download::<u32>(&cut[2])).transpose()?;
        let value = |(n, target): (usize, &Option<Target>)| {
            target.map(|target| {
                let kept = match (rows.kept_set(n), &kept) {
                    (Some(set), _) => set.contains(target.id),
                    (None, Some(kept)) => kept[n] != 0,
                    (None, None) => true,
                };
                LogProb { kept, ..values[n] }
            })
        };
        let values: Vec<_> = rows.targets.iter().enumerate().map(value).collect();
        match values.iter().position(|v| v.is_some_and(|v| !v.lse.is_finite())) {
            Some(row) => Err(Error::NotFinite { what: "logits".into(), row }),
            None => Ok(values),
        }
    }

    fn buffers(&self) -> RowBuffers {
        let [last, cut, kept] = self.cut.as_ref().map_or([At(0); 3], |c| c.each_ref().map(Buffer::arg));
        let [set, bits] = self.sets.as_ref().map_or([At(0); 2], |s| [s.set.arg(), s.bits.arg()]);
        RowBuffers {
            target: self.target.arg(),
            factors: self.factors.arg(),
            values: self.values.arg(),
            last,
            cut,
            kept,
            set,
            bits,
        }
    }
}

/// Operands of a loss, and the maximum number of logits in memory.
struct LossPass<'a> {
    gpu: &'a Gpu,
    x: At,
    head: &'a Weight,
    rows: &'a LossRows<'a>,
    buffers: RowBuffers,
    max_logits: usize,
}

impl LossPass<'_> {
    fn bytes(&self) -> usize {
        self.head.dtype().bytes()
    }

    /// Computes the values of the rows, a block of rows with the full vocabulary at a time. With `kept`, sets the
    /// entries that are `None` to the sets that the filters keep.
    fn values(&self, n: usize, mut kept: Option<&mut [Option<KeptSet>]>) -> Result<()> {
        let out = self.head.out_features();
        let step = (self.max_logits / out).clamp(1, n.max(1));
        let z = self.gpu.buffer(4 * step * out)?;
        for start in (0..n).step_by(step) {
            let block = start..n.min(start + step);
            self.logits(&block, 0..out, &z)?;
            self.row_values(&block, &z, Entropy::WithValues)?;
            if let Some(kept) = kept.as_deref_mut().filter(|_| self.buffers.last != At(0)) {
                self.download_kept(&block, &z, &mut kept[block.clone()])?;
            }
        }
        Ok(())
    }

    /// Sets the entries that are `None` to the sets that the filters keep in the logits of the rows `block`.
    fn download_kept(&self, block: &Range<usize>, z: &Buffer, kept: &mut [Option<KeptSet>]) -> Result<()> {
        let (v, buffers) = (self.head.out_features(), self.buffers.starting_at(block.start));
        let words = v.div_ceil(32);
        let bits = self.gpu.zeros(4 * words * block.len())?;
        let t = self.rows.temperature;
        let args = args![z.arg(), buffers.target, buffers.last, buffers.cut, bits.arg(), v as u32, t];
        let grid = Grid::blocks([block.len(), words.div_ceil(8), 1], 256);
        // SAFETY: z is [block, v], the buffers have as many rows as the block, and bits is [block, words].
        unsafe { self.gpu.launch("cross_entropy_kept_f32", grid, args)? };
        let bits = self.gpu.download::<u32>(&bits)?;
        for (kept, bits) in kept.iter_mut().zip(bits.chunks_exact(words)) {
            kept.get_or_insert_with(|| KeptSet::from_bits(v, bits));
        }
        Ok(())
    }

    /// Sets the logits `z` that the given kept sets remove to -inf.
    fn remove(&self, block: &Range<usize>, columns: &Range<usize>, z: &Buffer) -> Result<()> {
        let buffers = self.buffers.starting_at(block.start);
        if buffers.set == At(0) {
            return Ok(());
        }
        let words = self.head.out_features().div_ceil(32) as u32;
        let (n, first) = (columns.len() as u32, columns.start as u32);
        let args = args![z.arg(), buffers.target, buffers.set, buffers.bits, words, n, first];
        let grid = Grid::blocks([block.len(), columns.len().div_ceil(1024), 1], 256);
        // SAFETY: z is [block, columns], the buffers have as many rows as the block, and each set refers to a bitmap
        // of the vocabulary.
        unsafe { self.gpu.launch("cross_entropy_remove_f32", grid, args) }
    }

    /// Computes the values of the rows, `dx`, and the head's gradient. Rows and vocabulary are split as on the CPU:
    /// if 256 rows of logits fit, by rows only, and logits become gradients in place; otherwise also by columns,
    /// whose logits are computed a second time.
    fn gradients(&self, n: usize, dx: At, dhead: At) -> Result<()> {
        let (width, out) = (self.head.in_features(), self.head.out_features());
        let full_vocab = 256 * out <= self.max_logits;
        if !full_vocab {
            self.values(n, None)?;
        }
        let ignored = |bonus: f32| bonus < 0.0 && faults::on(Fault::NegativeBonusWithoutEntropy);
        let bonus = self.rows.targets.iter().flatten().any(|t| t.bonus != 0.0 && !ignored(t.bonus));
        let entropy = if full_vocab && !bonus { Entropy::WithGradient } else { Entropy::WithValues };
        let blocks = blocks::of_rows(self.rows.samples, self.max_logits, out);
        let columns_of = |rows: usize| {
            blocks::of_columns(out, if full_vocab { out } else { self.max_logits / rows.max(1) })
        };
        let size = |rows: usize| rows * columns_of(rows).map(|c| c.len()).max().unwrap_or(0);
        let size = blocks.iter().map(|(rows, _)| size(rows.len())).max().unwrap_or(0);
        let z = self.gpu.buffer(4 * size)?;
        let rounded = self.gpu.buffer(if self.head.dtype() == Dtype::BF16 { 2 * size } else { 0 })?;
        for (block, samples) in &blocks {
            for columns in columns_of(block.len()) {
                self.logits(block, columns.clone(), &z)?;
                if full_vocab {
                    self.row_values(block, &z, entropy)?;
                }
                let dz = self.gradient(block, &columns, &z, &rounded, entropy)?;
                let dhead = row(dhead, columns.start, 4 * width);
                let dx = row(dx, block.start, 4 * width);
                self.products(block, samples, &columns, dz, dx, dhead)?;
            }
        }
        Ok(())
    }

    /// `z` = logits of the rows `block` and the outputs `columns`, -inf where a given kept set removes them.
    fn logits(&self, block: &Range<usize>, columns: Range<usize>, z: &Buffer) -> Result<()> {
        let (width, dtype) = (self.head.in_features(), self.head.dtype());
        let product = Forward {
            x: row(self.x, block.start, width * self.bytes()),
            w: row(self.head.at(self.gpu)?, columns.start, width * self.bytes()),
            shape: [block.len(), columns.len(), width],
            dtype,
        };
        let tile = product.tile(self.gpu);
        // SAFETY: rows and columns within x and the head, and z has room for their product.
        unsafe { linear::forward(self.gpu, product, Epilogue::default(), z.arg(), Dtype::F32, tile)? };
        self.remove(block, &columns, z)
    }

    /// Computes the values of the rows `block` from all of their logits.
    fn row_values(&self, block: &Range<usize>, z: &Buffer, entropy: Entropy) -> Result<()> {
        let (buffers, shape) =
            (self.buffers.starting_at(block.start), [block.len(), self.head.out_features()]);
        let t = self.rows.temperature;
        if buffers.last != At(0) {
            let (v, k) = (shape[1] as u32, self.rows.top_k.map_or(0, |k| k.min(shape[1])) as u32);
            let LossRows { top_p, min_p, .. } = *self.rows;
            let RowBuffers { target, last, cut, kept, .. } = buffers;
            let args = args![z.arg(), target, last, cut, kept, buffers.set, v, k, top_p, min_p, t];
            // SAFETY: z is [block, v], and the buffers have as many rows as the block.
            unsafe {
                self.gpu.launch("cross_entropy_cutoff_f32", Grid::blocks([shape[0], 1, 1], 512), args)?
            };
        }
        // SAFETY: z is [block, v] and the buffers have as many rows as the block.
        unsafe { values_of(self.gpu, z.arg(), &buffers, shape, t, entropy) }
    }

    /// Computes the gradients of the logits `z`, in place or rounded to bf16, and returns their address.
    fn gradient(
        &self,
        block: &Range<usize>,
        columns: &Range<usize>,
        z: &Buffer,
        rounded: &Buffer,
        entropy: Entropy,
    ) -> Result<At> {
        let (gpu, buffers) = (self.gpu, self.buffers.starting_at(block.start));
        let (rows, chunks) = (block.len(), columns.len().div_ceil(128));
        let entropies = match entropy {
            Entropy::WithGradient => Some(gpu.buffer(4 * rows * chunks)?),
            Entropy::WithValues => None,
        };
        let to = if self.head.dtype() == Dtype::BF16 { rounded.arg() } else { At(0) };
        let (first, n) = (columns.start as u32, columns.len() as u32);
        let args = args![
            z.arg(),
            buffers.target,
            buffers.factors,
            buffers.values,
            buffers.last,
            buffers.cut,
            entropies.as_ref().map_or(At(0), Buffer::arg),
            to,
            n,
            first,
            self.rows.temperature
        ];
        let grid = Grid::blocks([rows, chunks.div_ceil(8), 1], 256);
        // SAFETY: z and the rounded gradients are [block, columns], and the buffers have as many rows as the block.
        unsafe { gpu.launch("cross_entropy_gradient_f32", grid, args)? };
        if let Some(entropies) = entropies {
            let args = args![entropies.arg(), buffers.values, chunks as u32, rows as u32];
            // SAFETY: the entropies are [chunks, rows], and the buffers have as many rows as the block.
            unsafe { gpu.launch("cross_entropy_entropy_f32", Grid::over(rows, 256), args)? };
        }
        Ok(if to == At(0) { z.arg() } else { to })
    }

    /// Accumulates `dx` over the outputs `columns` (the first columns initialize it), and adds to their rows of
    /// `dhead`.
    fn products(
        &self,
        block: &Range<usize>,
        samples: &Samples,
        columns: &Range<usize>,
        dz: At,
        dx: At,
        dhead: At,
    ) -> Result<()> {
        let (gpu, width, dtype) = (self.gpu, self.head.in_features(), self.head.dtype());
        let x = row(self.x, block.start, width * self.bytes());
        let w = row(self.head.at(gpu)?, columns.start, width * self.bytes());
        let start = if columns.start == 0 { At(0) } else { dx };
        let part = Part { dy: dz, w, outs: columns.len() };
        let group = Group { parts: [part, Part::default(), Part::default()], dtype };
        let products = [RowProduct { dw: dhead, accumulate: true, dy: dz, x, shape: [columns.len(), width] }];
        let shape = [block.len(), width];
        // SAFETY: dz [block, columns]; rows and columns within x, the head and their gradients.
        unsafe {
            weights(gpu, &products, dtype, samples, tile_of(gpu, &products, dtype, samples))?;
            input(gpu, &group, shape, start, [dx, At(0)], group.tile(gpu, shape))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
