//! The gate for processes: whole training runs on several processes, which are threads here, write the files of one
//! process, also when they are continued on another number of processes.
use std::path::Path;
use std::sync::Arc;

use xtrain::config::{Layer, RunConfig};
use xtrain::model::store::RunState;
use xtrain::run::RunDir;
use xtrain::tensor::{Device, Simd};
use xtrain::training;

use crate::cli::Scratch;
use crate::resume::{Case, begin, restored, train_as, uninterrupted};
use crate::shards::on_each;
use crate::training::{Bits, Difference, GateCase, same_bits};

const SEED: u64 = 20_251_121;

/// A run of six steps of four shards. The windows of a step differ in their numbers of targets.
fn case(number: u64, dtype: &str, tied: bool, threads: usize) -> Case {
    let keys = [
        "model.dim=12".into(),
        "model.n_layers=1".into(),
        "model.n_heads=2".into(),
        "model.n_kv_heads=1".into(),
        "model.head_dim=4".into(),
        "model.ffn_dim=16".into(),
        format!("model.tie_embeddings={tied}"),
        "train.context=33".into(),
        "train.batch=6".into(),
        "train.shards=4".into(),
        "train.micro_batch=2".into(),
        "data.packing=documents".into(),
        format!("train.dtype={dtype}"),
        "train.steps=6".into(),
        "train.warmup=1".into(),
        "train.save_every=2".into(),
        "train.eval_every=3".into(),
        "train.stats_every=2".into(),
        "train.sample_every=0".into(),
    ];
    let config = RunConfig::load(&keys.map(Layer::Set)).expect("a configuration");
    Case { number, config, stops: Vec::new(), threads }
}

/// Trains on each number of processes in turn, to the step after it. Returns the state and the files at the end.
fn on_processes(case: &Case, dir: &Path, parts: &[(usize, u64)]) -> Result<Bits, Difference> {
    let (run, _, state) = begin(case, dir)?;
    let mut last = Vec::new();
    for (i, &(size, until)) in parts.iter().enumerate() {
        last = on_each(size, |process| {
            let start = if i == 0 { fresh(case, state) } else { restored(case, &run)? };
            train_as(case, &run, start, until, Arc::new(process))
        });
    }
    let mut last = last.into_iter().collect::<Result<Vec<_>, _>>()?;
    let first = last.remove(0);
    for (rank, other) in last.iter().enumerate() {
        let gate = GateCase { gate: "processes", number: case.number, seed: SEED };
        let state = first[..other.len()].to_vec();
        let _ = same_bits(gate, &format!("process {} against process 0", rank + 1), other, &state)?;
    }
    Ok(first)
}

/// The trainer at step 0.
fn fresh(case: &Case, state: RunState) -> (xtrain::model::Trainer, RunState) {
    let device = Device::cpu_with(case.threads, Simd::detect());
    (training::new_trainer(&case.config, case.source().tokenizer.vocab_size(), &device).unwrap(), state)
}

/// Compares runs on 2 and 4 processes, and runs that change their number, with one process. Returns the number of
/// compared values and bytes.
pub(crate) fn over() -> Result<usize, String> {
    let text = |Difference(text): Difference| text;
    let mut compared = 0;
    for (number, (dtype, tied)) in
        [("f32", true), ("f32", false), ("bf16", true), ("bf16", false)].into_iter().enumerate()
    {
        let dir = Scratch::new("processes");
        let want = uninterrupted(&case(number as u64, dtype, tied, 1), &dir.0.join("one")).map_err(text)?;
        let whole = u64::MAX;
        for (threads, parts) in
            [(1, &[(2, whole)][..]), (2, &[(4, whole)]), (1, &[(4, 3), (1, 4), (2, whole)])]
        {
            let case = case(number as u64, dtype, tied, threads);
            let name = parts.iter().map(|(size, _)| size.to_string()).collect::<Vec<_>>().join("-");
            let got = on_processes(&case, &dir.0.join(&name), parts).map_err(text)?;
            let gate = GateCase { gate: "processes", number: case.number, seed: SEED };
            let setting = format!("{name} processes with {threads} threads each in {case:?}");
            compared += same_bits(gate, &setting, &got, &want).map_err(text)?;
        }
    }
    Ok(compared)
}

#[test]
fn a_run_writes_the_same_files_on_any_number_of_processes() {
    let n = over().unwrap_or_else(|e| panic!("{e}"));
    println!("processes: 4 runs, each on 2, on 4, and on 4, 1 and 2 processes, {n} values, 0 differ");
    assert!(n > 100_000, "{n}");
}

#[test]
fn a_process_that_ends_ends_the_others_with_its_number() {
    let case = case(9, "f32", true, 1);
    let dir = Scratch::new("ended");
    let (run, _, state): (RunDir, _, _) = begin(&case, &dir.0.join("run")).unwrap();
    let ends = on_each(4, |process| match xtrain::model::comm::Communicator::rank(&process) {
        2 => Ok(Vec::new()),
        _ => train_as(&case, &run, fresh(&case, state), u64::MAX, Arc::new(process)),
    });
    let errors: Vec<String> = ends.into_iter().filter_map(Result::err).map(|Difference(text)| text).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(errors.iter().any(|text| text.starts_with("process 2 of 4 has ended")), "{errors:?}");
}

#[test]
#[cfg(not(feature = "mpi"))]
fn a_build_without_mpi_refuses_several_processes() {
    for name in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"] {
        let output = crate::cli::program().arg("doctor").env(name, "4").output().unwrap();
        let errors = crate::cli::text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {errors}");
        assert!(errors.starts_with("error: 4 processes were started, but this build has no MPI"), "{errors}");
        assert!(crate::cli::program().arg("doctor").env(name, "1").output().unwrap().status.success());
    }
}
