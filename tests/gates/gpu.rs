//! The gates of the GPU: in f32 a whole training run on the emulated device, whatever the order of its
//! threads and the split into micro-batches, has the processor's bytes.
use std::sync::Arc;

use xtrain::model::checkpoint::{CheckpointDir, RealFs};
use xtrain::model::store::{self, Standing};
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{Config, Decay, Model, OptimConfig, Sample, Schedule, Trainer, weigh};
use xtrain::tensor::ops::Target;
use xtrain::tensor::testing::gpus;
use xtrain::tensor::{Device, Dtype, Schedule as Order};

use xtrain::decode::{Engine, EngineOptions, KvKind, Request};
use xtrain::verify::{self, Asked};

use crate::cli::Scratch;
use crate::dice::Dice;

fn config(tied: bool) -> Config {
    Config {
        vocab: 37,
        dim: 24,
        ffn_dim: 40,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 8,
        max_positions: 96,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        qk_norm: tied,
        tie_embeddings: tied,
        ..Config::default()
    }
}

fn trainer(tied: bool, device: &Device) -> Trainer {
    let schedule =
        Schedule { decay: Decay::Cosine, initial: 0.0, peak: 1e-2, min: 1e-3, warmup: 1, steps: 4, fall: 0 };
    let model = Model::init(&config(tied), Dtype::F32, device, 5).unwrap();
    Trainer::new(model, OptimConfig::default(), schedule).unwrap()
}

/// Three ragged samples that cross a chunk of 64 keys; some rows have no target.
fn samples(step: u64) -> Vec<Sample> {
    let mut dice = Dice::new(77, step);
    let sample = |n: usize, dice: &mut Dice| {
        let mut token = || dice.below(37) as u32;
        let inputs = (0..n).map(|_| token()).collect();
        let target = |id| Target { id, weight: 0.0, bonus: 0.01 };
        let targets = (0..n).map(|t| Some(target(token())).filter(|_| t % 7 != 3)).collect();
        Sample { inputs, targets, ..Sample::default() }
    };
    let mut samples: Vec<Sample> = [70, 5, 33].into_iter().map(|n| sample(n, &mut dice)).collect();
    weigh(&mut samples);
    samples
}

/// Everything that three steps compute, under names.
fn run(trainer: &mut Trainer, micro: usize) -> Vec<(String, Vec<u32>)> {
    let mut all = Vec::new();
    for step in 0..3 {
        let report = trainer.step(samples(step), micro).unwrap();
        all.push((format!("loss and norm {step}"), vec![report.loss.to_bits(), report.grad_norm.to_bits()]));
    }
    all.extend(state(trainer));
    all
}

/// Weights and moments, under names.
fn state(trainer: &Trainer) -> Vec<(String, Vec<u32>)> {
    let (Trainer { model, optimizer, .. }, mut all) = (trainer, Vec::new());
    for ((p, m), v) in model.params.iter().zip(&optimizer.m).zip(&optimizer.v) {
        for (what, x) in [("", p.value().unwrap()), ("m.", m), ("v.", v)] {
            let bits = x.to_vec::<f32>().unwrap().iter().map(|x| x.to_bits()).collect();
            all.push((format!("{what}{}", p.name()), bits));
        }
    }
    all
}

#[track_caller]
fn same(got: Vec<(String, Vec<u32>)>, want: &[(String, Vec<u32>)], what: &str) -> usize {
    assert_eq!(got.len(), want.len(), "{what}");
    for ((name, got), (_, want)) in got.iter().zip(want) {
        assert_eq!(got.len(), want.len(), "{what}: {name}");
        let differs = got.iter().zip(want).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{what}: {name}, first differing value");
    }
    want.iter().map(|x| x.1.len()).sum()
}

