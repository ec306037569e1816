//! The gate for shards: steps of S shards, on one and on several processes, against the definition: each shard as a step
//! of its own, and the totals added level by level.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use xtrain::model::checkpoint::{CheckpointDir, RealFs};
use xtrain::model::comm::{self, Communicator, ThreadProcess};
use xtrain::model::store;
use xtrain::model::{
    Grads, LogitsProcessing, Processes, Trainer, TrainingExample, exchange_groups, objective,
};
use xtrain::tensor::testing::gpus;
use xtrain::tensor::{Device, Simd, Tensor, ThreadSchedule, faults};

use crate::cli::Scratch;
use crate::rng::CaseRng;
use crate::training::{Bits, Difference, GateCase, Run, failed, same_bits, state};

pub(crate) const SEED: u64 = 20_250_608;

/// The shard of sample `i` of `n`: the only s with `s n / S < i + 1 <= (s + 1) n / S`.
fn shard_of(i: usize, n: usize, shards: usize) -> usize {
    (0..shards).rfind(|s| s * n < (i + 1) * shards).expect("shard 0 is one")
}

/// The sum of the totals, level by level.
fn by_levels(mut level: Vec<Vec<f32>>) -> Vec<f32> {
    while level.len() > 1 {
        let add = |pair: &[Vec<f32>]| match pair {
            [left, right] => left.iter().zip(right).map(|(left, right)| left + right).collect(),
            _ => pair[0].clone(),
        };
        level = level.chunks(2).map(add).collect();
    }
    level.remove(0)
}

/// The loss and the gradients of a step, from the definition.
fn naive(trainer: &Trainer, samples: &[TrainingExample], shards: usize) -> (f32, Vec<Vec<f32>>) {
    let mut totals = Vec::new();
    for shard in 0..shards {
        let own = (0..samples.len()).filter(|&i| shard_of(i, samples.len(), shards) == shard);
        let own: Vec<TrainingExample> = own.map(|i| samples[i].clone()).collect();
        let (mut loss, mut grads) = (0f32, Grads::zeros(&trainer.model.params).unwrap());
        if !own.is_empty() {
            let how = LogitsProcessing::default();
            objective::backward(&trainer.model, &own, how, &mut loss, &mut grads).unwrap();
        }
        let grads = grads.finish().unwrap();
        let mut total: Vec<Vec<f32>> = grads.iter().map(|g| g.to_vec().unwrap()).collect();
        total.push(vec![loss]);
        totals.push(total);
    }
    let uses = 0..totals[0].len();
    let mut sums: Vec<Vec<f32>> =
        uses.map(|at| by_levels(totals.iter().map(|total| total[at].clone()).collect())).collect();
    (sums.pop().unwrap()[0], sums)
}

/// The losses, norms and the final state of a run, from the definition.
pub(crate) fn by_definition(run: &Run, shards: usize) -> Bits {
    let mut trainer = run.trainer(&Device::cpu_with(1, Simd::detect())).unwrap();
    let mut all = Vec::new();
    for n in 0..run.steps {
        let samples = run.samples(run.data, n);
        let (loss, grads) = naive(&trainer, &samples, shards);
        let params = trainer.model.params.iter();
        let grads: Vec<Tensor> =
            params.zip(grads).map(|(p, g)| Tensor::new(p.device(), p.shape(), g).unwrap()).collect();
        let rate = trainer.schedule.rate(n);
        let norm = trainer.optimizer.step(&mut trainer.model.params, &grads, rate).unwrap().norm;
        all.push((format!("loss and norm of step {n}"), vec![loss.to_bits(), norm.to_bits()]));
    }
    trainer.resume_at(run.steps, targets(run));
    all.extend(state(&trainer));
    all
}

/// The number of target tokens of all steps.
fn targets(run: &Run) -> u64 {
    let of_step =
        |n| run.samples(run.data, n).iter().map(|sample| sample.targets().count() as u64).sum::<u64>();
    (0..run.steps).map(of_step).sum()
}

/// The losses, norms and the final state of a run of a process.
fn trained(run: &Run, shards: usize, comm: Option<Arc<dyn Communicator>>) -> Result<Bits, Difference> {
    let threads = CaseRng::new(SEED ^ 4, run.number).between(1, 2);
    let join = |trainer: &mut Trainer| {
        comm.map_or(Ok(()), |comm| trainer.join(&Processes::new(comm)).map_err(failed))
    };
    trained_on(run, shards, join, &Device::cpu_with(threads, Simd::detect()))
}

