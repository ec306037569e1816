//! Sampling whose tokens stay on the device.
use super::checks::{misfit, misfit_shapes};
use super::sample::check_rows;
use crate::device::Device;
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::operands::{MAX_LISTS, Outcome, SampleRing, SampleRow, StepLists, Weight};
use crate::tensor::Tensor;

const OP: &str = "DeviceSampler";

/// Samples tokens step by step and keeps them on the device. The tokens of a step are the input of the next step. On
/// a GPU, several steps run without synchronization.
///
/// 1. [`stage`](DeviceSampler::stage) sets the first tokens and uploads the index lists of all steps.
/// 2. Each step reads [`embedding`](DeviceSampler::embedding) or [`weight_rows`](DeviceSampler::weight_rows), computes
///    logits, and calls [`sample`](DeviceSampler::sample).
/// 3. [`read_back`](DeviceSampler::read_back) synchronizes and returns the samples of all steps.
///
/// After `read_back`, and after a step that failed, [`stage`](DeviceSampler::stage) is next: the other methods return
/// [`Error::Argument`] until then.
///
/// Tokens and log-probabilities are bit-identical to those of [`sample_rows`](super::sample_rows).
#[derive(Debug)]
pub struct DeviceSampler {
    ring: Box<dyn SampleRing>,
    /// Maximum number of rows and of steps between two read-backs.
    capacity: [usize; 2],
    /// Whether steps or their read-back may follow.
    is_staged: bool,
    rows: usize,
    steps: usize,
    /// Every last token is below it.
    vocab: usize,
}

impl DeviceSampler {
    /// Creates a sampler of up to `rows` rows and `steps` steps between two read-backs.
    ///
    /// # Errors
    /// [`Error::Memory`] if the device has no memory for it; [`Error::Argument`] if the size overflows.
    pub fn new(device: &Device, rows: usize, steps: usize) -> Result<DeviceSampler> {
        let ring = backend(device).sample_ring(rows, steps)?;
        Ok(DeviceSampler { ring, capacity: [rows, steps], is_staged: false, rows: 0, steps: 0, vocab: 0 })
    }

    /// The maximum number of rows.
    pub fn capacity(&self) -> usize {
        self.capacity[0]
    }

    /// Starts a sequence of steps. `tokens` is the last token of each row; it is uploaded unless the device already
    /// holds it from the previous steps.
    ///
    /// `lists[t]` are the index lists (positions, slots) that operations of step `t` will read, one index per row, at
    /// most two lists. A GPU receives the lists of all steps here in one copy, so that no step needs an upload.
    ///
    /// # Errors
    /// [`Error::Argument`] for more rows, steps or lists than the capacity, and for steps with different numbers of
    /// lists.
    pub fn stage(&mut self, tokens: &[u32], lists: StepLists) -> Result<()> {
        if tokens.len() > self.capacity[0] {
            let got = format!("{} of {}", tokens.len(), self.capacity[0]);
            return Err(Error::Argument { op: OP, want: "no more rows than the capacity", got });
        }
        let n_lists = lists.first().map_or(0, Vec::len);
        let fits = |step: &Vec<Vec<u32>>| {
            step.len() == n_lists && step.iter().all(|list| list.len() == tokens.len())
        };
        if lists.len() > self.capacity[1] || n_lists > MAX_LISTS || !lists.iter().all(fits) {
            let got = format!("{} steps of {n_lists}", lists.len());
            return Err(Error::Argument { op: OP, want: "up to two lists per step, an index per row", got });
        }
        (self.is_staged, self.rows, self.steps) = (false, tokens.len(), 0);
        self.vocab = tokens.iter().max().map_or(0, |&t| t as usize + 1);
        self.ring.stage(tokens, lists)?;
        self.is_staged = true;
        Ok(())
    }

    fn check_staged(&self) -> Result<()> {
        let (want, got) = ("`stage` before a step", "none since the last `read_back` or failed step");
        if self.is_staged { Ok(()) } else { Err(Error::Argument { op: OP, want, got: got.into() }) }
    }

    /// [`embedding`](super::embedding) of the last token of each row: `w [V, C]` → `[N, C]`.
    ///
    /// # Errors
    /// [`Error::Shape`] unless `w` is f32 with a row for each id; [`Error::Argument`] unless the rows are staged.
    pub fn embedding(&self, w: &Tensor, dtype: Dtype) -> Result<Tensor> {
        self.check_staged()?;
        match w.shape() {
            &[v, _] if self.vocab <= v && w.dtype() == Dtype::F32 => self.ring.embedding(w, dtype),
            _ => Err(misfit(OP, "w [V, C] in f32, a row for each id", &[w])),
        }
    }