#[test]
fn three_steps_on_the_gpu_have_the_bytes_of_the_processor() {
    let mut compared = 0;
    for tied in [false, true] {
        let want = run(&mut trainer(tied, &Device::cpu()), 3);
        let devices = gpus(&[Order::Forward, Order::Priorities(3), Order::Random(4)]);
        for (device, micro) in devices.into_iter().zip([3, 1, 2, 3]) {
            let what = format!("tied {tied}, {device}, micro-batches of {micro}");
            compared += same(run(&mut trainer(tied, &device), micro), &want, &what);
        }
    }
    println!("training on the GPU: {compared} values compared, 0 differ");
}

#[test]
fn a_step_after_warm_up_asks_the_device_for_no_memory_and_copies_only_scalars_back() {
    gpus(&[Order::Forward]).iter().for_each(warm);
}

fn warm(device: &Device) {
    let Device::Gpu(gpu) = device else { panic!("{device} is no GPU") };
    let mut trainer = trainer(true, device);
    let step = |trainer: &mut Trainer| {
        let before = gpu.traffic();
        trainer.step(samples(0), 3).unwrap();
        let after = gpu.traffic();
        (after.allocations - before.allocations, after.downloaded - before.downloaded)
    };
    for _ in 0..2 {
        step(&mut trainer);
    }
    let (allocations, downloaded) = step(&mut trainer);
    assert_eq!(allocations, 0);
    // the loss, the norm, a flag a tensor, and (lse, log-probability, entropy) of 108 rows
    assert!(downloaded <= 4096, "{downloaded} bytes came back");
}

/// Every cache, page, chunk and batch on the GPU, against the processor in f32, against itself in bf16.
fn rollouts(compute: Dtype) {
    gpus(&[Order::Priorities(9)]).iter().for_each(|device| rollouts_on(device, compute));
}

fn rollouts_on(device: &Device, compute: Dtype) {
    let model = Model::init(&config(true), compute, device, 3).unwrap();
    let requests = verify::requests(&verify::prompts(&model, (1, 3), 5), 5, 1);
    let asked = Asked { threads: 1, kv: KvKind::Paged { page: 7 }, chunk: Some(5) };
    let verdicts = verify::verify(&model, &requests, &asked, &mut |_| ()).unwrap();
    for verdict in &verdicts {
        assert!(verdict.holds(), "{verdict:?}");
    }
    let values: u64 = verdicts.iter().map(|v| v.values).sum();
    println!("rollouts on {device} in {compute}: {values} values compared, 0 differ");
    assert!(values > 50_000, "{values}");
}

#[test]
fn rollouts_on_the_gpu_have_the_bits_of_the_processors_training_forward() {
    rollouts(Dtype::F32);
}

#[test]
fn rollouts_on_the_gpu_in_bf16_have_the_bits_of_its_training_forward() {
    rollouts(Dtype::BF16);
}

/// Prompts of three lengths, greedy and sampled in turn.
fn asked() -> Vec<Request> {
    let mut dice = Dice::new(8, 1);
    let request = |(id, n): (usize, usize)| {
        let prompt: Vec<u32> = (0..n).map(|_| dice.below(37) as u32).collect();
        Request { id: id as u64, ..Request::sampled(&prompt, 12, [0.0, 0.8][id % 2], 4) }
    };
    [3, 70, 9].into_iter().enumerate().map(request).collect()
}

fn engine<'m>(model: &'m Model) -> Engine<'m> {
    let mut engine = Engine::new(model, EngineOptions { max_batch: 3, ..EngineOptions::default() }).unwrap();
    asked().into_iter().for_each(|request| _ = engine.submit(request).unwrap());
    engine
}

#[test]
fn tokens_drawn_on_the_gpu_are_those_of_the_processor_and_all_that_a_step_copies_back() {
    gpus(&[Order::Random(11)]).iter().for_each(drawn);
}

