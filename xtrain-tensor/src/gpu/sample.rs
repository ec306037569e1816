//! Token sampling: one launch if all rows are greedy, otherwise two, and two more for each of top-k and top-p. Repetition
//! penalties take one more launch. Each step writes 16 bytes per row, which stay on the device until they are read back. The
//! index lists of all steps are uploaded once, before the first step.
use super::{At, Buffer, Gpu, Grid, args};
use crate::operands::{MAX_LISTS, Outcome, SampleFailure, SampleRing, SampleRow, Sampled, StepLists, Weight};
use crate::{
    Dtype, Error, Result, Tensor,
    faults::{self, Fault},
};

/// Logits per chunk.
const CHUNK: usize = 128;

/// Chunks per block, one per warp.
const WARPS: usize = 8;

/// Logits of a row per block (`SAMPLE_BLOCK` of kernels/sample.cuh), of kernels with 256 threads.
const BLOCK: usize = 4096;

/// Bins of `sample_histogram`, of 8 bytes.
pub(super) const BINS: usize = 4096;

/// Ranks in the list of a row, of 8 bytes (`SELECT_LIST` of kernels/sample_cutoff.cu).
const LIST: usize = 4096;

/// Bytes of `RowSelect` in kernels/sample.cuh.
const ROW_SELECT: usize = 32;

/// Words of `SampleRow` in kernels/sample.cuh.
const WORDS: usize = 12;

/// Initial step counter (one before step 0), and padding; the lists follow.
const STEP_HEADER: [u32; 4] = [u32::MAX, 0, 0, 0];