/// [`trained`] on `device`, after `join`.
pub(crate) fn trained_on(
    run: &Run,
    shards: usize,
    join: impl FnOnce(&mut Trainer) -> Result<(), Difference>,
    device: &Device,
) -> Result<Bits, Difference> {
    let mut rng = CaseRng::new(SEED ^ 3, run.number);
    let mut trainer = run.trainer(device).map_err(failed)?;
    trainer.shards = shards;
    join(&mut trainer)?;
    let mut all = Vec::new();
    for n in 0..run.steps {
        let samples = run.samples(run.data, n);
        let micro_batch = rng.between(1, samples.len());
        let report = trainer.step_weighted(samples, micro_batch).map_err(failed)?;
        let bits = vec![report.loss.to_bits(), report.grad_norm.to_bits()];
        all.push((format!("loss and norm of step {n}"), bits));
    }
    trainer.leave().map_err(failed)?;
    all.extend(state(&trainer));
    Ok(all)
}

/// A process that counts the bytes which it receives from others.
#[derive(Debug)]
struct Counting(ThreadProcess, AtomicU64);

impl Counting {
    fn count(&self, messages: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let others = messages.iter().enumerate().filter(|(from, _)| *from != self.rank());
        self.1.fetch_add(others.map(|(_, message)| message.len() as u64).sum(), Ordering::Relaxed);
        messages
    }
}

impl Communicator for Counting {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn size(&self) -> usize {
        self.0.size()
    }
    fn barrier(&self) -> comm::Result<()> {
        self.0.barrier()
    }
    fn broadcast(&self, root: usize, message: &[u8]) -> comm::Result<Vec<u8>> {
        self.0.broadcast(root, message)
    }
    fn all_to_all(&self, messages: Vec<Vec<u8>>) -> comm::Result<Vec<Vec<u8>>> {
        self.0.all_to_all(messages).map(|messages| self.count(messages))
    }
    fn transfer(&self, send: &[Vec<&[u8]>], receive: Vec<Vec<&mut [u8]>>) -> comm::Result<()> {
        let others = receive.iter().enumerate().filter(|(from, _)| *from != self.rank());
        let bytes: usize = others.flat_map(|(_, pieces)| pieces).map(|piece| piece.len()).sum();
        self.1.fetch_add(bytes as u64, Ordering::Relaxed);
        self.0.transfer(send, receive)
    }
    fn all_gather(&self, message: &[u8]) -> comm::Result<Vec<Vec<u8>>> {
        self.0.all_gather(message).map(|messages| self.count(messages))
    }
}

/// A process whose transfers fail after the first ones, as if another process had ended.
#[derive(Debug)]
struct Failing {
    process: ThreadProcess,
    transfers: AtomicU64,
}

impl Communicator for Failing {
    fn rank(&self) -> usize {
        self.process.rank()
    }
    fn size(&self) -> usize {
        self.process.size()
    }
    fn barrier(&self) -> comm::Result<()> {
        self.process.barrier()
    }
    fn broadcast(&self, root: usize, message: &[u8]) -> comm::Result<Vec<u8>> {
        self.process.broadcast(root, message)
    }
    fn all_to_all(&self, messages: Vec<Vec<u8>>) -> comm::Result<Vec<Vec<u8>>> {
        self.process.all_to_all(messages)
    }
    fn transfer(&self, send: &[Vec<&[u8]>], receive: Vec<Vec<&mut [u8]>>) -> comm::Result<()> {
        let one_fewer = |n: u64| n.checked_sub(1);
        self.transfers
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_fewer)
            .map_err(|_| comm::Error::Ended { rank: 0, size: self.size() })?;
        self.process.transfer(send, receive)
    }
    fn all_gather(&self, message: &[u8]) -> comm::Result<Vec<Vec<u8>>> {
        self.process.all_gather(message)
    }
}

