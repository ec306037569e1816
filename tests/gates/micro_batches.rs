//! The gate for `train.micro_batch`: runs with other micro-batches and numbers of threads have the same state and write
//! the same files.
use xtrain::config::{Layer, RunConfig};

use crate::cli::Scratch;
use crate::resume::{Case, uninterrupted};
use crate::training::{Difference, GateCase, same_bits};

const SEED: u64 = 20_261_123;

/// A run of three steps. The windows of a step differ in their numbers of targets.
fn case(dtype: &str, micro_batch: usize, threads: usize) -> Case {
    let keys = [
        "model.dim=12".into(),
        "model.n_layers=1".into(),
        "model.n_heads=2".into(),
        "model.n_kv_heads=1".into(),
        "model.head_dim=4".into(),
        "model.ffn_dim=16".into(),
        "train.context=33".into(),
        "train.batch=4".into(),
        format!("train.micro_batch={micro_batch}"),
        "data.packing=documents".into(),
        format!("train.dtype={dtype}"),
        "train.steps=3".into(),
        "train.warmup=1".into(),
        "train.eval_every=0".into(),
        "train.sample_every=0".into(),
    ];
    let config = RunConfig::load(&keys.map(Layer::Set)).expect("a configuration");
    Case { number: 0, config, stops: Vec::new(), threads }
}

/// Compares micro-batches of 1, 2 and 4 windows, each on one and on two threads. Returns the number of compared
/// values and bytes.
pub(crate) fn over() -> Result<usize, String> {
    let text = |Difference(text): Difference| text;
    let mut compared = 0;
    for dtype in ["f32", "bf16"] {
        let dir = Scratch::new("micro-batches");
        let want = uninterrupted(&case(dtype, 4, 1), &dir.0.join("4-1")).map_err(text)?;
        for (micro_batch, threads) in [(4, 2), (2, 1), (2, 2), (1, 1), (1, 2)] {
            let run = dir.0.join(format!("{micro_batch}-{threads}"));
            let got = uninterrupted(&case(dtype, micro_batch, threads), &run).map_err(text)?;
            let setting = format!("{dtype}, micro-batches of {micro_batch} on {threads} threads");
            let gate = GateCase { gate: "files of micro-batches", number: 0, seed: SEED };
            compared += same_bits(gate, &setting, &got, &want).map_err(text)?;
        }
    }
    Ok(compared)
}

#[test]
fn a_run_writes_the_same_files_for_every_micro_batch_and_number_of_threads() {
    let n = over().unwrap_or_else(|e| panic!("{e}"));
    println!("files of micro-batches: 2 runs, each with 5 other settings, {n} values, 0 differ");
    assert!(n > 100_000, "{n}");
}