    /// [`weight_rows`](super::weight_rows) of the last token of each row.
    ///
    /// # Errors
    /// [`Error::Shape`] unless `w` has a row for each id; [`Error::Argument`] unless the rows are staged; those of
    /// [`weight_rows`](super::weight_rows).
    pub fn weight_rows(&self, w: &Weight) -> Result<Tensor> {
        self.check_staged()?;
        if self.vocab > w.out_features() {
            return Err(misfit_shapes(OP, "w [V, C], a row for each id", &[&w.shape()]));
        }
        self.ring.weight_rows(w)
    }

    /// Samples a token for each row of `logits [N, V]`. It becomes the row's last token. `seen` of a row excludes the
    /// tokens sampled since [`DeviceSampler::stage`]; the repetition penalty includes them.
    ///
    /// # Errors
    /// As [`sample_rows`](super::sample_rows); [`Error::Argument`] for more steps than the capacity, and unless the rows
    /// are staged. After an error of the device, nothing can be read back.
    pub fn sample(&mut self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<()> {
        self.check_staged()?;
        check_rows(OP, logits, rows)?;
        if self.steps == self.capacity[1] || rows.len() != self.rows {
            let got = format!("step {} of {} rows", self.steps + 1, rows.len());
            return Err(Error::Argument { op: OP, want: "a step of the staged rows", got });
        }
        if !rows.is_empty() {
            // a step that failed may have changed the tokens and the counter on the device
            self.is_staged = false;
            self.ring.sample(logits, rows)?;
            self.is_staged = true;
        }
        (self.vocab, self.steps) = (self.vocab.max(logits.width()), self.steps + 1);
        Ok(())
    }

    /// Synchronizes and returns the samples of each step since [`DeviceSampler::stage`]. A row without a sample
    /// continues from id 0.
    ///
    /// # Errors
    /// [`Error::Device`] if the device fails; [`Error::Argument`] unless the rows are staged.
    pub fn read_back(&mut self) -> Result<Vec<Vec<Outcome>>> {
        self.check_staged()?;
        self.is_staged = false;
        match self.steps {
            0 => Ok(Vec::new()),
            steps if self.rows == 0 => Ok(vec![Vec::new(); steps]),
            _ => self.ring.read_back(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ThreadSchedule;
    use crate::testing::{self, arbitrary};

    const VOCAB: usize = 150;

    /// The samples of each step, and the table rows gathered by each of its two index lists, as bits.
    type Steps = (Vec<Vec<[u32; 3]>>, Vec<Vec<u32>>);

    /// Steps of a chain whose next logits are a row of a table.
    fn run(device: &Device, dtype: Dtype) -> Result<Steps> {
        let table: Vec<f32> = arbitrary(VOCAB * VOCAB, 4).iter().map(|x| 6.0 * x).collect();
        let w = Tensor::new(device, &[VOCAB, VOCAB], table)?;
        let (mut sampler, mut all, mut gathered_bits) =
            (DeviceSampler::new(device, 6, 5)?, Vec::new(), Vec::new());
        let mut last: Vec<u32> = vec![7, 149, 0, 31, 8];
        for round in 0..3 {
            let list = |step: u32, stride: u32| -> Vec<u32> {
                (0..last.len() as u32).map(|n| (n * stride + 11 * step + round) % VOCAB as u32).collect()
            };
            let steps = [5, 1, 4][round as usize];
            sampler.stage(&last, (0..steps).map(|step| vec![list(step, 7), list(step, 31)]).collect())?;
            let mut gathered = Vec::new();
            for step in 0..steps {
                let logits = sampler.embedding(&w, dtype)?;
                for stride in [7, 31] {
                    gathered.push(super::super::gather_rows(&w, &list(step, stride))?);
                }
                let row = |n: usize| SampleRow {
                    seed: 3,
                    id: n as u64,
                    position: 10 * round + step,
                    temperature: [1.0, 0.0, 0.7, 1.2, 0.0][n],
                    top_k: [0, 0, 20, 0, 0][n],
                    top_p: [1.0, 1.0, 1.0, 0.9, 1.0][n],
                    min_p: 0.0,
                    penalty: [1.0, 2.5, 1.0, 3.0, 1.0][n],
                    seen: &last,
                };
                sampler.sample(&logits, &(0..last.len()).map(row).collect::<Vec<_>>())?;
            }
            let sampled = sampler.read_back()?;
            for rows in gathered {
                gathered_bits.push(rows.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect());
            }
            let next = sampled.last().expect("at least one step");
            last = next.iter().map(|o| o.expect("a token").token).collect();
            let bits = |o: Outcome| {
                let s = o.expect("a token");
                [s.token, s.log_prob.to_bits(), s.processed.to_bits()]
            };
            all.extend(sampled.iter().map(|step| step.iter().map(|&o| bits(o)).collect()));
            // fewer rows in the third round: the tokens are uploaded again
            last.truncate(5 - round as usize);
        }
        Ok((all, gathered_bits))
    }

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn a_gpu_samples_the_tokens_of_the_cpu() {
        for dtype in [Dtype::F32, Dtype::BF16] {
            let want = run(&Device::cpu(), dtype).unwrap();
            assert_eq!([want.0.len(), want.1.len()], [10, 20]);
            let schedules = [
                ThreadSchedule::Forward,
                ThreadSchedule::Backward,
                ThreadSchedule::Random(3),
                ThreadSchedule::Priorities(4),
            ];
            let devices =
                testing::gpus(&schedules).into_iter().chain([testing::checked(ThreadSchedule::Random(2))]);
            for device in devices {
                assert_eq!(run(&device, dtype).unwrap(), want, "{device}");
            }
        }
    }

    #[cfg(feature = "faults")]
    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn index_lists_of_the_previous_step_change_the_gathered_rows() {
        let want = run(&Device::cpu(), Dtype::F32).unwrap();
        for device in testing::gpus(&[ThreadSchedule::Forward]) {
            let with = || run(&device, Dtype::F32);
            let seen = crate::faults::with(crate::faults::Fault::StaleStepIndices, with).unwrap();
            assert_eq!(seen.0, want.0, "{device}: sampling does not read the lists");
            assert_eq!(seen.1[..2], want.1[..2], "{device}: the first step has no previous step");
            assert_eq!(
                seen.1[2..4],
                want.1[..2],
                "{device}: the second step gathers by the lists of the first"
            );
            assert_ne!(seen.1[2..4], want.1[2..4], "{device}: and not by its own lists");
        }
    }

    /// A kernel penalizes 4096 logits per block: each of these tokens belongs to another block than the one before.
    #[test]
    fn a_penalty_applies_to_the_tokens_of_earlier_steps_across_blocks() {
        const TOKENS: [u32; 5] = [4100, 3, 8199, 4095, 4096];
        let mut logits = arbitrary(8200, 6);
        for (at, &token) in TOKENS.iter().enumerate() {
            logits[token as usize] = 9.0 - at as f32 / 2.0;
        }
        for device in testing::available_gpus(&[ThreadSchedule::Forward]).into_iter().chain([Device::cpu()]) {
            let mut sampler = DeviceSampler::new(&device, 1, TOKENS.len()).unwrap();
            let logits = Tensor::new(&device, &[1, logits.len()], logits.clone()).unwrap();
            sampler.stage(&[0], Vec::new()).unwrap();
            let row = |step: usize| SampleRow { position: step as u32, penalty: 5.0, ..SampleRow::GREEDY };
            (0..TOKENS.len()).for_each(|step| sampler.sample(&logits, &[row(step)]).unwrap());
            let sampled = sampler.read_back().unwrap();
            let tokens: Vec<u32> = sampled.iter().map(|rows| rows[0].expect("a token").token).collect();
            assert_eq!(tokens, TOKENS, "{device}");
        }
    }

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn tokens_that_a_gpu_sampled_are_not_uploaded_again() {
        for device in testing::gpus(&[ThreadSchedule::Forward]) {
            let mut sampler = DeviceSampler::new(&device, 2, 1).unwrap();
            let logits = Tensor::new(&device, &[2, 3], vec![0f32, 5.0, 1.0, 7.0, 0.0, 0.0]).unwrap();
            sampler.stage(&[2, 2], Vec::new()).unwrap();
            sampler.sample(&logits, &[SampleRow::GREEDY; 2]).unwrap();
            sampler.read_back().unwrap();
            let uploaded = || device.gpu_counters().expect("a GPU").uploaded;
            let mut of_stage = |tokens: &[u32]| {
                let before = uploaded();
                sampler.stage(tokens, Vec::new()).unwrap();
                uploaded() - before
            };
            let [sampled, other] = [of_stage(&[1, 0]), of_stage(&[1, 0])];
            assert_eq!(other - sampled, 8, "{device}: the second time, the sampled tokens are not known");
        }
    }

    #[test]
    fn steps_without_rows_have_no_tokens() {
        for device in testing::available_gpus(&[ThreadSchedule::Forward]).into_iter().chain([Device::cpu()]) {
            let mut sampler = DeviceSampler::new(&device, 2, 3).unwrap();
            let logits = Tensor::new(&device, &[0, VOCAB], Vec::<f32>::new()).unwrap();
            for steps in [2, 0, 3] {
                sampler.stage(&[], Vec::new()).unwrap();
                (0..steps).for_each(|_| sampler.sample(&logits, &[]).unwrap());
                assert_eq!(sampler.read_back().unwrap(), vec![Vec::new(); steps], "{device}");
            }
        }
    }

    /// Every method but `stage` is refused.
    #[track_caller]
    fn assert_not_staged(sampler: &mut DeviceSampler, device: &Device, logits: &Tensor) {
        let w = Tensor::zeros(device, &[9, 4], Dtype::F32).unwrap();
        let weight = Weight::new(&w, Dtype::F32).unwrap();
        let refused = [
            sampler.sample(logits, &[SampleRow::GREEDY; 2]),
            sampler.embedding(&w, Dtype::F32).map(drop),
            sampler.weight_rows(&weight).map(drop),
            sampler.read_back().map(drop),
        ];
        for refused in refused {
            let want = "DeviceSampler: expected `stage` before a step, found none since the last `read_back` or \
                        failed step";
            assert_eq!(refused.unwrap_err().to_string(), want, "{device}");
        }
    }

    /// The devices of a protocol: the checked one reports a write behind the last step.
    fn devices() -> Vec<Device> {
        let gpus = [testing::emulated(ThreadSchedule::Forward), testing::checked(ThreadSchedule::Forward)];
        [Device::cpu(), Device::reference()].into_iter().chain(gpus).collect()
    }

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn steps_before_the_first_stage_and_after_a_read_back_are_refused() {
        for device in devices() {
            let mut sampler = DeviceSampler::new(&device, 2, 1).unwrap();
            let logits = Tensor::new(&device, &[2, 3], vec![0f32, 5.0, 1.0, 7.0, 0.0, 0.0]).unwrap();
            assert_not_staged(&mut sampler, &device, &logits);
            for _ in 0..2 {
                sampler.stage(&[2, 2], Vec::new()).unwrap();
                sampler.sample(&logits, &[SampleRow::GREEDY; 2]).unwrap();
                let tokens: Vec<u32> =
                    sampler.read_back().unwrap()[0].iter().map(|o| o.expect("a token").token).collect();
                assert_eq!(tokens, [1, 0], "{device}");
                assert_not_staged(&mut sampler, &device, &logits);
            }
        }
    }

    /// The logits of the failed step are on another device.
    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn steps_after_a_failed_step_are_refused_until_rows_are_staged() {
        let elsewhere = testing::emulated(ThreadSchedule::Backward);
        for device in devices() {
            let mut sampler = DeviceSampler::new(&device, 2, 3).unwrap();
            let on =
                |device: &Device| Tensor::new(device, &[2, 3], vec![0f32, 5.0, 1.0, 7.0, 0.0, 0.0]).unwrap();
            let logits = on(&device);
            sampler.stage(&[2, 2], Vec::new()).unwrap();
            sampler.sample(&logits, &[SampleRow::GREEDY; 2]).unwrap();
            let failed = sampler.sample(&on(&elsewhere), &[SampleRow::GREEDY; 2]);
            assert!(matches!(failed, Err(Error::Device { .. })), "{failed:?}");
            assert_not_staged(&mut sampler, &device, &logits);
            sampler.stage(&[1, 0], Vec::new()).unwrap();
            sampler.sample(&logits, &[SampleRow::GREEDY; 2]).unwrap();
            let steps = sampler.read_back().unwrap();
            let tokens = steps.iter().map(|step| step.iter().map(|o| o.expect("a token").token).collect());
            assert_eq!(tokens.collect::<Vec<Vec<u32>>>(), [[1, 0]], "{device}");
        }
    }

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn a_capacity_beyond_memory_is_refused() {
        for device in testing::gpus(&[ThreadSchedule::Forward]) {
            for (rows, steps) in [(usize::MAX / 8, 1), (1 << 20, usize::MAX >> 20), (1 << 40, 1 << 20)] {
                let refused = DeviceSampler::new(&device, rows, steps).map(|_| ());
                assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
            }
        }
    }

    #[test]
    fn rows_and_steps_beyond_the_capacity_are_refused() {
        let cpu = Device::cpu();
        let mut sampler = DeviceSampler::new(&cpu, 2, 1).unwrap();
        assert_eq!(sampler.capacity(), 2);
        assert!(matches!(sampler.stage(&[1, 2, 3], Vec::new()), Err(Error::Argument { .. })));
        for lists in [vec![vec![]; 2], vec![vec![vec![4, 5]]], vec![vec![vec![4]; 3]]] {
            assert!(matches!(sampler.stage(&[1], lists), Err(Error::Argument { .. })));
        }
        sampler.stage(&[1], vec![vec![vec![4]; 2]]).unwrap();
        let logits = Tensor::new(&cpu, &[1, 2], vec![1f32, 2.0]).unwrap();
        sampler.sample(&logits, &[SampleRow::GREEDY]).unwrap();
        assert!(sampler.sample(&logits, &[SampleRow::GREEDY]).is_err());
        assert_eq!(sampler.read_back().unwrap().len(), 1);
    }
}
