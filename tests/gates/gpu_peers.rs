//! The gate of connected GPUs: the totals of shards and the new weights travel from GPU to GPU, each GPU updates its slice,
//! and the bits are those of the definition. On emulated GPUs, whose transfers end as late as they may, and on those of
//! this machine, if it has enough.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use xtrain::config::{RunConfig, TrainSection};
use xtrain::model::comm::{Communicator, ThreadProcess};
use xtrain::model::{Param, Processes, Trainer};
use xtrain::run::RunDir;
use xtrain::tensor::testing::gpu_groups;
use xtrain::tensor::{Device, Dtype, GpuPeers, Sent, Tensor, ThreadSchedule, ops};

use crate::cli::Scratch;
use crate::grpo::devices::{files_on, two_steps};
use crate::grpo::{Compared, Setup, assert_equal, files, run_as};
use crate::shards::{self, by_definition, on_each, trained_on};
use crate::training::{Difference, GateCase, Run, failed, same_bits};

/// Joins the processes with connected GPUs. Each then has the moments of its slice, on its GPU.
fn join(trainer: &mut Trainer, process: ThreadProcess) -> Result<(), Difference> {
    let comm: Arc<dyn Communicator> = Arc::new(process);
    let device = trainer.model.device().clone();
    let gpus = Some(Arc::new(GpuPeers::connect(&device, &comm).map_err(failed)?));
    trainer.join(&Processes { gpus, ..Processes::new(Arc::clone(&comm)) }).map_err(failed)?;
    let own: usize = trainer.optimizer.m.iter().map(Tensor::len).sum();
    let slices = comm.all_gather(&own.to_le_bytes()).map_err(failed)?;
    let slices = slices.iter().map(|bytes| usize::from_le_bytes(bytes.as_slice().try_into().unwrap()));
    let all: usize =
        trainer.model.params.iter().map(|param: &Param| param.shape().iter().product::<usize>()).sum();
    assert_eq!(slices.sum::<usize>(), all, "the slices of all processes");
    assert!(trainer.optimizer.m.iter().chain(&trainer.optimizer.v).all(|moment| moment.device().is(&device)));
    Ok(())
}

/// Compares `size` connected GPUs with the definition. Returns the number of compared values.
pub(crate) fn over(size: usize) -> Result<usize, String> {
    let mut n = 0;
    // f32, with a tied and with an untied table; one and two shards for each process
    for (number, shards) in [(0, size), (1, 2 * size)] {
        let mut run = Run::draw(number);
        run.cfg.head_dim = 8; // a multiple of 8 on a GPU
        let want = by_definition(&run, shards);
        for devices in gpu_groups(size) {
            let found = on_each(size, |process| {
                let device = devices[process.rank()].clone();
                trained_on(&run, shards, |trainer: &mut Trainer| join(trainer, process), &device)
            });
            for (rank, (got, device)) in found.into_iter().zip(&devices).enumerate() {
                let case = GateCase { gate: "gpu_peers", number, seed: shards::SEED };
                let setting = format!("{shards} shards, process {rank} of {size} on {device} in {run:?}");
                let same = got.and_then(|got| same_bits(case, &setting, &got, &want));
                n += same.map_err(|Difference(text)| text)?;
            }
        }
    }
    Ok(n)
}

