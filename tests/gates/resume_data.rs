//! The gate for the data of a resumed run: if the weights do not change, the loss of a step is a function of its
//! windows.
use xtrain::config::{Layer, RunConfig};
use xtrain::model::{TrainingExample, normalize_loss_weights, objective};
use xtrain::tensor::Device;
use xtrain::training::{self, DataLoader};

use crate::cli::Scratch;
use crate::resume::{Case, interrupted};
use crate::training::{Difference, failed};

const SEED: u64 = 7;

/// The steps of a run.
const STEPS: u64 = 7;

/// A run whose weights do not change: in f32, its learning rate is 0. It is stopped after steps 2 and 5.
fn case(number: u64, order: &str, packing: &str) -> Case {
    let keys = [
        "model.dim=8".into(),
        "model.n_layers=1".into(),
        "model.n_heads=2".into(),
        "model.n_kv_heads=1".into(),
        "model.head_dim=4".into(),
        "model.ffn_dim=16".into(),
        "train.context=17".into(),
        "train.batch=3".into(),
        "train.micro_batch=2".into(),
        format!("train.order={order}"),
        format!("data.packing={packing}"),
        format!("train.seed={SEED}"),
        format!("train.steps={STEPS}"),
        "train.learning_rate=1e-60".into(),
        "train.min_learning_rate=1e-60".into(),
        "train.eval_every=0".into(),
        "train.sample_every=0".into(),
    ];
    let config = RunConfig::load(&keys.map(Layer::Set)).expect("a configuration");
    Case { number, config, stops: vec![2, 5], threads: 1 }
}

/// The losses of the windows of each step, computed without a training run.
fn expected(case: &Case) -> Result<Vec<f32>, Difference> {
    let source = case.source();
    let vocab = source.tokenizer.vocab_size();
    let model = training::new_trainer(&case.config, vocab, &Device::cpu()).map_err(failed)?.model;
    let loader = DataLoader::new(&case.config, &source, SEED).map_err(failed)?;
    let loss = |step| {
        let windows = loader.batch(&source.tokens, step, case.config.train.batch as u32).map_err(failed)?;
        let mut examples: Vec<TrainingExample> = windows.into_iter().map(TrainingExample::from).collect();
        normalize_loss_weights(&mut examples);
        let mut loss = 0.0;
        objective::evaluate(&model, &examples, &mut loss).map_err(failed)?;
        Ok(loss)
    };
    (0..STEPS).map(loss).collect()
}

/// Compares the losses in `metrics.jsonl` of interrupted runs. Returns the number of compared losses.
pub(crate) fn over() -> Result<usize, String> {
    let text = |Difference(text): Difference| text;
    let mut compared = 0;
    for (number, order, packing) in [
        (0, "random", "stream"),
        (1, "shuffled", "stream"),
        (2, "random", "documents"),
        (3, "shuffled", "documents"),
    ] {
        let case = case(number, order, packing);
        let want = expected(&case).map_err(text)?;
        let dir = Scratch::new("resume-data");
        let _ = interrupted(&case, &dir.0.join("run")).map_err(text)?;
        let log = std::fs::read_to_string(dir.0.join("run/metrics.jsonl")).map_err(|e| e.to_string())?;
        assert_eq!(log.lines().count(), want.len(), "{log}");
        for (line, want) in log.lines().zip(want) {
            let line: serde_json::Value = serde_json::from_str(line).map_err(|e| e.to_string())?;
            let got = line["loss"].as_f64().unwrap_or(f64::NAN) as f32;
            if got.to_bits() != want.to_bits() {
                return Err(format!(
                    "gate data of resumed runs, case {number}, seed {SEED}: {order}, {packing}: loss of step {}: got \
                     {got} ({:08x}), want {want} ({:08x})",
                    line["step"],
                    got.to_bits(),
                    want.to_bits()
                ));
            }
            compared += 1;
        }
    }
    Ok(compared)
}

#[test]
fn a_resumed_run_reads_the_windows_of_its_steps() {
    let n = over().unwrap_or_else(|e| panic!("{e}"));
    println!("data of resumed runs: 4 runs stopped after steps 2 and 5, {n} losses, 0 differ");
    assert_eq!(n, 4 * STEPS as usize);
}
