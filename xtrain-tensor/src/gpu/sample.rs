//! The choice of tokens: four launches for all rows, five where ids are penalised. Sixteen bytes a row are written,
//! where they stay until the host looks. What each turn needs to know of its rows is sent once, before the first.
use super::{At, Buffer, Gpu, Grid, args};
use crate::ops::{SampleFailure, SampleRow, Sampled};
use crate::{
    Dtype, Error, Result, Tensor,
    faults::{self, Fault},
};

/// Logits of a chunk.
const CHUNK: usize = 128;

/// Chunks of a block, a warp each.
const WARPS: usize = 8;

/// Logits that a block copies and penalises.
const PENALISED: usize = 4096;

/// Words of `SampleRow` in kernels/sample.cuh.
const WORDS: usize = 12;

/// The number of the turn before turn 0, and nothing up to the lists that follow it.
const BEFORE_THE_FIRST: [u32; 4] = [u32::MAX, 0, 0, 0];

/// Lists of a turn that there is room for.
pub(crate) const LISTS: usize = 2;

/// What a row drew.
type Outcome = std::result::Result<Sampled, SampleFailure>;

/// A token for each row of `logits [N, V]`; options and ids have been checked.
pub(crate) fn sample_rows(gpu: &Gpu, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<Vec<Outcome>> {
    let mut draws = DeviceSampler::new(gpu, rows.len(), 1)?;
    draws.launch(logits, rows)?;
    draws.look()
}

/// Tokens that rows drew turn by turn, on the device.
#[derive(Debug)]
pub(crate) struct DeviceSampler {
    gpu: Gpu,
    rows: usize,
    turns: usize,
    /// `[turns, N, 4]`: fault, token, and the bits of two log-probabilities.
    picked: Buffer,
    /// `[N]`: the last of each row.
    tokens: Buffer,
    /// The turn under way, which the kernels count themselves; from word 4 on the lists of all turns.
    turn: Buffer,
    /// The lists of the turn under way.
    now: Buffer,
    /// Those of all turns, as the host knows them.
    lists: Vec<Vec<Vec<u32>>>,
    /// The tokens, as far as the host knows them.
    known: Option<Vec<u32>>,
}

impl DeviceSampler {
    /// Room for `most` turns of `rows` rows.
    pub(crate) fn new(gpu: &Gpu, rows: usize, most: usize) -> Result<DeviceSampler> {
        let bytes = rows.checked_mul(16).and_then(|row| row.checked_mul(most.max(1)));
        let Some(bytes) = bytes.filter(|&bytes| isize::try_from(bytes).is_ok()) else {
            let got = format!("{most} turns of {rows} rows");
            return Err(Error::Argument {
                op: "DeviceSampler",
                want: "turns and rows that memory can hold",
                got,
            });
        };
        let (picked, tokens) = (gpu.buffer(bytes)?, gpu.buffer(4 * rows)?);
        let now = gpu.buffer(4 * LISTS * rows)?;
        let turn = Buffer::acquire_idle(gpu, size_of_val(&BEFORE_THE_FIRST) + bytes / 16 * 4 * LISTS)?;
        // SAFETY: there is room; no kernel knows of it.
        unsafe { gpu.upload_into(turn.at(), &BEFORE_THE_FIRST)? };
        let gpu = gpu.clone();
        Ok(DeviceSampler {
            gpu,
            rows: 0,
            turns: 0,
            picked,
            tokens,
            turn,
            now,
            lists: Vec::new(),
            known: None,
        })
    }

    /// Turns begin anew, after these tokens; there is room for as many rows, and for the lists of so many turns.
    pub(crate) fn begin(&mut self, tokens: &[u32], lists: Vec<Vec<Vec<u32>>>) -> Result<()> {
        (self.rows, self.turns) = (tokens.len(), 0);
        self.gpu.submit_step()?;
        let words =
            [&BEFORE_THE_FIRST, &*lists.iter().flatten().flatten().copied().collect::<Vec<_>>()].concat();
        // SAFETY: there is room; the kernels that know of it are those of `launch` and `turn`, and have gone.
        unsafe { self.gpu.upload_into(self.turn.at(), &words)? };
        self.lists = lists;
        if self.known.as_deref() != Some(tokens) {
            // SAFETY: there is room for a token a row; kernels that know of them have gone, as above.
            unsafe { self.gpu.upload_into(self.tokens.at(), tokens)? };
        }
        self.known = None;
        Ok(())
    }

    /// A turn begins: its lists come to where those of the turn before are.
    fn turn(&self) -> Result<()> {
        let Some(lists) = self.lists.get(self.turns).filter(|lists| !lists.is_empty()) else { return Ok(()) };
        let (words, from) =
            (lists.len() * self.rows, At(self.turn.at() + size_of_val(&BEFORE_THE_FIRST) as u64));
        let args = args![self.turn.arg(), from, self.now.arg(), words as u32];
        if !(faults::on(Fault::ListsOfTheTurnBefore) && self.turns > 0) {
            // SAFETY: `turn` is the one before this; `from` holds so many words of each turn up to this, `now` as many.
            unsafe { self.gpu.launch("load_step_indices", Grid::over(words, 128), args)? };
        }
        let places = (0..).map(|i| At(self.now.at() + (4 * i * self.rows) as u64));
        self.gpu.stage_indices(lists.iter().cloned().zip(places));
        Ok(())
    }

    /// The rows of `w [V, C]` of the last tokens, rounded where `dtype` is bf16; they are below `V`. Begins a turn.
    pub(crate) fn embedding(&self, w: &Tensor, dtype: Dtype) -> Result<Tensor> {
        self.turn()?;
        super::embedding::rows(&self.gpu, w, (self.tokens.arg(), self.rows), dtype)
    }

    /// A token for each row of `logits`, and the end of a step; options and ids have been checked.
    pub(crate) fn draw(&mut self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<()> {
        self.launch(logits, rows)?;
        self.gpu.submit_step()
    }

    fn launch(&mut self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<()> {
        let (gpu, n, v) = (&self.gpu, rows.len(), logits.width());
        let chunks = v.div_ceil(CHUNK);
        let x = logits.at(gpu, Dtype::F32)?;
        let (options, seen) = words(rows, self.turns as u32);
        // the options of all turns are alike: they are brought once
        let (options, turn) = (gpu.indices(&options)?, self.turn.arg());
        let [raw, kept, total] =
            [gpu.buffer(8 * n * chunks)?, gpu.buffer(8 * n * chunks)?, gpu.buffer(8 * n * chunks)?];
        let states = gpu.buffer(16 * n)?;
        let (width, count) = (v as u32, chunks as u32);
        let by_chunk = Grid::blocks([n, chunks.div_ceil(WARPS), 1], 32 * WARPS as u32);
        let by_row = |threads| Grid::blocks([n, 1, 1], threads);
        // SAFETY: x and y are [n, v]; options and states have an entry a row, picked one a row and turn; raw, kept
        // and total one a chunk of a row; the blocks are those that each kernel's header asks for.
        unsafe {
            gpu.launch("sample_chunks_f32", by_chunk, args![x, raw.arg(), turn, width, count])?;
            let penalised = self.penalised(logits, options, &seen, rows)?;
            let y = match &penalised {
                Some(y) => y.at(gpu, Dtype::F32)?,
                None => x,
            };
            let args = args![y, options, raw.arg(), states.arg(), width, count];
            gpu.launch("sample_cutoff_f32", by_row(512), args)?;
            let args = args![y, options, states.arg(), kept.arg(), total.arg(), width, count];
            gpu.launch("sample_weights_f32", by_chunk, args)?;
            let states = states.arg();
            let sums = [raw.arg(), kept.arg(), total.arg()];
            let drawn = [self.picked.arg(), self.tokens.arg()];
            let args = args![
                x, y, options, turn, states, sums[0], sums[1], sums[2], drawn[0], drawn[1], width, count
            ];
            gpu.launch("sample_pick_f32", by_row(32), args)?;
        }
        (self.rows, self.turns) = (n, self.turns + 1);
        Ok(())
    }

    /// The logits under the penalties of their rows; none where no row has one.
    fn penalised(
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
            self.turn.arg(),
            self.picked.arg(),
            logits.width() as u32
        ];
        let grid = Grid::blocks([rows.len(), logits.width().div_ceil(PENALISED), 1], 256);
        // SAFETY: both are [n, v]; the ids that a row has seen are below v and lie in `seen`, those that it drew in
        // the turns before in `picked`.
        unsafe { gpu.launch("sample_penalty_f32", grid, args)? };
        Ok(Some(y))
    }

    /// What the rows drew, turn by turn: the host waits for it.
    pub(crate) fn look(&mut self) -> Result<Vec<Outcome>> {
        let picked: Vec<[u32; 4]> = self.gpu.download_first(&self.picked, self.turns * self.rows)?;
        let last = &picked[picked.len() - self.rows.min(picked.len())..];
        self.known = Some(last.iter().map(|p| p[1]).collect());
        Ok(picked.into_iter().map(outcome).collect())
    }
}

impl Drop for DeviceSampler {
    fn drop(&mut self) {
        self.gpu.clear_staged_indices();
    }
}

/// The entries of `SampleRow` in kernels/sample.cuh, word by word, and the ids that all rows have seen,
/// no id twice in a row. A row without a penalty has seen none.
fn words(rows: &[SampleRow<'_>], turn: u32) -> (Vec<u32>, Vec<u32>) {
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
        words.extend([row.position.wrapping_sub(turn), row.temperature.to_bits(), row.top_k]);
        words.extend(floats);
        words.extend([first, all.len() as u32]);
    }
    (words, all)
}

/// What the last kernel wrote of a row.
fn outcome([fault, token, log_prob, processed]: [u32; 4]) -> Outcome {
    match fault {
        0 => Ok(Sampled { token, log_prob: f32::from_bits(log_prob), processed: f32::from_bits(processed) }),
        1 => Err(SampleFailure::NotFinite),
        2 => Err(SampleFailure::NothingLeft),
        _ => Err(SampleFailure::Overflow),
    }
}
