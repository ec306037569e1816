//! The GPU gates. In f32, a complete training run on the GPU or the emulator is bit-identical to the CPU, for any
//! order of the emulator's threads and any split into micro-batches.
use std::sync::Arc;

use xtrain::model::checkpoint::{CheckpointDir, RealFs};
use xtrain::model::store::{self, RunState};
use xtrain::model::{
    Biases, Config, Decay, Model, OptimConfig, Schedule, Trainer, TrainingExample, normalize_loss_weights,
};
use xtrain::tensor::ops::Target;
use xtrain::tensor::testing::{arbitrary, compare_words, gpus};
use xtrain::tensor::{Device, Dtype, GpuCounters, ThreadSchedule as Order};

use xtrain::decode::{Completion, Engine, EngineOptions, KvKind, Request};
use xtrain::verify::{self, RequestedSetting};

use crate::cli::Scratch;
use crate::rng::CaseRng;

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

/// Biases as in Qwen2, and all biases that Llama supports.
const BIASES: [Biases; 2] =
    [Biases { qkv: true, o: false, mlp: false }, Biases { qkv: true, o: true, mlp: true }];

/// The model of seed 3 with non-zero biases.
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

pub(crate) fn trainer_of(model: Model) -> Trainer {
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

/// Three training examples of different lengths, one longer than a chunk of 64 keys. Some rows have no target.
pub(crate) fn samples(step: u64) -> Vec<TrainingExample> {
    let mut rng = CaseRng::new(77, step);
    let sample = |n: usize, rng: &mut CaseRng| {
        let mut token = || rng.below(37) as u32;
        let inputs = (0..n).map(|_| token()).collect();
        let target = |id| Target { id, weight: 0.0, bonus: 0.01 };
        let targets = (0..n).map(|t| Some(target(token())).filter(|_| t % 7 != 3)).collect();
        TrainingExample { inputs, targets, ..TrainingExample::default() }
    };
    let mut samples: Vec<TrainingExample> = [70, 5, 33].into_iter().map(|n| sample(n, &mut rng)).collect();
    normalize_loss_weights(&mut samples);
    samples
}

/// The named results of three steps: losses, norms, weights and moments.
pub(crate) fn run(trainer: &mut Trainer, micro: usize) -> Vec<(String, Vec<u32>)> {
    let mut all = Vec::new();
    for step in 0..3 {
        let report = trainer.step(samples(step), micro).unwrap();
        all.push((format!("loss and norm {step}"), vec![report.loss.to_bits(), report.grad_norm.to_bits()]));
    }
    all.extend(state(trainer));
    all
}

/// The named weights and moments.
pub(crate) fn state(trainer: &Trainer) -> Vec<(String, Vec<u32>)> {
    let (Trainer { model, optimizer, .. }, mut all) = (trainer, Vec::new());
    for ((p, m), v) in model.params.iter().zip(&optimizer.m).zip(&optimizer.v) {
        for (what, x) in [("", p.value().unwrap()), ("m.", m), ("v.", v)] {
            let bits = x.to_vec::<f32>().unwrap().iter().map(|x| x.to_bits()).collect();
            all.push((format!("{what}{}", p.name()), bits));
        }
    }
    all
}

/// The number of compared values, or the first difference.
pub(crate) fn compare(
    got: &[(String, Vec<u32>)],
    want: &[(String, Vec<u32>)],
    what: &str,
) -> Result<usize, String> {
    if got.len() != want.len() {
        return Err(format!("{what}: {} lists of values, expected {}", got.len(), want.len()));
    }
    for ((name, got), (_, want)) in got.iter().zip(want) {
        compare_words(got, want).map_err(|difference| format!("{what}: {name}: {difference}"))?;
    }
    Ok(want.iter().map(|x| x.1.len()).sum())
}

#[track_caller]
fn same(got: &[(String, Vec<u32>)], want: &[(String, Vec<u32>)], what: &str) -> usize {
    compare(got, want, what).unwrap_or_else(|difference| panic!("{difference}"))
}

/// The attribute that ignores the other tests of this file is right.
#[test]
fn a_build_with_the_emulator_runs_its_tests() {
    let emulated = Device::emulated(Order::Forward);
    assert_eq!(cfg!(xtrain_emu), emulated.is_ok(), "{emulated:?}");
    let is_required = std::env::var_os("XTRAIN_REQUIRE_EMU").is_some_and(|value| value == "1");
    assert!(emulated.is_ok() || !is_required, "XTRAIN_REQUIRE_EMU=1, but {emulated:?}");
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn three_steps_on_the_gpu_have_the_bits_of_the_cpu() {
    let mut compared = 0;
    for tied in [false, true] {
        let want = run(&mut trainer(tied, &Device::cpu()), 3);
        let devices = gpus(&[Order::Forward, Order::Priorities(3), Order::Random(4)]);
        for (device, micro) in devices.into_iter().zip([3, 1, 2, 3]) {
            let what = format!("tied {tied}, {device}, micro-batches of {micro}");
            compared += same(&run(&mut trainer(tied, &device), micro), &want, &what);
        }
    }
    for biases in BIASES {
        let of =
            |device: &Device| trainer_of(biased(&Config { biases, ..config(false) }, Dtype::F32, device));
        let want = run(&mut of(&Device::cpu()), 3);
        for (device, micro) in gpus(&[Order::Random(5)]).into_iter().zip([1, 2]) {
            let what = format!("{biases:?}, {device}, micro-batches of {micro}");
            compared += same(&run(&mut of(&device), micro), &want, &what);
        }
    }
    println!("training on the GPU: {compared} values compared, 0 differ");
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_step_after_the_first_two_allocates_nothing_and_downloads_only_scalars() {
    gpus(&[Order::Forward]).iter().for_each(check_warm_step);
}

/// The activity of the third training step of two layers, which has more than 60 kernels.
fn warm_step(device: &Device) -> GpuCounters {
    let Device::Gpu(gpu) = device else { panic!("{device} is no GPU") };
    let mut trainer = trainer(true, device);
    let mut step = || {
        let before = gpu.gpu_counters();
        trainer.step(samples(0), 3).unwrap();
        gpu.gpu_counters().since(before)
    };
    (0..2).for_each(|_| _ = step());
    step()
}

fn check_warm_step(device: &Device) {
    let t = warm_step(device);
    println!("a training step on {device}: {t:?}");
    assert_eq!(t.allocations, 0);
    // one each for the loss, the norm and the finite flags of all tensors
    assert!(t.syncs <= 3, "{t:?}");
    // the loss, the norm, a flag per tensor, and (lse, log-probability, entropy) of 108 rows
    assert!(t.downloaded <= 4096, "{} bytes downloaded", t.downloaded);
    let graphs = submissions(device).unwrap_or_else(|e| panic!("{e}"));
    assert!(graphs > 0);
}

/// Each layer is submitted when it is issued, in both directions. Otherwise there is one graph between two
/// synchronizations: copies, zeros and targets do not end it. Returns the number of graphs of a step.
pub(crate) fn submissions(device: &Device) -> Result<usize, String> {
    let t = warm_step(device);
    match (4..=t.syncs + 4).contains(&t.graphs) && t.launches > 8 * t.graphs {
        true => Ok(t.graphs as usize),
        false => Err(format!("gate submissions, seeds of the trainer, on {device}: {t:?}")),
    }
}

/// Every cache, page size, chunk and batch on the GPU: against the CPU in f32, against the GPU itself in bf16.
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
    let setting = RequestedSetting { threads: 1, kv: KvKind::Paged { page: 7 }, chunk: Some(5) };
    let verdicts = verify::verify(&model, &requests, &setting, &mut |_| ()).unwrap();
    for verdict in &verdicts {
        assert!(verdict.holds(), "{verdict:?}");
    }
    let ahead: u64 = verdicts.iter().map(|v| v.passes_ahead).sum();
    let preemptions: u64 = verdicts.iter().map(|v| v.preemptions).sum();
    assert!(ahead > 0 && preemptions > 0, "{ahead} passes ahead of the host, {preemptions} preemptions");
    let values: u64 = verdicts.iter().map(|v| v.values).sum();
    println!("rollouts on {device} in {compute}: {values} values compared, 0 differ");
    assert!(values > 50_000, "{values}");
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn rollouts_on_the_gpu_have_the_bits_of_the_training_forward_on_the_cpu() {
    rollouts(Dtype::F32);
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn rollouts_on_the_gpu_in_bf16_have_the_bits_of_its_training_forward() {
    rollouts(Dtype::BF16);
}

/// Requests with prompts of three lengths, alternating greedy and sampled, one of them with a repetition penalty.
fn requests(max_new: usize, penalty: Option<f32>) -> Vec<Request> {
    let mut rng = CaseRng::new(8, 1);
    let request = |(id, n): (usize, usize)| {
        let prompt: Vec<u32> = (0..n).map(|_| rng.below(37) as u32).collect();
        let mut request = Request::sampled(&prompt, max_new, [0.0, 0.8][id % 2], 4);
        request.options.repetition_penalty = penalty.filter(|_| id == 1);
        Request { id: id as u64, ..request }
    };
    [3, 70, 9].into_iter().enumerate().map(request).collect()
}

/// An engine with these requests that synchronizes every `steps_per_sync` steps.
fn engine(model: &Model, requests: Vec<Request>, steps_per_sync: usize) -> Engine<'_> {
    let options = EngineOptions { max_batch: 3, steps_per_sync, ..EngineOptions::default() };
    let mut engine = Engine::new(model, options).unwrap();
    requests.into_iter().for_each(|request| _ = engine.submit(request).unwrap());
    engine
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn tokens_sampled_on_the_gpu_equal_those_of_the_cpu_and_only_they_are_downloaded() {
    gpus(&[Order::Random(11)]).iter().for_each(check_sampled);
}

fn check_sampled(device: &Device) {
    let model = |device: &Device| Model::init(&config(false), Dtype::F32, device, 3).unwrap();
    let (on_device, on_cpu) = (model(device), model(&Device::cpu()));
    let requests = || requests(12, Some(1.3));
    let want = engine(&on_cpu, requests(), 1).run().unwrap();
    for steps_per_sync in [1, 5] {
        let mut engine = engine(&on_device, requests(), steps_per_sync);
        let steps = steps(device, &mut engine);
        let got = engine.take_finished();
        for want in &want {
            let got = got.iter().find(|got| got.index == want.index).unwrap();
            crate::decode::same(got, want)
                .unwrap_or_else(|e| panic!("{steps_per_sync} steps per synchronization on {device}: {e}"));
        }
        // a token, two log-probabilities and a status for each of three rows; their logits would be 444 bytes
        for (n, step) in steps.iter().enumerate().skip(if steps_per_sync == 1 { 4 } else { 2 }) {
            assert_eq!(step.gpu.allocations, 0, "step {n}: {step:?}");
            assert_eq!(step.gpu.downloaded, step.passes * 3 * 16, "step {n}: {step:?}");
            assert_eq!(step.gpu.syncs, 1, "step {n}: {step:?}");
        }
    }
}

/// The passes and the counters of one step of a rollout.
#[derive(Debug)]
struct StepCounters {
    passes: u64,
    gpu: GpuCounters,
}

/// Runs an engine to its end; returns the counters of each step.
fn steps(device: &Device, engine: &mut Engine<'_>) -> Vec<StepCounters> {
    let Device::Gpu(gpu) = device else { panic!("{device} is no GPU") };
    let mut steps = Vec::new();
    while !engine.is_idle() {
        let before = gpu.gpu_counters();
        let passes = engine.step().unwrap().passes as u64;
        steps.push(StepCounters { passes, gpu: gpu.gpu_counters().since(before) });
    }
    steps
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_decode_step_is_one_graph_of_five_kernels_per_layer() {
    for device in gpus(&[Order::Forward]) {
        for (compute, penalty) in [(Dtype::F32, None), (Dtype::BF16, None), (Dtype::BF16, Some(1.2))] {
            let of = |n_layers| {
                let model = Model::init(&Config { n_layers, ..config(true) }, compute, &device, 3).unwrap();
                steps(&device, &mut engine(&model, requests(25, penalty), 8))
            };
            let [two, five] = [2, 5].map(of);
            println!("{device} in {compute}, penalty {penalty:?}: {five:?}");
            // a synchronization after a prompt and its first token, then one every eight steps
            assert_eq!(five.iter().map(|s| s.passes).collect::<Vec<_>>(), [1, 8, 8, 8], "{five:?}");
            // 24 new tokens per row; each step reads their keys and values and all earlier ones once per layer
            let keys: usize = [3, 70, 9].iter().map(|prompt| (prompt + 1..=prompt + 24).sum::<usize>()).sum();
            let needed = (keys * 5 * 2 * 2 * 8 * compute.bytes()) as u64;
            let read: u64 = five[1..].iter().map(|s| s.gpu.kv_read).sum();
            println!("{read} bytes of keys and values read, {needed} needed");
            assert!(read >= needed && 10 * read <= 11 * needed, "{read} of {needed}");
            for (two, five) in two.iter().zip(&five).skip(2) {
                let (passes, t) = (five.passes, five.gpu);
                assert_eq!(t.launches - two.gpu.launches, passes * 3 * 5, "{two:?}, {five:?}");
                assert_eq!(t.graphs, passes, "{five:?}");
                // the grid of each layer's attention if a row enters a new chunk; with a penalty, the address of the
                // ids
                let ids = u64::from(penalty.is_some());
                assert!(
                    t.graph_node_updates <= ids || (5..=5 + ids).contains(&t.graph_node_updates),
                    "{five:?}"
                );
                // one download, at the synchronization: what each row sampled in each step
                assert_eq!((t.syncs, t.downloaded), (1, passes * 3 * 16), "{five:?}");
                // no upload between the steps; before the first step the positions and slots of all steps, and
                // sometimes options and a page table
                assert!(t.steps_without_upload >= passes, "{five:?}");
                assert!(t.uploaded <= passes * 3 * (4 + 4) + 400, "{five:?}");
                assert_eq!(t.allocations, 0, "{five:?}");
            }
        }
    }
}

/// Numbers of decode rows that run other kernels than 8 rows do: kernels for few rows and square tiles, with a norm
/// after a residual addition.
const MANY: [(Dtype, usize); 5] =
    [(Dtype::F32, 9), (Dtype::F32, 70), (Dtype::BF16, 12), (Dtype::BF16, 30), (Dtype::BF16, 70)];

/// Runs `rows` requests in a model of `n_layers` layers, `max_batch` at a time. Returns the steps and the
/// completions.
fn many(
    device: &Device,
    compute: Dtype,
    rows: usize,
    n_layers: usize,
    max_batch: usize,
) -> (Vec<StepCounters>, Vec<Completion>) {
    let request = |id: usize| Request { id: id as u64, ..Request::sampled(&[id as u32 % 37, 5], 9, 1.0, 3) };
    let model = Model::init(&Config { n_layers, ..config(true) }, compute, device, 3).unwrap();
    let mut engine = Engine::new(&model, EngineOptions { max_batch, ..EngineOptions::default() }).unwrap();
    (0..rows).for_each(|id| _ = engine.submit(request(id)).unwrap());
    let steps = steps(device, &mut engine);
    let mut done = engine.take_finished();
    done.sort_by_key(|c| c.index);
    (steps, done)
}

/// Compares many rows at a time with 8 rows at a time. Returns the number of compared completions.
pub(crate) fn many_rows(device: &Device) -> Result<usize, String> {
    for (compute, rows) in MANY {
        let [got, want] = [rows, 8].map(|max_batch| many(device, compute, rows, 2, max_batch).1);
        let differ = |e: String| format!("gate many rows, seed 3: {rows} rows in {compute} on {device}: {e}");
        if got.len() != want.len() {
            return Err(differ(format!("{} completions, expected {}", got.len(), want.len())));
        }
        got.iter().zip(&want).try_for_each(|(got, want)| crate::decode::same(got, want)).map_err(differ)?;
    }
    Ok(MANY.iter().map(|many| many.1).sum())
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_decode_step_of_many_rows_is_seven_kernels_per_layer_and_has_the_bits_of_few_rows() {
    for device in gpus(&[Order::Priorities(6)]) {
        let n = many_rows(&device).unwrap_or_else(|e| panic!("{e}"));
        println!("many rows on {device}: {n} completions compared with 8 rows at a time, 0 differ");
        for (compute, rows) in MANY {
            let [two, five] = [2, 5].map(|layers| many(&device, compute, rows, layers, rows).0);
            for (two, five) in two.iter().zip(&five).skip(1) {
                let (passes, t) = (five.passes, five.gpu);
                assert_eq!(passes, 8, "{five:?}");
                assert_eq!(
                    t.launches - two.gpu.launches,
                    passes * 3 * 7,
                    "{rows} in {compute}: {two:?}, {five:?}"
                );
                assert!(t.steps_without_upload >= passes, "{five:?}");
            }
        }
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_sequence_that_passes_position_256_keeps_its_graph_and_needs_no_upload() {
    // a page, a chunk of keys and a block of the rotary table begin at 256; the last synchronization is after 253
    let cfg = Config { max_positions: 300, ..config(true) };
    let request =
        |id: u64| Request { id, ..Request::sampled(&vec![(5 + id) as u32; 238 - id as usize], 25, 0.9, 2) };
    let requests = || (0..3).map(request).collect::<Vec<_>>();
    let model = |device: &Device| Model::init(&cfg, Dtype::F32, device, 3).unwrap();
    let on_cpu = model(&Device::cpu());
    let want = engine(&on_cpu, requests(), 1).run().unwrap();
    for device in gpus(&[Order::Backward]) {
        let on_device = model(&device);
        let mut engine = engine(&on_device, requests(), 8);
        let steps = steps(&device, &mut engine);
        let mut got = engine.take_finished();
        got.sort_by_key(|c| c.index);
        assert_eq!(got, want, "{device}");
        assert_eq!(steps.iter().map(|s| s.passes).collect::<Vec<_>>(), [1, 8, 8, 8], "{steps:?}");
        let t = steps[3].gpu;
        assert!(t.graphs == 8 && t.steps_without_upload >= 8, "{steps:?}");
        // at most three steps, one per row, in which a row enters a new chunk: one kernel per layer
        assert!(t.graph_node_updates <= 3 * 2, "{steps:?}");
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_run_saved_on_the_gpu_resumes_bit_identically_on_the_cpu_and_back() {
    gpus(&[Order::Backward]).iter().for_each(check_moved);
}

fn check_moved(device: &Device) {
    let want = run(&mut trainer(true, &Device::cpu()), 3);
    for (first, second) in [(device, &Device::cpu()), (&Device::cpu(), device)] {
        let scratch = Scratch::new("gpu-resume");
        let mut before = trainer(true, first);
        before.step(samples(0), 3).unwrap();
        let checkpoints = CheckpointDir::open(Arc::new(RealFs), &scratch.0, 2).unwrap();
        let standing = RunState { seed: 0, best: None };
        let _saved = store::save(&checkpoints, &before, None, standing, &[]).unwrap();
        let optim = OptimConfig::default();
        let resumed = store::resume(&scratch.0, Dtype::F32, second, optim, before.schedule).unwrap();
        let mut after = resumed.trainer;
        let got = [1, 2].map(|step| after.step(samples(step), 2).unwrap());
        for (report, (name, bits)) in got.iter().zip(&want[1..]) {
            compare_words(&[report.loss.to_bits(), report.grad_norm.to_bits()], bits)
                .unwrap_or_else(|e| panic!("{name} from {first}: {e}"));
        }
        same(&state(&after), &want[3..], &format!("from {first} to {second}"));
    }
}
