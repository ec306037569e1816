//! The gates of the GPU: in f32 a whole training run on the emulated device, whatever the order of its
//! threads and the split into micro-batches, has the processor's bytes.
use std::sync::Arc;

use xtrain::model::checkpoint::{CheckpointDir, RealFs};
use xtrain::model::store::{self, RunState};
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{
    Biases, Config, Decay, Model, OptimConfig, Schedule, Trainer, TrainingExample, normalize_loss_weights,
};
use xtrain::tensor::ops::Target;
use xtrain::tensor::testing::{arbitrary, gpus};
use xtrain::tensor::{Device, Dtype, GpuCounters, Schedule as Order};

use xtrain::decode::{Completion, Engine, EngineOptions, KvKind, Request};
use xtrain::verify::{self, RequestedSetting};

use crate::cli::Scratch;
use crate::dice::Dice;

pub(crate) fn config(tied: bool) -> Config {
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

/// Biases as in Qwen2, and all that Llama knows.
const BIASES: [Biases; 2] =
    [Biases { qkv: true, o: false, mlp: false }, Biases { qkv: true, o: true, mlp: true }];

/// The model of seed 3 with biases that are not zero.
pub(crate) fn biased(cfg: &Config, compute: Dtype, device: &Device) -> Model {
    let mut model = Model::init(cfg, compute, &Device::cpu(), 3).unwrap();
    for p in model.params.iter_mut().filter(|p| p.name().ends_with(".bias")) {
        let (seed, data) = (p.index() as u64, p.value_mut().unwrap().data_mut::<f32>().unwrap());
        data.copy_from_slice(&arbitrary(data.len(), seed));
    }
    model.to_device(device).unwrap()
}

fn trainer(tied: bool, device: &Device) -> Trainer {
    trainer_of(Model::init(&config(tied), Dtype::F32, device, 5).unwrap())
}

fn trainer_of(model: Model) -> Trainer {
    let schedule = Schedule {
        decay: Decay::Cosine,
        warmup_start_lr: 0.0,
        lr: 1e-2,
        min_lr: 1e-3,
        warmup_steps: 1,
        steps: 4,
        decay_steps: 0,
    };
    Trainer::new(model, OptimConfig::default(), schedule).unwrap()
}

/// Three ragged samples that cross a chunk of 64 keys; some rows have no target.
fn samples(step: u64) -> Vec<TrainingExample> {
    let mut dice = Dice::new(77, step);
    let sample = |n: usize, dice: &mut Dice| {
        let mut token = || dice.below(37) as u32;
        let inputs = (0..n).map(|_| token()).collect();
        let target = |id| Target { id, weight: 0.0, bonus: 0.01 };
        let targets = (0..n).map(|t| Some(target(token())).filter(|_| t % 7 != 3)).collect();
        TrainingExample { inputs, targets, ..TrainingExample::default() }
    };
    let mut samples: Vec<TrainingExample> = [70, 5, 33].into_iter().map(|n| sample(n, &mut dice)).collect();
    normalize_loss_weights(&mut samples);
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
    for biases in BIASES {
        let of =
            |device: &Device| trainer_of(biased(&Config { biases, ..config(false) }, Dtype::F32, device));
        let want = run(&mut of(&Device::cpu()), 3);
        for (device, micro) in gpus(&[Order::Random(5)]).into_iter().zip([1, 2]) {
            let what = format!("{biases:?}, {device}, micro-batches of {micro}");
            compared += same(run(&mut of(&device), micro), &want, &what);
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
        let before = gpu.gpu_counters();
        trainer.step(samples(0), 3).unwrap();
        gpu.gpu_counters().since(before)
    };
    for _ in 0..2 {
        step(&mut trainer);
    }
    let t = step(&mut trainer);
    println!("a training step on {device}: {t:?}");
    assert_eq!(t.allocations, 0);
    // what is learnt of the loss, the norm, the flags of all tensors
    assert!(t.syncs <= 3, "{t:?}");
    // the loss, the norm, a flag a tensor, and (lse, log-probability, entropy) of 108 rows
    assert!(t.downloaded <= 4096, "{} bytes came back", t.downloaded);
    // a graph from one look of the host to the next: neither copies nor zeros nor targets end one
    assert!(t.graphs <= t.syncs && t.launches > 40 * t.graphs, "{t:?}");
}

/// Every cache, page, chunk and batch on the GPU, against the processor in f32, against itself in bf16.
fn rollouts(compute: Dtype) {
    for device in gpus(&[Order::Priorities(9)]) {
        rollouts_on(&device, &Model::init(&config(true), compute, &device, 3).unwrap());
        for biases in BIASES {
            rollouts_on(&device, &biased(&Config { biases, n_layers: 1, ..config(false) }, compute, &device));
        }
    }
}

fn rollouts_on(device: &Device, model: &Model) {
    let (model, compute) = (model.clone(), model.compute());
    let requests = verify::requests(&verify::prompts(&model, 1, 3, 5), 5, 1);
    let asked = RequestedSetting { threads: 1, kv: KvKind::Paged { page: 7 }, chunk: Some(5) };
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

/// Prompts of three lengths, greedy and sampled in turn, one of them penalised.
fn asked(max_new: usize, penalty: Option<f32>) -> Vec<Request> {
    let mut dice = Dice::new(8, 1);
    let request = |(id, n): (usize, usize)| {
        let prompt: Vec<u32> = (0..n).map(|_| dice.below(37) as u32).collect();
        let mut request = Request::sampled(&prompt, max_new, [0.0, 0.8][id % 2], 4);
        request.options.repetition_penalty = penalty.filter(|_| id == 1);
        Request { id: id as u64, ..request }
    };
    [3, 70, 9].into_iter().enumerate().map(request).collect()
}

/// An engine for those, and how many steps it may run ahead.
fn engine(model: &Model, asked: Vec<Request>, look: usize) -> Engine<'_> {
    let options = EngineOptions { max_batch: 3, steps_per_sync: look, ..EngineOptions::default() };
    let mut engine = Engine::new(model, options).unwrap();
    asked.into_iter().for_each(|request| _ = engine.submit(request).unwrap());
    engine
}

#[test]
fn tokens_drawn_on_the_gpu_are_those_of_the_processor_and_all_that_a_step_copies_back() {
    gpus(&[Order::Random(11)]).iter().for_each(drawn);
}

fn drawn(device: &Device) {
    let model = |device: &Device| Model::init(&config(false), Dtype::F32, device, 3).unwrap();
    let (there, here) = (model(device), model(&Device::cpu()));
    let asked = || asked(12, Some(1.3));
    let want = engine(&here, asked(), 1).run().unwrap();
    for look in [1, 5] {
        let mut engine_there = engine(&there, asked(), look);
        let steps = steps(device, &mut engine_there);
        let got = engine_there.take_finished();
        for want in &want {
            let got = got.iter().find(|got| got.index == want.index).unwrap();
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(got.tokens, want.tokens);
            assert_eq!(bits(&got.logprobs), bits(&want.logprobs));
            assert_eq!(bits(&got.processed_logprobs), bits(&want.processed_logprobs));
        }
        // a token, two log-probabilities and a status for each of three rows, where their logits are 444 bytes
        for (n, step) in steps.iter().enumerate().skip(if look == 1 { 4 } else { 2 }) {
            assert_eq!(step.traffic.allocations, 0, "step {n}: {step:?}");
            assert_eq!(step.traffic.downloaded, step.passes * 3 * 16, "step {n}: {step:?}");
            assert_eq!(step.traffic.syncs, 1, "step {n}: {step:?}");
        }
    }
}

/// What a step of a rollout did.
#[derive(Debug)]
struct Stepped {
    passes: u64,
    traffic: GpuCounters,
}

/// All steps of an engine.
fn steps(device: &Device, engine: &mut Engine<'_>) -> Vec<Stepped> {
    let Device::Gpu(gpu) = device else { panic!("{device} is no GPU") };
    let mut steps = Vec::new();
    while !engine.is_idle() {
        let before = gpu.gpu_counters();
        let passes = engine.step().unwrap().passes as u64;
        steps.push(Stepped { passes, traffic: gpu.gpu_counters().since(before) });
    }
    steps
}

#[test]
fn a_decode_step_is_one_graph_of_six_kernels_a_layer() {
    for device in gpus(&[Order::Forward]) {
        for (compute, penalty) in [(Dtype::F32, None), (Dtype::BF16, None), (Dtype::BF16, Some(1.2))] {
            let of = |n_layers| {
                let model = Model::init(&Config { n_layers, ..config(true) }, compute, &device, 3).unwrap();
                steps(&device, &mut engine(&model, asked(25, penalty), 8))
            };
            let [two, five] = [2, 5].map(of);
            println!("{device} in {compute}, penalty {penalty:?}: {five:?}");
            // a look after a prompt and its first token, then one every eight steps
            assert_eq!(five.iter().map(|s| s.passes).collect::<Vec<_>>(), [1, 8, 8, 8], "{five:?}");
            // 24 new tokens of each row, whose keys and values and those before them are read once a layer
            let keys: usize = [3, 70, 9].iter().map(|prompt| (prompt + 1..=prompt + 24).sum::<usize>()).sum();
            let needed = (keys * 5 * 2 * 2 * 8 * compute.bytes()) as u64;
            let read: u64 = five[1..].iter().map(|s| s.traffic.kv_read).sum();
            println!("{read} bytes of keys and values read, {needed} needed");
            assert!(read >= needed && 10 * read <= 11 * needed, "{read} of {needed}");
            for (two, five) in two.iter().zip(&five).skip(2) {
                let (passes, t) = (five.passes, five.traffic);
                assert_eq!(t.launches - two.traffic.launches, passes * 3 * 6, "{two:?}, {five:?}");
                assert_eq!(t.graphs, passes, "{five:?}");
                // the grid of each layer's attention, when a row enters a new chunk; where the ids of a look lie
                let look = u64::from(penalty.is_some());
                assert!(
                    t.graph_node_updates <= look || (5..=5 + look).contains(&t.graph_node_updates),
                    "{five:?}"
                );
                // nothing comes to the host but at the look: what each row drew in each step
                assert_eq!((t.syncs, t.downloaded), (1, passes * 3 * 16), "{five:?}");
                // nothing goes to the device between the steps; before the first positions and slots of all of them,
                // and options and a page table now and then
                assert!(t.steps_without_upload >= passes, "{five:?}");
                assert!(t.uploaded <= passes * 3 * (4 + 4) + 400, "{five:?}");
                assert_eq!(t.allocations, 0, "{five:?}");
            }
        }
    }
}

/// Rows of one token that take other kernels than 8 do: those of a few rows and square tiles, with a norm after a sum.
const MANY: [(Dtype, usize); 5] =
    [(Dtype::F32, 9), (Dtype::F32, 70), (Dtype::BF16, 12), (Dtype::BF16, 30), (Dtype::BF16, 70)];

/// So many requests in a model of so many layers, so many at a time: the steps, and what they come to.
fn many(
    device: &Device,
    (compute, rows): (Dtype, usize),
    [n_layers, max_batch]: [usize; 2],
) -> (Vec<Stepped>, Vec<Completion>) {
    let request = |id: usize| Request { id: id as u64, ..Request::sampled(&[id as u32 % 37, 5], 9, 1.0, 3) };
    let model = Model::init(&Config { n_layers, ..config(true) }, compute, device, 3).unwrap();
    let mut engine = Engine::new(&model, EngineOptions { max_batch, ..EngineOptions::default() }).unwrap();
    (0..rows).for_each(|id| _ = engine.submit(request(id)).unwrap());
    let steps = steps(device, &mut engine);
    let mut done = engine.take_finished();
    done.sort_by_key(|c| c.index);
    (steps, done)
}

/// Many rows at a time against 8 at a time; the completions compared.
pub(crate) fn many_rows(device: &Device) -> Result<usize, String> {
    for (compute, rows) in MANY {
        if many(device, (compute, rows), [2, rows]).1 != many(device, (compute, rows), [2, 8]).1 {
            return Err(format!("gate many rows: {rows} rows in {compute} on {device}"));
        }
    }
    Ok(MANY.iter().map(|many| many.1).sum())
}

#[test]
fn a_decode_step_of_many_rows_is_six_kernels_a_layer_and_has_the_bits_of_few() {
    for device in gpus(&[Order::Priorities(6)]) {
        let n = many_rows(&device).unwrap_or_else(|e| panic!("{e}"));
        println!("many rows on {device}: {n} completions are those of 8 rows at a time");
        for (compute, rows) in MANY {
            let [two, five] = [2, 5].map(|layers| many(&device, (compute, rows), [layers, rows]).0);
            for (two, five) in two.iter().zip(&five).skip(1) {
                let (passes, t) = (five.passes, five.traffic);
                assert_eq!(passes, 8, "{five:?}");
                assert_eq!(
                    t.launches - two.traffic.launches,
                    passes * 3 * 6,
                    "{rows} in {compute}: {two:?}, {five:?}"
                );
                assert!(t.steps_without_upload >= passes, "{five:?}");
            }
        }
    }
}

#[test]
fn a_row_that_passes_position_256_keeps_the_graph_and_is_sent_nothing_on_its_way() {
    // a page, a chunk of keys and a block of the rotary table begin at 256; the last look comes after 253
    let cfg = Config { max_positions: 300, ..config(true) };
    let request =
        |id: u64| Request { id, ..Request::sampled(&vec![(5 + id) as u32; 238 - id as usize], 25, 0.9, 2) };
    let asked = || (0..3).map(request).collect::<Vec<_>>();
    let model = |device: &Device| Model::init(&cfg, Dtype::F32, device, 3).unwrap();
    let here = model(&Device::cpu());
    let want = engine(&here, asked(), 1).run().unwrap();
    for device in gpus(&[Order::Backward]) {
        let there = model(&device);
        let mut engine = engine(&there, asked(), 8);
        let steps = steps(&device, &mut engine);
        let mut got = engine.take_finished();
        got.sort_by_key(|c| c.index);
        assert_eq!(got, want, "{device}");
        assert_eq!(steps.iter().map(|s| s.passes).collect::<Vec<_>>(), [1, 8, 8, 8], "{steps:?}");
        let t = steps[3].traffic;
        assert!(t.graphs == 8 && t.steps_without_upload >= 8, "{steps:?}");
        // each of three rows enters a new chunk in a step of its own, at most: one kernel a layer
        assert!(t.graph_node_updates <= 3 * 2, "{steps:?}");
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
        let standing = RunState { seed: 0, best: None };
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