fn steps(size: usize) {
    let n = over(size).unwrap_or_else(|e| panic!("{e}"));
    println!("gpu_peers: two runs on {size} connected GPUs, {n} values, 0 differ");
    assert!(n > 1000, "{n}");
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn two_connected_gpus_have_the_bits_of_the_definition() {
    steps(2);
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn four_connected_gpus_have_the_bits_of_the_definition() {
    steps(4);
}

/// Two steps of GRPO on `size` connected GPUs.
fn grpo(size: usize) {
    let train = TrainSection { shards: 4, ..two_steps().train };
    let config = RunConfig { train, ..two_steps() };
    let want = files_on(&format!("connected-{size}-cpu"), &config, &Device::cpu()).unwrap();
    for devices in gpu_groups(size) {
        let dir = Scratch::new(&format!("connected-{size}"));
        let run = RunDir::create(&dir.0, &config.to_toml()).unwrap();
        let ends = on_each(size, |process| {
            let setup = Setup { connects_gpus: true, ..Setup::on(devices[process.rank()].clone()) };
            run_as(&config, &setup, &run, (None, Compared::default()), Arc::new(process))
        });
        for end in ends {
            let _ = end.unwrap();
        }
        let what = format!("{size} connected GPUs ({})", devices[0]);
        assert_equal(&what, &want, &files(&dir.0));
        println!("two steps of GRPO: the files of {what} are those of one CPU");
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn two_steps_of_grpo_on_two_connected_gpus_have_the_files_of_one_cpu() {
    grpo(2);
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn two_steps_of_grpo_on_four_connected_gpus_have_the_files_of_one_cpu() {
    grpo(4);
}

/// The error of each of two processes on these devices.
fn refused(devices: [Device; 2]) -> [String; 2] {
    let errors = on_each(2, |process| {
        let device = &devices[process.rank()];
        let comm: Arc<dyn Communicator> = Arc::new(process);
        GpuPeers::connect(device, &comm).expect_err("devices that cannot be connected").to_string()
    });
    errors.try_into().expect("two processes")
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn devices_that_cannot_be_connected_are_refused_in_all_processes() {
    let gpu = Device::emulated(ThreadSchedule::Forward).unwrap();
    let one = format!(
        "processes 0 and 1 of 2 use one GPU, {gpu}: expected another GPU for each process; start at most one process \
         per GPU"
    );
    assert_eq!(refused([gpu.clone(), gpu.clone()]), [one.clone(), one]);
    let cpu = "process 1 of 2: expected a GPU, found the CPU (reference)".to_string();
    assert_eq!(refused([gpu, Device::reference()]), [cpu.clone(), cpu]);
}

#[test]
#[cfg(feature = "faults")]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn faults_of_the_exchange_are_found_on_connected_gpus() {
    use xtrain::tensor::faults::{self, Fault};
    for fault in [
        Fault::StaleWeightsOnOneProcess,
        Fault::SliceUpdatedTwice,
        Fault::EarlierShardsNotSent,
        Fault::SquaresInOrderOfProcesses,
        Fault::ShardsAddedInSequence,
    ] {
        // sums of two processes have one order
        let size = if fault == Fault::ShardsAddedInSequence { 4 } else { 2 };
        let found = faults::with(fault, || over(size)).expect_err("a fault that was not found");
        println!("{fault}: {found}");
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_process_that_ends_during_a_transfer_is_an_error_of_the_other() {
    let devices = [0, 1].map(|_| Device::emulated(ThreadSchedule::Forward).unwrap());
    let found = on_each(2, |process| {
        let (device, other) = (&devices[process.rank()], 1 - process.rank());
        let comm: Arc<dyn Communicator> = Arc::new(process);
        let peers = GpuPeers::connect(device, &comm).unwrap();
        let values = Tensor::zeros(device, &[4], Dtype::F32).unwrap();
        let sent = [Sent { process: other, tensor: &values, elements: 0..4 }];
        let transfer = peers.exchange(&sent, &[(other, vec![4])]).unwrap();
        if other == 0 {
            return "ends".to_string();
        }
        transfer.finish().expect_err("process 1 has ended").to_string()
    });
    assert!(found[0].contains("process 1"), "{found:?}");
    assert_eq!(found[1], "ends");
}

/// Process 0 queues a kernel beside a transfer. Process 1 keeps the transfer from ending until the kernel is submitted, for
/// `limit` at most. Returns the number of submissions that were awaited.
pub(crate) fn beside(limit: Duration) -> Result<usize, String> {
    let devices = [0, 1].map(|_| Device::emulated(ThreadSchedule::Forward).unwrap());
    let submissions = || devices[0].gpu_counters().unwrap().steps_without_upload;
    let (queued, before) = (Barrier::new(2), AtomicU64::new(0));
    let found = on_each(2, |process| {
        let (rank, comm): (_, Arc<dyn Communicator>) = (process.rank(), Arc::new(process));
        let peers = GpuPeers::connect(&devices[rank], &comm).unwrap();
        let [values, mut other] = [0, 1].map(|_| Tensor::zeros(&devices[rank], &[4], Dtype::F32).unwrap());
        let sent = [Sent { process: 1 - rank, tensor: &values, elements: 0..4 }];
        let transfer = peers.exchange(&sent, &[(1 - rank, vec![4])]).unwrap();
        if rank == 0 {
            ops::accumulate(&mut other, &values).unwrap();
            before.store(submissions(), Ordering::SeqCst);
        }
        queued.wait();
        let before = before.load(Ordering::SeqCst);
        let start = Instant::now();
        while rank == 1 && submissions() == before && start.elapsed() < limit {
            std::thread::yield_now();
        }
        let is_submitted = rank == 0 || submissions() > before;
        transfer.finish().unwrap();
        is_submitted
    });
    if found[1] {
        Ok(1)
    } else {
        Err("gate gpu_peers: a kernel beside a transfer is not submitted".to_string())
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn kernels_that_are_queued_beside_a_transfer_do_not_wait_for_its_end() {
    assert_eq!(beside(Duration::from_secs(20)), Ok(1));
}