/// Runs `work` as each of `size` processes, which are threads with the fault of this thread.
pub(crate) fn on_each<T: Send>(size: usize, work: impl Fn(ThreadProcess) -> T + Sync) -> Vec<T> {
    let (work, fault) = (&work, faults::current());
    std::thread::scope(|scope| {
        let start = |process| scope.spawn(move || fault.enter(|| work(process)));
        let threads: Vec<_> = ThreadProcess::group(size).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Compares one process and every number of processes that divides `shards` with the definition. Returns the number of
/// compared values.
fn compared(run: &Run, shards: usize) -> Result<usize, Difference> {
    let want = by_definition(run, shards);
    let case = || GateCase { gate: "shards", number: run.number, seed: SEED };
    let mut n =
        same_bits(case(), &format!("{shards} shards in {run:?}"), &trained(run, shards, None)?, &want)?;
    for size in (2..=shards).filter(|size| shards.is_multiple_of(*size)) {
        for (rank, got) in
            on_each(size, |process| trained(run, shards, Some(Arc::new(process)))).into_iter().enumerate()
        {
            let setting = format!("{shards} shards, process {rank} of {size} in {run:?}");
            n += same_bits(case(), &setting, &got?, &want)?;
        }
    }
    Ok(n)
}

/// Runs the gate: models with tied and untied tables in f32 and bf16, `each` of them.
pub(crate) fn over(each: u64) -> Result<usize, String> {
    let mut n = 0;
    for number in 0..4 * each {
        for shards in [2, 3, 4, 6] {
            n += compared(&Run::draw(number), shards).map_err(|Difference(text)| text)?;
        }
    }
    Ok(n)
}

#[test]
fn steps_of_shards_have_the_bits_of_the_definition_on_any_number_of_processes() {
    let each = xtrain::tensor::testing::times(3, 30);
    let n = over(each).unwrap_or_else(|e| panic!("{e}"));
    println!("shards: {} runs with 2, 3, 4 and 6 shards on 1 to 6 processes, {n} values, 0 differ", 4 * each);
    assert!(n > 100_000, "{n}");
}

/// Compares two processes with one GPU each with the definition. Returns the number of compared values.
fn on_two_gpus() -> Result<usize, String> {
    let mut n = 0;
    // f32, with a tied and with an untied table
    for (number, shards) in [(0, 2), (1, 4)] {
        let mut run = Run::draw(number);
        run.cfg.head_dim = 8; // a multiple of 8 on a GPU
        let want = by_definition(&run, shards);
        let pairs = gpus(&[ThreadSchedule::Forward]).into_iter().zip(gpus(&[ThreadSchedule::Forward]));
        for devices in pairs.map(|(first, second)| [first, second]) {
            let found = on_each(2, |process| {
                let device = devices[process.rank()].clone();
                let join =
                    |trainer: &mut Trainer| trainer.join(&Processes::new(Arc::new(process))).map_err(failed);
                trained_on(&run, shards, join, &device)
            });
            for (rank, (got, device)) in found.into_iter().zip(&devices).enumerate() {
                let case = GateCase { gate: "shards", number, seed: SEED };
                let setting = format!("{shards} shards, process {rank} of 2 on {device} in {run:?}");
                let same = got.and_then(|got| same_bits(case, &setting, &got, &want));
                n += same.map_err(|Difference(text)| text)?;
            }
        }
    }
    Ok(n)
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn several_gpus_have_the_bits_of_the_definition() {
    let n = on_two_gpus().unwrap_or_else(|e| panic!("{e}"));
    println!("shards: two runs on two GPUs, {n} values, 0 differ");
    assert!(n > 1000, "{n}");
}

#[test]
#[cfg(feature = "faults")]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn faults_of_the_exchange_are_found_on_several_gpus() {
    use xtrain::tensor::faults::Fault;
    for fault in
        [Fault::EarlierShardsNotSent, Fault::SquaresInOrderOfProcesses, Fault::StaleWeightsOnOneProcess]
    {
        let found = faults::with(fault, on_two_gpus).expect_err("a fault that was not found");
        println!("{fault}: {found}");
    }
}

#[test]
fn more_shards_than_samples_and_odd_numbers_of_shards_have_the_bits_of_the_definition() {
    for (number, shards) in [(0, 1), (1, 5), (2, 7), (3, 13)] {
        compared(&Run::draw(number), shards).unwrap_or_else(|Difference(text)| panic!("{text}"));
    }
}

#[test]
fn one_shard_has_other_bits_than_two() {
    let run = Run::draw(0);
    assert_ne!(by_definition(&run, 1), by_definition(&run, 2));
}

#[test]
fn a_step_exchanges_two_copies_of_the_parameters_less_the_own_part() {
    let run = Run::draw(1);
    for size in [2, 4] {
        let received = on_each(size, |process| {
            let counting = Arc::new(Counting(process, AtomicU64::new(0)));
            let mut trainer = run.trainer(&Device::cpu_with(1, Simd::detect())).unwrap();
            trainer.shards = 4;
            trainer.join(&Processes::new(Arc::clone(&counting) as _)).unwrap();
            let _ = trainer.step_weighted(run.samples(run.data, 0), 2).unwrap();
            let params: u64 =
                trainer.model.params.iter().map(|p| p.shape().iter().product::<usize>() as u64).sum();
            let rows = trainer
                .model
                .params
                .iter()
                .map(|p| if p.shape().len() > 1 { p.shape()[0] as u64 } else { 1 });
            let groups = exchange_groups(&trainer.model.params, size);
            assert_eq!(groups.iter().sum::<usize>() as u64, params);
            (counting.1.load(Ordering::Relaxed), params, rows.sum::<u64>(), groups.len() as u64)
        });
        let (others, (_, params, rows, groups)) = (size as u64 - 1, received[0]);
        assert!(groups > 1, "{groups} groups");
        // gradients and weights; also, from each other process, a loss, a square for each row, and a flag
        let size = size as u64;
        let want = 4 * others * 2 * params + others * (size * 4 + 4 * rows + size);
        assert_eq!(received.iter().map(|(bytes, ..)| bytes).sum::<u64>(), want, "{size} processes");
    }
}

#[test]
fn a_number_of_processes_that_does_not_divide_the_shards_is_refused() {
    let run = Run::draw(0);
    for error in on_each(3, |process| {
        let mut trainer = run.trainer(&Device::cpu_with(1, Simd::detect())).unwrap();
        trainer.shards = 4;
        trainer.join(&Processes::new(Arc::new(process))).unwrap_err().to_string()
    }) {
        assert_eq!(
            error,
            "expected a number of processes that divides the 4 shards of a step, found 3 processes"
        );
    }
}

#[test]
fn a_trainer_that_has_joined_processes_is_not_saved() {
    let run = Run::draw(0);
    let errors = on_each(2, |process| {
        let scratch = Scratch::new(&format!("joined-{}", process.rank()));
        let mut trainer = run.trainer(&Device::cpu_with(1, Simd::detect())).unwrap();
        trainer.shards = 2;
        trainer.join(&Processes::new(Arc::new(process))).unwrap();
        let checkpoints = CheckpointDir::open(Arc::new(RealFs), &scratch.0, 2).unwrap();
        let save = |trainer: &Trainer| {
            let state = store::RunState::default();
            store::save(&checkpoints, trainer, None, state, &[]).map(drop)
        };
        let error = save(&trainer).unwrap_err().to_string();
        trainer.leave().unwrap();
        save(&trainer).unwrap();
        error
    });
    for error in errors {
        assert_eq!(error, "expected a trainer that has left its processes, found one that has joined them");
    }
}

/// The moments arrive in two transfers. Whichever fails, the trainer is not saved, and leaves when the processes can
/// exchange messages again.
#[test]
fn a_trainer_that_could_not_leave_its_processes_still_has_joined_them() {
    let run = Run::draw(0);
    let left = |transfers: Option<u64>| {
        on_each(2, |process| {
            let mut trainer = run.trainer(&Device::cpu_with(1, Simd::detect())).unwrap();
            trainer.shards = 2;
            let process = Arc::new(Failing { process, transfers: AtomicU64::new(u64::MAX) });
            trainer.join(&Processes::new(process.clone())).unwrap();
            let _ = trainer.step_weighted(run.samples(run.data, 0), 1).unwrap();
            if let Some(transfers) = transfers {
                process.transfers.store(transfers, Ordering::Relaxed);
                let error = trainer.leave().unwrap_err().to_string();
                assert!(error.contains("process 0 of 2 has ended"), "{error}");
                assert_eq!(trainer.processes().size(), 2);
                process.transfers.store(u64::MAX, Ordering::Relaxed);
            }
            trainer.leave().unwrap();
            assert_eq!(trainer.processes().size(), 1);
            state(&trainer)
        })
    };
    let want = left(None);
    for transfers in [0, 1] {
        assert!(left(Some(transfers)) == want, "the state after {transfers} transfers and an error");
    }
}
