//! Token sampling: four kernel launches for all rows, five with repetition penalties. Sampled tokens (16 bytes per
//! row) stay on the device until the host reads them back. The index lists of all steps are uploaded once, before the
//! first step.
use super::{At, Buffer, Gpu, Grid, args};
use crate::ops::{SampleFailure, SampleRow, Sampled};
use crate::{
    Dtype, Error, Result, Tensor,
    faults::{self, Fault},
};

/// Logits per chunk.
const CHUNK: usize = 128;

/// Chunks per block, one warp each.
const WARPS: usize = 8;

/// Logits per block of `sample_penalty`.
const PENALTY_BLOCK: usize = 4096;

/// Size of `SampleRow` (kernels/sample.cuh) in 32-bit words.
const WORDS: usize = 12;

/// Initial step counter (one before step 0) and padding; the lists follow.
const STEP_HEADER: [u32; 4] = [u32::MAX, 0, 0, 0];

/// Maximum number of index lists per step.
pub(crate) const LISTS: usize = 2;

/// Sampling result of one row.
type Outcome = std::result::Result<Sampled, SampleFailure>;

/// Samples one token per row of `logits [N, V]` and synchronizes. Options and ids have been checked.
pub(crate) fn sample_rows(gpu: &Gpu, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<Vec<Outcome>> {
    let mut sampler = DeviceSampler::new(gpu, rows.len(), 1)?;
    sampler.launch(logits, rows)?;
    sampler.look()
}

/// Sampled tokens of several steps that are still on the device.
#[derive(Debug)]
pub(crate) struct DeviceSampler {
    gpu: Gpu,
    rows: usize,
    steps: usize,
    /// `[steps, N, 4]`: fault, token, and the bits of two log-probabilities.
    samples: Buffer,
    /// `[N]`: the last token of each row.
    tokens: Buffer,
    /// Step counter, incremented by the kernels; the index lists of all steps follow from word 4.
    step_counter: Buffer,
    /// The index lists of the current step.
    current_lists: Buffer,
    /// Host copy of the index lists of all steps.
    lists: Vec<Vec<Vec<u32>>>,
    /// Host copy of `tokens`. `None`: outdated.
    host_tokens: Option<Vec<u32>>,
}

impl DeviceSampler {
    /// Allocates room for `max_steps` steps of `rows` rows.
    pub(crate) fn new(gpu: &Gpu, rows: usize, max_steps: usize) -> Result<DeviceSampler> {
        let bytes = rows.checked_mul(16).and_then(|row| row.checked_mul(max_steps.max(1)));
        let Some(bytes) = bytes.filter(|&bytes| isize::try_from(bytes).is_ok()) else {
            let got = format!("{max_steps} steps of {rows} rows");
            return Err(Error::Argument {
                op: "DeviceSampler",
                want: "steps and rows that memory can hold",
                got,
            });
        };
        let (samples, tokens) = (gpu.buffer(bytes)?, gpu.buffer(4 * rows)?);
        let current_lists = gpu.buffer(4 * LISTS * rows)?;
        let step_counter = Buffer::acquire_idle(gpu, size_of_val(&STEP_HEADER) + bytes / 16 * 4 * LISTS)?;
        // SAFETY: the buffer is large enough, and no kernel uses it yet.
        unsafe { gpu.upload_into(step_counter.at(), &STEP_HEADER)? };
        let gpu = gpu.clone();
        Ok(DeviceSampler {
            gpu,
            rows: 0,
            steps: 0,
            samples,
            tokens,
            step_counter,
            current_lists,
            lists: Vec::new(),
            host_tokens: None,
        })
    }

    /// Starts a new sequence of steps after `tokens`, and uploads the index lists of all steps. The number of rows
    /// and steps must fit the allocation.
    pub(crate) fn begin(&mut self, tokens: &[u32], lists: Vec<Vec<Vec<u32>>>) -> Result<()> {
        (self.rows, self.steps) = (tokens.len(), 0);
        self.gpu.submit_step()?;
        let words = [&STEP_HEADER, &*lists.iter().flatten().flatten().copied().collect::<Vec<_>>()].concat();
        // SAFETY: the buffer is large enough; the kernels of `launch` and `begin_step` that use it have been
        // submitted.
        unsafe { self.gpu.upload_into(self.step_counter.at(), &words)? };
        self.lists = lists;
        if self.host_tokens.as_deref() != Some(tokens) {
            // SAFETY: the buffer has one token per row; kernels that use it have been submitted, as above.
            unsafe { self.gpu.upload_into(self.tokens.at(), tokens)? };
        }
        self.host_tokens = None;
        Ok(())
    }

    /// Begins a step: copies its index lists over those of the previous step.
    fn begin_step(&self) -> Result<()> {
        let Some(lists) = self.lists.get(self.steps).filter(|lists| !lists.is_empty()) else { return Ok(()) };
        let (words, from) =
            (lists.len() * self.rows, At(self.step_counter.at() + size_of_val(&STEP_HEADER) as u64));
        let args = args![self.step_counter.arg(), from, self.current_lists.arg(), words as u32];
        if !(faults::on(Fault::ListsOfTheTurnBefore) && self.steps > 0) {
            // SAFETY: the counter is one before this step; `from` has `words` words for each step up to this one, and
            // `current_lists` has room for `words` words.
            unsafe { self.gpu.launch("load_step_indices", Grid::over(words, 128), args)? };
        }
        let places = (0..).map(|i| At(self.current_lists.at() + (4 * i * self.rows) as u64));
        self.gpu.stage_indices(lists.iter().cloned().zip(places));
        Ok(())
    }

    /// Begins a step and returns the rows of `w [V, C]` for the last tokens, rounded if `dtype` is bf16. Tokens are
    /// below `V`.
    pub(crate) fn embedding(&self, w: &Tensor, dtype: Dtype) -> Result<Tensor> {
        self.begin_step()?;
        super::embedding::rows(&self.gpu, w, (self.tokens.arg(), self.rows), dtype)
    }

    /// Samples one token per row of `logits` and submits the step. Options and ids have been checked.
    pub(crate) fn draw(&mut self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<()> {
        self.launch(logits, rows)?;
        self.gpu.submit_step()
    }

    fn launch(&mut self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<()> {
        let (gpu, n, v) = (&self.gpu, rows.len(), logits.width());
        let chunks = v.div_ceil(CHUNK);
        let x = logits.at(gpu, Dtype::F32)?;
        let (options, seen) = words(rows, self.steps as u32);
        // the options are the same in all steps, so they are uploaded once
        let (options, step_counter) = (gpu.indices(&options)?, self.step_counter.arg());
        let [raw, kept, total] =
            [gpu.buffer(8 * n * chunks)?, gpu.buffer(8 * n * chunks)?, gpu.buffer(8 * n * chunks)?];
        let states = gpu.buffer(16 * n)?;
        let (width, count) = (v as u32, chunks as u32);
        let by_chunk = Grid::blocks([n, chunks.div_ceil(WARPS), 1], 32 * WARPS as u32);
        let by_row = |threads| Grid::blocks([n, 1, 1], threads);
        // SAFETY: x and y are [n, v]; options and states have one entry per row, samples one per row and step; raw,
        // kept and total have one per chunk of a row; the grids are those of the kernels' headers.
        unsafe {
            gpu.launch("sample_chunks_f32", by_chunk, args![x, raw.arg(), step_counter, width, count])?;
            let apply_penalties = self.apply_penalties(logits, options, &seen, rows)?;
            let y = match &apply_penalties {
                Some(y) => y.at(gpu, Dtype::F32)?,
                None => x,
            };
            let args = args![y, options, raw.arg(), states.arg(), width, count];
            gpu.launch("sample_cutoff_f32", by_row(512), args)?;
            let args = args![y, options, states.arg(), kept.arg(), total.arg(), width, count];
            gpu.launch("sample_weights_f32", by_chunk, args)?;
            let states = states.arg();
            let sums = [raw.arg(), kept.arg(), total.arg()];
            let drawn = [self.samples.arg(), self.tokens.arg()];
            let args = args![
                x,
                y,
                options,
                step_counter,
                states,
                sums[0],
                sums[1],
                sums[2],
                drawn[0],
                drawn[1],
                width,
                count
            ];
            gpu.launch("sample_pick_f32", by_row(32), args)?;
        }
        (self.rows, self.steps) = (n, self.steps + 1);
        Ok(())
    }

    /// Logits with repetition penalties applied. `None`: no row has a penalty.
    fn apply_penalties(
        &self,
        logits: &Tensor,
        options: At,
        seen: &[u32],
        rows: &[SampleRow<'_>],
    ) -> Result<Option<Tensor>> {
        if rows.iter().all(|row| row.penalty == 1.0) {
            return Ok(None);
        }
        let gpu = &self.gpu;
        let y = Tensor::on_gpu(gpu, logits.shape(), Dtype::F32)?;
        let (from, to) = (logits.at(gpu, Dtype::F32)?, y.at(gpu, Dtype::F32)?);
        let args = args![
            from,
            to,
            options,
            gpu.indices(seen)?,
            self.step_counter.arg(),
            self.samples.arg(),
            logits.width() as u32
        ];
        let grid = Grid::blocks([rows.len(), logits.width().div_ceil(PENALTY_BLOCK), 1], 256);
        // SAFETY: both are [n, v]; the penalized ids are below v and stored in `seen`, those sampled in earlier steps
        // in `samples`.
        unsafe { gpu.launch("sample_penalty_f32", grid, args)? };
        Ok(Some(y))
    }

    /// Downloads the sampled tokens of all steps. Synchronizes.
    pub(crate) fn look(&mut self) -> Result<Vec<Outcome>> {
        let samples: Vec<[u32; 4]> = self.gpu.download_first(&self.samples, self.steps * self.rows)?;
        let last = &samples[samples.len() - self.rows.min(samples.len())..];
        self.host_tokens = Some(last.iter().map(|p| p[1]).collect());
        Ok(samples.into_iter().map(outcome).collect())
    }
}

impl Drop for DeviceSampler {
    fn drop(&mut self) {
        self.gpu.clear_staged_indices();
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
        let floats = [row.top_p, row.min_p, row.penalty].map(f32::to_bits);
        words.extend([row.seed, row.id].into_iter().flat_map(|x| [x as u32, (x >> 32) as u32]));
        words.extend([row.position.wrapping_sub(step), row.temperature.to_bits(), row.top_k]);
        words.extend(floats);
        words.extend([first, all.len() as u32]);
    }
    (words, all)
}

/// Decodes one entry of `sample_pick`.
fn outcome([fault, token, log_prob, processed]: [u32; 4]) -> Outcome {
    match fault {
        0 => Ok(Sampled { token, log_prob: f32::from_bits(log_prob), processed: f32::from_bits(processed) }),
        1 => Err(SampleFailure::NotFinite),
        2 => Err(SampleFailure::NothingLeft),
        _ => Err(SampleFailure::Overflow),
    }
}