fn drawn(device: &Device) {
    let Device::Gpu(gpu) = device else { panic!("{device} is no GPU") };
    let model = |device: &Device| Model::init(&config(false), Dtype::F32, device, 3).unwrap();
    let (there, here) = (model(device), model(&Device::cpu()));
    let mut engine_there = engine(&there);
    let mut steps = Vec::new();
    while !engine_there.is_idle() {
        let before = gpu.traffic();
        engine_there.step().unwrap();
        let after = gpu.traffic();
        steps.push((after.allocations - before.allocations, after.downloaded - before.downloaded));
    }
    let (got, want) = (engine_there.take_finished(), engine(&here).run().unwrap());
    for want in &want {
        let got = got.iter().find(|got| got.index == want.index).unwrap();
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(got.tokens, want.tokens);
        assert_eq!(bits(&got.logprobs), bits(&want.logprobs));
        assert_eq!(bits(&got.processed_logprobs), bits(&want.processed_logprobs));
    }
    // a token, two log-probabilities and a status for each of three rows, where their logits are 444 bytes
    for (step, &(allocations, downloaded)) in steps.iter().enumerate().skip(4) {
        assert!(allocations == 0 && downloaded <= 3 * 32, "step {step}: {allocations}, {downloaded} bytes");
    }
}

/// Kernels, graphs, and kernels with other arguments in a graph, of each step of a rollout.
fn steps(device: &Device, n_layers: usize, compute: Dtype) -> Vec<[u64; 3]> {
    let Device::Gpu(gpu) = device else { panic!("{device} is no GPU") };
    let model = Model::init(&Config { n_layers, ..config(true) }, compute, device, 3).unwrap();
    let mut engine = engine(&model);
    let mut steps = Vec::new();
    while !engine.is_idle() {
        let before = gpu.traffic();
        engine.step().unwrap();
        let after = gpu.traffic();
        let of = |t: xtrain::tensor::Traffic| [t.launches, t.graphs, t.changed];
        steps.push(std::array::from_fn(|i| of(after)[i] - of(before)[i]));
    }
    steps
}

#[test]
fn a_decode_step_is_one_graph_of_six_kernels_a_layer() {
    for device in gpus(&[Order::Forward]) {
        for compute in [Dtype::F32, Dtype::BF16] {
            let [two, five] = [2, 5].map(|n| steps(&device, n, compute));
            println!("{device} in {compute}, kernels, graphs and changed kernels a step: {two:?}, {five:?}");
            assert!(five.len() > 8, "{five:?}");
            for (step, (two, five)) in two.iter().zip(&five).enumerate().skip(2) {
                let [kernels, graphs, changed] = *five;
                assert_eq!(kernels - two[0], 3 * 6, "step {step}: {two:?} of 2 layers, {five:?} of 5");
                assert_eq!(graphs, 1, "step {step}: {five:?}");
                // the grid of each layer's attention, when a row enters a new chunk
                assert!(changed == 0 || changed == 5, "step {step}: {five:?}");
            }
        }
    }
}

#[test]
fn a_run_saved_on_the_gpu_goes_on_to_the_same_bytes_on_the_processor_and_back() {
    gpus(&[Order::Backward]).iter().for_each(moved);
}

fn moved(device: &Device) {
    let want = run(&mut trainer(true, &Device::cpu()), 3);
    for (first, second) in [(device, &Device::cpu()), (&Device::cpu(), device)] {
        let scratch = Scratch::new("gpu-resume");
        let mut before = trainer(true, first);
        before.step(samples(0), 3).unwrap();
        let checkpoints = CheckpointDir::open(Arc::new(RealFs), &scratch.0, 2).unwrap();
        let standing = Standing { seed: 0, best: None };
        let _saved = store::save(&checkpoints, &before, &Tokenizer::byte(), standing).unwrap();
        let parts = (OptimConfig::default(), before.schedule);
        let mut after = store::resume(&scratch.0, (Dtype::F32, second), parts).unwrap().trainer;
        let got = [1, 2].map(|step| after.step(samples(step), 2).unwrap());
        for (report, (name, bits)) in got.iter().zip(&want[1..]) {
            assert_eq!([report.loss.to_bits(), report.grad_norm.to_bits()], bits[..], "{name} from {first}");
        }
        same(state(&after), &want[3..], &format!("from {first} to {second}"));
    }
}
