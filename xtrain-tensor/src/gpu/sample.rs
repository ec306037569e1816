//! The choice of tokens: four launches for all rows, five where ids are penalised; sixteen bytes a row
//! come back.
use super::{At, Gpu, Grid, args};
use crate::ops::{SampleRow, Sampled, Undrawable};
use crate::{Dtype, Result, Tensor};

/// Logits of a chunk.
const CHUNK: usize = 128;

/// Chunks of a block, a warp each.
const WARPS: usize = 8;

/// A token for each row of `logits [N, V]`; options and ids have been checked.
pub(crate) fn sample_rows(
    gpu: &Gpu,
    logits: &Tensor,
    rows: &[SampleRow<'_>],
) -> Result<Vec<std::result::Result<Sampled, Undrawable>>> {
    let (n, v) = (rows.len(), logits.width());
    let chunks = v.div_ceil(CHUNK);
    let x = logits.at(gpu, Dtype::F32)?;
    let (options, seen) = words(rows);
    let options = gpu.indices(&options)?;
    let penalised = penalise(gpu, logits, options, &seen)?;
    let y = match &penalised {
        Some(y) => y.at(gpu, Dtype::F32)?,
        None => x,
    };
    let [raw, kept, total] =
        [gpu.buffer(8 * n * chunks)?, gpu.buffer(8 * n * chunks)?, gpu.buffer(8 * n * chunks)?];
    let (states, picked) = (gpu.buffer(16 * n)?, gpu.buffer(16 * n)?);
    let (width, count) = (v as u32, chunks as u32);
    let by_chunk = Grid::blocks([n, chunks.div_ceil(WARPS), 1], 32 * WARPS as u32);
    let by_row = |threads| Grid::blocks([n, 1, 1], threads);
    // SAFETY: x and y are [n, v]; options, states and picked have an entry a row; raw, kept and total one
    // a chunk of a row; the blocks are those that each kernel's header asks for.
    unsafe {
        gpu.launch("sample_chunks_f32", by_chunk, args![x, raw.arg(), width, count])?;
        let args = args![y, options, raw.arg(), states.arg(), width, count];
        gpu.launch("sample_cut_f32", by_row(512), args)?;
        let args = args![y, options, states.arg(), kept.arg(), total.arg(), width, count];
        gpu.launch("sample_weigh_f32", by_chunk, args)?;
        let states = states.arg();
        let sums = [raw.arg(), kept.arg(), total.arg()];
        let args = args![x, y, options, states, sums[0], sums[1], sums[2], picked.arg(), width, count];
        gpu.launch("sample_pick_f32", by_row(32), args)?;
    }
    Ok(gpu.download::<[u32; 4]>(&picked)?.into_iter().map(outcome).collect())
}

/// The logits under the penalties of their rows; none where no row has one.
fn penalise(gpu: &Gpu, logits: &Tensor, options: At, seen: &[u32]) -> Result<Option<Tensor>> {
    if seen.is_empty() {
        return Ok(None);
    }
    let y = Tensor::on_gpu(gpu, logits.shape(), Dtype::F32)?;
    let (from, to) = (logits.at(gpu, Dtype::F32)?, y.at(gpu, Dtype::F32)?);
    let args = args![from, to, options, gpu.indices(seen)?, logits.width() as u32];
    // SAFETY: both are [n, v]; the ids that a row has seen are below v and lie in `seen`.
    unsafe {
        gpu.copy(to.0, from.0, 4 * logits.len())?;
        gpu.launch("sample_penalty_f32", Grid::blocks([logits.shape()[0], 1, 1], 256), args)?;
    }
    Ok(Some(y))
}

/// The entries of `SampleRow` in kernels/sample.cuh, word by word, and the ids that all rows have seen,
/// no id twice in a row. A row without a penalty has seen none.
fn words(rows: &[SampleRow<'_>]) -> (Vec<u32>, Vec<u32>) {
    let (mut words, mut all) = (Vec::with_capacity(12 * rows.len()), Vec::new());
    for row in rows {
        let first = all.len() as u32;
        if row.penalty != 1.0 {
            let mut seen = row.seen.to_vec();
            seen.sort_unstable();
            seen.dedup();
            all.extend(seen);
        }
        let floats = [row.top_p, row.min_p, row.penalty].map(f32::to_bits);
        words.extend([row.seed, row.id].into_iter().flat_map(|x| [x as u32, (x >> 32) as u32]));
        words.extend([row.position, row.temperature.to_bits(), row.top_k]);
        words.extend(floats);
        words.extend([first, all.len() as u32]);
    }
    (words, all)
}

/// What the last kernel wrote of a row.
fn outcome([fault, token, log_prob, processed]: [u32; 4]) -> std::result::Result<Sampled, Undrawable> {
    match fault {
        0 => Ok(Sampled { token, log_prob: f32::from_bits(log_prob), processed: f32::from_bits(processed) }),
        1 => Err(Undrawable::NotFinite),
        2 => Err(Undrawable::NothingLeft),
        _ => Err(Undrawable::Overflow),
    }
}
