//! The kernel launches of a rollout and of a training step, as a recorder receives them: blocks, threads, bytes and
//! operations.
use xtrain::decode::{Engine, EngineOptions, KvKind, Request, SampleOptions};
use xtrain::model::{
    ActivationCheckpointing, Biases, Config, Model, OptimConfig, Schedule, Trainer, TrainingExample,
};
use xtrain::tensor::{Device, Dtype, GpuCounters, KernelLaunch, LaunchLog, launch_recorder};

use crate::{Record, row};

const VOCAB: u32 = 37;

fn config() -> Config {
    Config {
        vocab: VOCAB as usize,
        dim: 32,
        ffn_dim: 48,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 8,
        max_positions: 256,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        ..Config::default()
    }
}

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    let plain = config();
    let windowed = Config {
        windows: vec![Some(20), None],
        biases: Biases { qkv: true, o: true, mlp: true },
        qk_norm: true,
        tie_embeddings: true,
        ..config()
    };
    for (name, config) in [("untied", &plain), ("tied, biases, a window of 20", &windowed)] {
        for dtype in [Dtype::F32, Dtype::BF16] {
            let (recorder, log) = launch_recorder(false);
            let model = Model::init(config, dtype, &recorder, 3).unwrap();
            let mut recorder = Recorder { device: recorder, log, before: GpuCounters::default() };
            recorder.skip();
            let kinds = [KvKind::Paged { page: 16 }, KvKind::Int8 { page: 16 }];
            for kv in &kinds[..if dtype == Dtype::F32 { 1 } else { 2 }] {
                rollout(&model, *kv);
                recorder.note(&mut out, &format!("{name}, {dtype}: a rollout, {kv}"));
            }
            watched(&model);
            recorder.skip();
            training(model);
            recorder.note(&mut out, &format!("{name}, {dtype}: two training steps"));
        }
    }
    out
}

struct Recorder {
    device: Device,
    log: LaunchLog,
    before: GpuCounters,
}

impl Recorder {
    fn skip(&mut self) {
        self.log.take();
        self.before = self.device.gpu_counters().unwrap();
    }

    /// The launches since the last call, equal ones once with their number, in the order of the first.
    fn note(&mut self, out: &mut Record, title: &str) {
        let mut counted: Vec<(KernelLaunch, usize)> = Vec::new();
        for launch in self.log.take() {
            match counted.iter_mut().find(|(known, _)| *known == launch) {
                Some((_, n)) => *n += 1,
                None => counted.push((launch, 1)),
            }
        }
        out.section(format!("{title}: launches, blocks, threads, bytes, operations, round trips"));
        for (KernelLaunch { kernel, blocks, threads, tiles, bytes, operations, round_trips }, n) in counted {
            assert_eq!(tiles, blocks, "{kernel}");
            let numbers =
                format!("{n:>4} {blocks:>5} {threads:>4} {bytes:>8} {operations:>8} {round_trips:>3}");
            out.line(row(kernel, 34, numbers));
        }
        let after = self.device.gpu_counters().unwrap();
        let GpuCounters { launches, uploaded, downloaded, syncs, kv_read, partials, .. } =
            after.since(self.before);
        self.before = after;
        out.line(format!(
            "{launches} launches, {uploaded} bytes uploaded, {downloaded} downloaded, {syncs} synchronizations, {kv_read} bytes \
             of keys and values, {partials} of partial results"
        ));
    }
}

/// A group over a prompt of more than one chunk, then sequences with filters and a penalty.
fn rollout(model: &Model, kv: KvKind) {
    let prompt = |len: u32| -> Vec<u32> { (0..len).map(|at| 7 * at % VOCAB).collect() };
    let options = EngineOptions { max_batch: 5, kv, ..EngineOptions::default() };
    let mut engine = Engine::new(model, options).unwrap();
    engine.submit_group(Request::sampled(&prompt(70), 4, 1.0, 1), 3).unwrap();
    engine.submit(Request::greedy(&prompt(9), 3)).unwrap();
    engine.run().unwrap();
    engine.submit_group(Request::greedy(&prompt(66), 4), 2).unwrap();
    engine.run().unwrap();
    let filtered = SampleOptions {
        top_k: Some(9),
        top_p: Some(0.9),
        min_p: Some(0.01),
        repetition_penalty: Some(1.2),
        temperature: 0.8,
    };
    for (len, options) in [(130, filtered), (3, SampleOptions { top_p: None, ..filtered })] {
        engine.submit(Request { options, ..Request::sampled(&prompt(len), 4, 1.0, 2) }).unwrap();
    }
    engine.run().unwrap();
}

/// A caller that watches the logits gets those of every row, although several steps could run without the host.
fn watched(model: &Model) {
    let mut engine = Engine::new(model, EngineOptions::default()).unwrap();
    engine.submit(Request::greedy(&[1, 2, 3], 6)).unwrap();
    let mut positions = Vec::new();
    while !engine.is_idle() {
        engine.step_watched(&mut |row| positions.push(row.position)).unwrap();
    }
    assert_eq!(positions, [2, 3, 4, 5, 6, 7]);
}

/// Steps of three windows in two micro-batches; the second recomputes activations.
fn training(model: Model) {
    let optim = OptimConfig { clip: 0.5, ..OptimConfig::default() };
    let mut trainer = Trainer::new(model, optim, Schedule::constant(1e-3)).unwrap();
    for (first, checkpointing) in [(0, ActivationCheckpointing::Off), (5, ActivationCheckpointing::PerLayer)]
    {
        let window = |at: u32| {
            let tokens: Vec<u32> = (0..70 + at).map(|t| (11 * t + at + first) % VOCAB).collect();
            TrainingExample::window(&tokens, 1.0)
        };
        trainer.checkpointing = checkpointing;
        trainer.step((0..3).map(window).collect(), 2).unwrap();
    }
}