/// Samples a token for each row of `logits [N, V]`; options and ids have been checked.
pub(crate) fn sample_rows(gpu: &Gpu, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<Vec<Outcome>> {
    let mut ring = GpuSampleRing::new(gpu, rows.len(), 1)?;
    ring.launch(logits, rows)?;
    (ring.rows, ring.steps) = (rows.len(), 1);
    ring.download()
}

/// The grid of kernels whose blocks share a row of `v` logits.
fn by_block([n, v]: [usize; 2]) -> Grid {
    Grid::blocks([n, v.div_ceil(BLOCK), 1], 256)
}

/// Logits after the penalty `[n, v]` and their maxima, of chunks before it and of blocks after it.
struct Filtered {
    y: At,
    options: At,
    raw: At,
    maxima: At,
    n: usize,
    v: usize,
}

impl Filtered {
    /// Computes the lowest rank that top-k and top-p keep, for each row that has a filter.
    fn launch(&self, gpu: &Gpu, rows: &[SampleRow<'_>]) -> Result<Buffer> {
        let Filtered { y, options, raw, maxima, n, v } = *self;
        let selects = gpu.buffer(ROW_SELECT * n)?;
        let sampled = |row: &&SampleRow<'_>| row.temperature != 0.0;
        let top_k = rows.iter().filter(sampled).any(|row| row.top_k != 0 && (row.top_k as usize) < v);
        let top_p = rows.iter().filter(sampled).any(|row| row.top_p < 1.0);
        for (_, is_top_p) in [(top_k, 0u32), (top_p, 1)].into_iter().filter(|(used, _)| *used) {
            let list = gpu.buffer(8 * LIST * n)?;
            let (bins, counters) = (gpu.bins(BINS * n)?, gpu.counters(n)?);
            let [selects, list] = [selects.arg(), list.arg()];
            // SAFETY: y is [n, v], options and selects have an entry per row, raw one per chunk of a row and maxima one
            // per block of a row that has a penalty; there are a list, bins and a counter for each row.
            unsafe {
                let args = args![y, options, raw, selects, bins, counters, maxima, v, is_top_p];
                gpu.launch("sample_histogram_f32", by_block([n, v]), args)?;
                let args = args![y, options, raw, selects, list, counters, maxima, v, is_top_p];
                gpu.launch("sample_cutoff_f32", by_block([n, v]), args)?;
            }
        }
        Ok(selects)
    }
}

/// The tokens and samples of several steps, on the device.
#[derive(Debug)]
pub(crate) struct GpuSampleRing {
    gpu: Gpu,
    rows: usize,
    steps: usize,
    /// `[steps, N, 4]`: fault, token, and the bits of two log-probabilities.
    samples: Buffer,
    /// `[N]`: the last token of each row.
    tokens: Buffer,
    /// The step counter, which kernels increment; from word 4 on the index lists of all steps.
    step: Buffer,
    /// The index lists of the current step.
    current_lists: Buffer,
    /// The index lists of all steps, on the host.
    lists: StepLists,
    /// The last tokens. `None`: the host does not have them.
    known: Option<Vec<u32>>,
}

impl GpuSampleRing {
    /// Buffers for `max_steps` steps of `rows` rows.
    pub(crate) fn new(gpu: &Gpu, rows: usize, max_steps: usize) -> Result<GpuSampleRing> {
        let bytes = rows.checked_mul(16).and_then(|row| row.checked_mul(max_steps.max(1)));
        let Some(bytes) = bytes.filter(|&bytes| isize::try_from(bytes).is_ok()) else {
            let (want, got) =
                ("steps and rows that fit in memory", format!("{max_steps} steps of {rows} rows"));
            return Err(Error::Argument { op: "DeviceSampler", want, got });
        };
        let (samples, tokens) = (gpu.buffer(bytes)?, gpu.buffer(4 * rows)?);
        let current_lists = gpu.buffer(4 * MAX_LISTS * rows)?;
        let step = Buffer::acquire_idle(gpu, size_of_val(&STEP_HEADER) + bytes / 16 * 4 * MAX_LISTS)?;
        // SAFETY: the buffer is large enough, and no queued kernel uses it.
        unsafe { gpu.upload_into(step.at(), &STEP_HEADER)? };
        let gpu = gpu.clone();
        Ok(GpuSampleRing {
            gpu,
            rows: 0,
            steps: 0,
            samples,
            tokens,
            step,
            current_lists,
            lists: Vec::new(),
            known: None,
        })
    }

    /// Starts a step: its index lists replace those of the previous step.
    fn start_step(&self) -> Result<()> {
        let Some(lists) = self.lists.get(self.steps).filter(|lists| !lists.is_empty()) else { return Ok(()) };
        let (words, from) = (lists.len() * self.rows, At(self.step.at() + size_of_val(&STEP_HEADER) as u64));
        let args = args![self.step.arg(), from, self.current_lists.arg(), words];
        if !(faults::on(Fault::StaleStepIndices) && self.steps > 0) {
            // SAFETY: the counter is that of the previous step; `from` has `words` words per step, and
            // `current_lists` has room for `words` words.
            unsafe { self.gpu.launch("load_step_indices", Grid::over(words, 128), args)? };
        }
        let places = (0..).map(|i| At(self.current_lists.at() + (4 * i * self.rows) as u64));
        self.gpu.stage_indices(lists.iter().cloned().zip(places));
        Ok(())
    }

    /// Samples a token for each row of `logits`. The caller counts the step.
    fn launch(&self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<()> {
        let (gpu, n, v) = (&self.gpu, rows.len(), logits.width());
        let chunks = v.div_ceil(CHUNK);
        let x = logits.at(gpu, Dtype::F32)?;
        let (options, seen) = words(rows, self.steps as u32);
        // the options are the same in all steps, so they are uploaded once
        let (options, step) = (gpu.indices(&options)?, self.step.arg());
        let sums = || gpu.buffer(8 * n * chunks);
        let raw = sums()?;
        let by_chunk = Grid::blocks([n, chunks.div_ceil(WARPS), 1], 32 * WARPS as u32);
        let (samples, tokens) = (self.samples.arg(), self.tokens.arg());
        if rows.iter().all(|row| row.temperature == 0.0 && row.penalty == 1.0) {
            let args = args![x, step, raw.arg(), samples, tokens, gpu.counters(n + 1)?, v, chunks];
            // SAFETY: x is [n, v], raw has an entry per chunk of a row, samples one per row and step, tokens one per row;
            // there are a counter for each row and one more; the grid is that of the kernel's header.
            return unsafe { gpu.launch("sample_greedy_f32", by_chunk, args) };
        }
        // SAFETY: as above.
        unsafe { gpu.launch("sample_chunks_f32", by_chunk, args![x, raw.arg(), step, v, chunks])? };
        let penalized = self.penalized(logits, options, &seen, rows)?;
        let (y, maxima) = match &penalized {
            Some((y, maxima)) => (y.at(gpu, Dtype::F32)?, maxima.arg()),
            None => (x, At(0)),
        };
        let filtered = Filtered { y, options, raw: raw.arg(), maxima, n, v };
        let selects = filtered.launch(gpu, rows)?;
        let (kept, total, counters) = (sums()?, sums()?, gpu.counters(n)?);
        let [selects, raw, kept, total] = [selects.arg(), raw.arg(), kept.arg(), total.arg()];
        let args = args![
            x, y, options, step, selects, raw, kept, total, samples, tokens, counters, maxima, v, chunks
        ];
        // SAFETY: x and y are [n, v]; options and selects have one entry per row, samples one per row and step; raw,
        // kept and total have one per chunk of a row, maxima per block of a row that has a penalty, counters per row.
        unsafe { gpu.launch("sample_pick_f32", by_block([n, v]), args) }
    }

    /// The logits after the repetition penalty, and their maximum for each block of a row that has one. `None`: no row
    /// has one.
    fn penalized(
        &self,
        logits: &Tensor,
        options: At,
        seen: &[u32],
        rows: &[SampleRow<'_>],
    ) -> Result<Option<(Tensor, Buffer)>> {
        if rows.iter().all(|row| row.penalty == 1.0) {
            return Ok(None);
        }
        let gpu = &self.gpu;
        let y = Tensor::on_gpu(gpu, logits.shape(), Dtype::F32)?;
        let (x_at, y_at, seen) = (logits.at(gpu, Dtype::F32)?, y.at(gpu, Dtype::F32)?, gpu.indices(seen)?);
        let (n, v) = (rows.len(), logits.width());
        let maxima = gpu.buffer(4 * n * v.div_ceil(BLOCK))?;
        let (step, samples) = (self.step.arg(), self.samples.arg());
        let args = args![x_at, y_at, options, seen, step, samples, maxima.arg(), v];
        // SAFETY: both are [n, v]; the penalized ids are below v and stored in `seen`, those sampled in earlier
        // steps in `samples`; maxima has an entry per block.
        unsafe { gpu.launch("sample_penalty_f32", by_block([n, v]), args)? };
        Ok(Some((y, maxima)))
    }

    /// The samples of all steps; waits for the device.
    fn download(&mut self) -> Result<Vec<Outcome>> {
        let samples: Vec<[u32; 4]> = self.gpu.download_first(&self.samples, self.steps * self.rows)?;
        let last = &samples[samples.len() - self.rows.min(samples.len())..];
        self.known = Some(last.iter().map(|p| p[1]).collect());
        Ok(samples.into_iter().map(outcome).collect())
    }
}

/// Each method holds the issue lock.
impl SampleRing for GpuSampleRing {
    fn stage(&mut self, tokens: &[u32], lists: StepLists) -> Result<()> {
        let _issue = self.gpu.issue();
        let known = self.known.take();
        self.gpu.end_step()?;
        let words = [&STEP_HEADER, &*lists.iter().flatten().flatten().copied().collect::<Vec<_>>()].concat();
        // SAFETY: the buffer is large enough; the kernels that use it have been submitted.
        unsafe { self.gpu.upload_into(self.step.at(), &words)? };
        if known.as_deref() != Some(tokens) {
            // SAFETY: the buffer has one token per row; the kernels that use it have been submitted.
            unsafe { self.gpu.upload_into(self.tokens.at(), tokens)? };
        }
        (self.rows, self.steps, self.lists) = (tokens.len(), 0, lists);
        Ok(())
    }

    /// Starts a step.
    fn embedding(&self, w: &Tensor, dtype: Dtype) -> Result<Tensor> {
        let _issue = self.gpu.issue();
        self.start_step()?;
        super::embedding::rows(&self.gpu, w, self.tokens.arg(), self.rows, dtype)
    }

    fn weight_rows(&self, w: &Weight) -> Result<Tensor> {
        self.embedding(w.table()?, w.dtype())
    }

    /// Ends the step.
    fn sample(&mut self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<()> {
        let gpu = self.gpu.clone();
        let _issue = gpu.issue();
        self.launch(logits, rows)?;
        gpu.end_step()?;
        self.steps += 1;
        Ok(())
    }

    fn read_back(&mut self) -> Result<Vec<Vec<Outcome>>> {
        let gpu = self.gpu.clone();
        let _issue = gpu.issue();
        Ok(self.download()?.chunks(self.rows.max(1)).map(<[Outcome]>::to_vec).collect())
    }
}

impl Drop for GpuSampleRing {
    fn drop(&mut self) {
        self.gpu.stage_indices(std::iter::empty());
    }
}

/// `SampleRow` entries (kernels/sample.cuh) as 32-bit words, and the list of penalized ids of all rows. Ids are
/// unique per row; a row without a penalty has none.
fn words(rows: &[SampleRow<'_>], step: u32) -> (Vec<u32>, Vec<u32>) {
    let (mut words, mut all) = (Vec::with_capacity(WORDS * rows.len()), Vec::new());
    for row in rows {
        let first = all.len() as u32;
        if row.penalty != 1.0 {
            let mut seen = row.seen.to_vec();
            seen.sort_unstable();
            seen.dedup();
            all.extend(seen);
        }
        words.extend([row.seed, row.id].into_iter().flat_map(|x| [x as u32, (x >> 32) as u32]));
        words.extend([row.position.wrapping_sub(step), row.temperature.to_bits(), row.top_k]);
        words.extend([row.top_p, row.min_p, row.penalty].map(f32::to_bits));
        words.extend([first, all.len() as u32]);
    }
    (words, all)
}

/// Decodes the entry that `sample_pick` wrote for a row.
fn outcome([fault, token, log_prob, processed]: [u32; 4]) -> Outcome {
    match fault {
        0 => Ok(Sampled { token, log_prob: f32::from_bits(log_prob), processed: f32::from_bits(processed) }),
        1 => Err(SampleFailure::NotFinite),
        2 => Err(SampleFailure::NothingLeft),
        _ => Err(SampleFailure::Overflow),
    }
}

#[cfg(test)]
#[cfg(xtrain_emu)]
pub(crate) mod tests;
