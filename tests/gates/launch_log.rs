//! The launch recorder: it receives the launches that a device receives, and its log counts the bytes and operations
//! that follow from the shapes.
use xtrain::decode::{Engine, EngineOptions, KvKind, Request};
use xtrain::model::{Config, Model, Params, Trainer, TrainingExample};
use xtrain::tensor::testing::gpus;
use xtrain::tensor::{Device, Dtype, GpuCounters, KernelLaunch, LaunchLog, ThreadSchedule, launch_recorder};

use crate::cli::{Scratch, ok};
use crate::commands::parsed;

/// The seed that failure messages name: prompts and windows are fixed.
const SEED: u64 = 0;
const PROMPT: usize = 70;
const NEW: usize = 5;
const WINDOWS: usize = 2;
const CONTEXT: usize = 9;

fn config(tied: bool) -> Config {
    Config {
        vocab: 37,
        dim: 32,
        ffn_dim: 48,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 8,
        max_positions: 96,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        tie_embeddings: tied,
        ..Config::default()
    }
}

fn rollout(model: &Model) -> Result<(), String> {
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|at| 7 * at % 37).collect();
    let options = EngineOptions { max_batch: 1, kv: KvKind::Paged { page: 16 }, ..EngineOptions::default() };
    let mut engine = Engine::new(model, options).map_err(failed)?;
    engine.submit(Request::greedy(&prompt, NEW)).map_err(failed)?;
    engine.run().map(|_| ()).map_err(failed)
}

fn training_step(model: Model) -> Result<(), String> {
    let window = |first: usize| {
        let tokens: Vec<u32> = (first..=first + CONTEXT).map(|at| (11 * at % 37) as u32).collect();
        TrainingExample::window(&tokens, 1.0)
    };
    let schedule = xtrain::model::Schedule::constant(1e-3);
    let mut trainer = Trainer::new(model, Default::default(), schedule).map_err(failed)?;
    trainer.step((0..WINDOWS).map(window).collect(), WINDOWS).map(|_| ()).map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> String {
    format!("gate launch_log, seed {SEED}: {error}")
}

/// Launches, synchronizations, downloaded bytes, and the bytes of attention. Uploads differ, because the recorder
/// samples token 0.
fn compared(counters: GpuCounters) -> [u64; 5] {
    [counters.launches, counters.syncs, counters.downloaded, counters.kv_read, counters.partials]
}

/// The counters of a recorder equal those of `device`, and it records every launch.
pub(crate) fn same_launches(device: &Device) -> Result<usize, String> {
    let mut values = 0;
    for (dtype, tied) in [(Dtype::F32, true), (Dtype::BF16, false)] {
        let (recorder, log) = launch_recorder(false);
        let [found, expected] = [&recorder, device].map(|on| -> Result<[[u64; 5]; 2], String> {
            let model = Model::init(&config(tied), dtype, on, 3).map_err(failed)?;
            let counters = || on.gpu_counters().expect("a GPU");
            let start = counters();
            rollout(&model)?;
            let middle = counters();
            training_step(model)?;
            Ok([compared(middle.since(start)), compared(counters().since(middle))])
        });
        let (found, expected) = (found?, expected?);
        if found != expected {
            return Err(failed(format!(
                "{dtype}: launches, syncs, downloaded, kv_read, partials of a rollout and a training step: expected \
                 {expected:?}, found {found:?}"
            )));
        }
        let (recorded, launches) =
            (log.take().len() as u64, recorder.gpu_counters().expect("a GPU").launches);
        if recorded != launches {
            return Err(failed(format!("{dtype}: {launches} launches, of which {recorded} were recorded")));
        }
        values += 10;
    }
    Ok(values)
}

/// The sum of the operations of matrix products, and of attention.
fn operations(log: &LaunchLog) -> [u64; 2] {
    let launches = log.take();
    let sum = |selected: &dyn Fn(&KernelLaunch) -> bool| {
        launches.iter().filter(|launch| selected(launch)).map(|launch| launch.operations).sum()
    };
    let attention = |launch: &KernelLaunch| launch.kernel.contains("attention");
    [sum(&|launch| !attention(launch)), sum(&|launch| attention(launch))]
}

/// The operations of a rollout and of a training step, for f32 and bf16, tied and untied: 2 per weight and row, three
/// times in training; 4 per visible key and channel of a query head, and 14 in the backward, which recomputes the
/// scores in each of its two passes.
pub(crate) fn operations_of_the_model() -> Result<usize, String> {
    let mut values = 0;
    for (dtype, tied) in [(Dtype::F32, true), (Dtype::BF16, true), (Dtype::F32, false), (Dtype::BF16, false)]
    {
        let cfg = config(tied);
        let shapes = Params::shapes(&cfg).map_err(failed)?;
        let size = |name: &str| -> u64 {
            let named = shapes.iter().filter(|(n, shape)| n.contains(name) && shape.len() == 2);
            named.map(|(_, shape)| (shape[0] * shape[1]) as u64).sum()
        };
        let (layers, head) = (size("layers."), size(if tied { "embed_tokens" } else { "lm_head" }));
        let channels = (cfg.n_layers * cfg.n_heads * cfg.head_dim) as u64;

        let (recorder, log) = launch_recorder(false);
        let model = Model::init(&cfg, dtype, &recorder, 3).map_err(failed)?;
        log.take();
        rollout(&model)?;
        let [products, attention] = operations(&log);
        let (rows, pairs) = ((PROMPT + NEW - 1) as u64, (PROMPT * (PROMPT + 1) / 2) as u64);
        // a new token reads its keys in chunks of 64
        let decoded: u64 = (PROMPT + 1..PROMPT + NEW).map(|keys| keys.next_multiple_of(64) as u64).sum();
        let rollout = [2 * (layers * rows + head * NEW as u64), 4 * channels * (pairs + decoded)];

        training_step(model)?;
        let step = operations(&log);
        let (rows, pairs) = ((WINDOWS * CONTEXT) as u64, (WINDOWS * CONTEXT * (CONTEXT + 1) / 2) as u64);
        let expected = [rollout, [6 * (layers + head) * rows, 18 * channels * pairs]];
        if [[products, attention], step] != expected {
            return Err(failed(format!(
                "{dtype}, tied {tied}: operations of products and attention, of a rollout and a training step: \
                 expected {expected:?}, found {:?}",
                [[products, attention], step]
            )));
        }
        values += 4;
    }
    Ok(values)
}

/// The bytes of one decode step, by kernel, from the shapes.
pub(crate) fn bytes_of_a_step() -> Result<usize, String> {
    let cfg = config(true);
    let mut values = 0;
    for (dtype, e) in [(Dtype::F32, 4), (Dtype::BF16, 2)] {
        let (recorder, log) = launch_recorder(false);
        let model = Model::init(&cfg, dtype, &recorder, 3).map_err(failed)?;
        log.take();
        rollout(&model)?;
        let launches = log.take();
        let (c, f, heads, kv) = (32, 48, 32, 16);
        // f32 stream and gain, weights, output
        let qkv = 8 * c + e * (c + 1) * (heads + 2 * kv);
        let swiglu = 8 * c + e * (2 * c + 1) * f;
        // the earlier keys and values, two chunks' partial results written and read, queries and output, the new key and
        // value; the device counts its position, so both chunks are whole
        let attention = 2 * (2 * 64 - 1) * kv * e + 2 * 2 * 4 * (2 + 8) * 4 + 2 * heads * e + 4 * kv * e;
        // those of the prompt, which the attention of many rows does not write
        let written = PROMPT as u64 * 2 * (heads + 2 * kv) * e;
        let kernels = [
            ("norm_linears", qkv),
            ("norm_swiglu", swiglu),
            ("append_attention", attention),
            ("write_heads", written),
        ];
        // the kernels of the last layer; the head is after them
        let layers = launches.iter().rposition(|launch| launch.kernel.starts_with("norm_swiglu"));
        let layers = &launches[..=layers.expect("a layer computes SwiGLU")];
        for (kernel, expected) in kernels {
            let last = layers.iter().rev().find(|launch| launch.kernel.starts_with(kernel));
            let found = last.map(|launch| launch.bytes);
            if found != Some(expected) {
                return Err(failed(format!(
                    "{kernel} in {dtype}: expected {expected} bytes, found {found:?}"
                )));
            }
            values += 1;
        }
    }
    Ok(values)
}

/// The latency chains of a decode step in bf16, in round trips, from the loops of the kernels.
pub(crate) fn chains_of_a_step() -> Result<usize, String> {
    let (recorder, log) = launch_recorder(true);
    let model = Model::init(&config(true), Dtype::BF16, &recorder, 3).map_err(failed)?;
    log.take();
    rollout(&model)?;
    let launches = log.take();
    // one chunk of 256 per product: the rows for their scale, then rows and weights; attention: position, page, keys and
    // values, and the merge of two chunks; a residual comes with the rows
    let expected = [("norm_linears", 2), ("append_attention", 5), ("norm_swiglu", 2), ("linear_skinny", 1)];
    for (kernel, expected) in expected {
        let last = launches.iter().rev().find(|launch| launch.kernel.starts_with(kernel));
        let found = last.map(|launch| launch.round_trips);
        if found != Some(expected) {
            return Err(failed(format!("{kernel}: expected {expected} round trips, found {found:?}")));
        }
    }
    Ok(expected.len())
}

/// The kinds of products of a decode step of a model and a batch that have fewer blocks than an H200 has multiprocessors.
/// `norm_linears`, `linears` and the first `linear` (`o`): one block computes all chunks of a tile, because sharing them
/// among blocks takes longer on an H100 than it saves. 256 rows: tiles of 64 x 64 for `q`, `k`, `v`, `o` and `down`, of 128 x
/// 128 for gate and up; smaller ones by mma.sync take longer (docs/bench/gpu.md).
const FEW_BLOCKS: [(&str, &str, &[&str]); 4] = [
    ("base-125m", "1", &["linear_skinny_bf16_8", "norm_linears_bf16"]),
    ("base-125m", "32", &["linear_skinny_bf16_32", "linears_skinny_bf16_32"]),
    (
        "base-125m",
        "256",
        &["linear_bf16_wgmma_64", "linear_bf16_wgmma_64", "linears_bf16_wgmma_64", "swiglu_bf16_wgmma"],
    ),
    ("qwen3-0.6b", "1", &["linear_skinny_bf16_8"]),
];

/// The other products of a decode step fill the multiprocessors of an H200, at batch 1, 32 and 256.
pub(crate) fn products_of_a_decode_step_fill_the_gpu() {
    let scratch = Scratch::new("products");
    let mut products = 0;
    for (preset, batch, few) in FEW_BLOCKS {
        let model = format!("model.preset={preset}");
        let vocab: &[&str] = if preset == "base-125m" { &["--set", "model.vocab=32000"] } else { &[] };
        let model = [&["--set", &model, "--dtype", "bf16"], vocab].concat();
        let decode = ["bench", "decode", "--batch", batch, "--prompt-len", "128", "--max-new", "128"];
        let estimate = ["--one-prompt", "--estimate", "h200", "--json"];
        let json = parsed(&ok(&scratch.0, &[&decode[..], &estimate, &model].concat()));
        // more than 8 rows: the norms are kernels of their own
        assert_eq!(json["launches_per_layer"], if batch == "1" { 5 } else { 7 }, "{json}");
        let mut found = Vec::new();
        for row in json["kernels"].as_array().unwrap() {
            let kernel = row["kernel"].as_str().unwrap();
            if row["operations"].as_u64() > Some(0) && !kernel.contains("attention") {
                products += 1;
                found.extend((row["blocks"].as_u64().unwrap() < 132).then_some(kernel));
            }
        }
        found.sort_unstable();
        assert_eq!(found, few, "{preset}, batch {batch}: products with fewer blocks than multiprocessors");
    }
    println!("products of four decode steps: {products} launches compared with 132 multiprocessors");
}

/// Top-p over a large vocabulary has several blocks per row in each of its kernels, and the step has two more launches
/// than without it.
#[test]
fn the_filters_of_a_row_have_several_blocks() {
    let scratch = Scratch::new("filters");
    let step = |flags: &[&str]| {
        let model = ["bench", "decode", "--set", "model.preset=tiny-1m", "--set", "model.vocab=151936"];
        let lengths =
            ["--prompt-len", "8", "--max-new", "8", "--dtype", "bf16", "--estimate", "h200", "--json"];
        parsed(&ok(&scratch.0, &[&model[..], &lengths, flags].concat()))
    };
    let blocks = |step: &serde_json::Value| -> Vec<(String, u64)> {
        let kernels = step["kernels"].as_array().unwrap().iter();
        let all =
            kernels.map(|row| (row["kernel"].as_str().unwrap().into(), row["blocks"].as_u64().unwrap()));
        all.filter(|(kernel, _): &(String, u64)| kernel.starts_with("sample_")).collect()
    };
    let [plain, top_p, both] = [
        step(&["--temperature", "1"]),
        step(&["--temperature", "1", "--top-p", "0.9"]),
        step(&["--temperature", "1", "--top-p", "0.9", "--batch", "3"]),
    ];
    let launches = |step: &serde_json::Value| step["launches"].as_u64().unwrap();
    assert_eq!(launches(&plain) + 2, launches(&top_p));
    // 151,936 logits are 37.1 times 4096
    assert_eq!((blocks(&plain).len(), blocks(&top_p).len()), (2, 4), "{top_p}");
    assert!(blocks(&top_p).iter().all(|(_, blocks)| *blocks >= 38), "{top_p}");
    assert!(blocks(&both).iter().all(|(_, blocks)| *blocks >= 3 * 38), "{both}");
    // the other kernels have the same traffic
    let others = |step: &serde_json::Value| -> Vec<serde_json::Value> {
        let kernels = step["kernels"].as_array().unwrap().iter();
        kernels.filter(|row| !row["kernel"].as_str().unwrap().starts_with("sample_")).cloned().collect()
    };
    let batch = ["--temperature", "1", "--batch", "32"];
    let [plain, top_p] = [step(&batch), step(&[&batch[..], &["--top-p", "0.9"]].concat())];
    assert_eq!(others(&plain), others(&top_p));
}

/// The bytes of a launch of ten weight gradients, those of a layer and the MLP of the next, from the shapes.
pub(crate) fn bytes_of_weight_gradients() -> Result<usize, String> {
    let cfg = config(true);
    for (dtype, e) in [(Dtype::F32, 4), (Dtype::BF16, 2)] {
        let (recorder, log) = launch_recorder(false);
        let model = Model::init(&cfg, dtype, &recorder, 3).map_err(failed)?;
        log.take();
        training_step(model)?;
        let (rows, c, f, heads, kv) = ((WINDOWS * CONTEXT) as u64, 32, 48, 32, 16);
        // gradients from zeros are only written; each x and dy is read once
        let group = |outs: u64, width: u64| 4 * outs * width + e * rows * (outs + width);
        let expected = 2 * (group(c, f) + group(2 * f, c)) + group(c, heads) + group(heads + 2 * kv, c);
        // the first launch is that of the head
        let launches = log.take();
        let found = launches.iter().filter(|launch| launch.kernel.starts_with("linear_dw")).nth(1);
        if found.map(|launch| launch.bytes) != Some(expected) {
            return Err(failed(format!("linear_dw in {dtype}: expected {expected} bytes, found {found:?}")));
        }
    }
    Ok(2)
}

/// The weight gradients of a training step leave less than a twentieth of the multiprocessors of an H200 idle.
pub(crate) fn weight_gradients_of_a_step_fill_the_gpu() {
    let scratch = Scratch::new("weight-gradients");
    let model = ["--set", "model.preset=base-125m", "--set", "model.vocab=32000", "--dtype", "bf16"];
    let sizes = ["--set", "train.batch=8", "--set", "train.context=1024", "--set", "train.micro_batch=8"];
    let train = ["bench", "train", "--estimate", "h200", "--json"];
    let json = parsed(&ok(&scratch.0, &[&train[..], &model, &sizes].concat()));
    let (mut launches, mut tiles, mut available) = (0, 0, 0);
    for row in json["kernels"].as_array().unwrap() {
        if row["kernel"].as_str().unwrap().starts_with("linear_dw") {
            let [tiles_of, count] = ["tiles", "launches"].map(|key| row[key].as_u64().unwrap());
            launches += count;
            tiles += count * tiles_of;
            available += count * tiles_of.div_ceil(132) * 132;
        }
    }
    assert!(20 * tiles > 19 * available, "{tiles} tiles in waves with room for {available}: {json}");
    // the forward pass, its gradients and the update, without kernels for SwiGLU, RoPE and their gradients
    assert_eq!(json["launches_per_layer"], 30, "kernels of a layer: {json}");
    for parts in ["silu_mul", "rope_"] {
        let names = json["kernels"].as_array().unwrap().iter().map(|row| row["kernel"].as_str().unwrap());
        let alone: Vec<&str> = names.filter(|name| name.starts_with(parts)).collect();
        assert!(alone.is_empty(), "{alone:?}");
    }
    // 18 layers of seven, and the head in two blocks of rows
    assert!(launches < 25, "{json}");
    // products of a training step by wgmma: 8192 rows are 64 tiles, times 18 of the width, 36 of gate and up
    let tiles_of = |kernel: &str| -> Vec<u64> {
        let rows = json["kernels"].as_array().unwrap().iter().filter(|row| row["kernel"] == kernel);
        rows.map(|row| row["tiles"].as_u64().unwrap()).collect()
    };
    let by_wgmma = ["linear_dx_swiglu_bf16_wgmma", "swiglu_bf16_wgmma"].map(tiles_of);
    assert_eq!(by_wgmma, [vec![64 * 18], vec![64 * 36]], "tiles of products by wgmma: {json}");
    println!("weight gradients of a training step: {launches} launches compared with 132 multiprocessors");
}

#[test]
fn the_weight_gradients_of_a_training_step_fill_the_gpu() {
    weight_gradients_of_a_step_fill_the_gpu();
}

#[test]
fn the_products_of_a_decode_step_fill_the_gpu() {
    products_of_a_decode_step_fill_the_gpu();
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn the_recorder_receives_the_launches_of_a_device() {
    for device in gpus(&[ThreadSchedule::Forward]) {
        let values = same_launches(&device).unwrap();
        println!("launch recorder compared with {device}: {values} counters, 0 differ");
    }
}

#[test]
fn the_log_counts_the_operations_and_bytes_of_the_model() {
    let values = operations_of_the_model().unwrap() + bytes_of_a_step().unwrap();
    let values = values + bytes_of_weight_gradients().unwrap() + chains_of_a_step().unwrap();
    println!("launch log: {values} sums compared, 0 differ");
}

#[test]
fn an_estimate_shows_the_kernels_of_one_step() {
    let scratch = Scratch::new("estimate");
    let layers = ["--set", "model.preset=tiny-1m", "--set", "model.n_layers=3", "--dtype", "bf16"];
    for new in ["1", "100"] {
        let decode = ["bench", "decode", "--max-new", new, "--estimate", "h200", "--json"];
        let json = parsed(&ok(&scratch.0, &[&decode[..], &layers].concat()));
        let kernels: Vec<&str> =
            json["kernels"].as_array().unwrap().iter().filter_map(|row| row["kernel"].as_str()).collect();
        assert_eq!((&json["launches_per_layer"], &json["tokens_per_step"]), (&5.into(), &1.into()), "{json}");
        let attention: Vec<_> = kernels.iter().filter(|kernel| kernel.contains("attention")).collect();
        assert_eq!(attention, [&"append_attention_bf16_hd32"], "a prefill for --max-new {new}: {kernels:?}");
    }
    // sequences that share a prompt, and no page after it
    let shared =
        ["--batch", "40", "--one-prompt", "--prompt-len", "64", "--max-new", "400", "--estimate", "h200"];
    let json = parsed(&ok(&scratch.0, &[&["bench", "decode", "--json"], &shared[..], &layers].concat()));
    let [step, ideal] = ["step_us", "ideal_us"].map(|key| json[key].as_f64().unwrap());
    let mut attention = json["kernels"].as_array().unwrap().iter();
    let attention = attention.find(|row| row["kernel"] == "append_attention_bf16_hd32").unwrap();
    // at position 265, the prompt once and the keys after it, but not four whole chunks; two heads of 32 in bf16
    let bytes_of = |keys: u64| keys * 2 * (2 * 32 * 2);
    let [own, chunks] = [bytes_of(64 + 40 * (265 - 64)), bytes_of(64 + 40 * 4 * 64)];
    let bytes = attention["bytes"].as_u64().unwrap();
    assert!(step > ideal && own < bytes && bytes < chunks, "{json}");
    #[cfg(feature = "faults")]
    {
        let fault = ["bench", "decode", "--json", "--fault", "keys-rounded-to-chunks"];
        let json = parsed(&ok(&scratch.0, &[&fault[..], &shared[..], &layers].concat()));
        let mut kernels = json["kernels"].as_array().unwrap().iter();
        let attention = kernels.find(|row| row["kernel"] == "append_attention_bf16_hd32").unwrap();
        assert!(
            attention["bytes"].as_u64().unwrap() >= chunks,
            "KeysRoundedToChunks is not detected: {json}"
        );
    }
    let sizes = ["--set", "train.batch=2", "--set", "train.context=8", "--set", "train.micro_batch=2"];
    let train = ["bench", "train", "--estimate", "a100", "--json"];
    let json = parsed(&ok(&scratch.0, &[&train[..], &layers, &sizes].concat()));
    let rate = 16.0 / json["step_us"].as_f64().unwrap() * 1e6;
    assert_eq!(
        (&json["tokens_per_step"], json["tokens_per_second"].as_f64()),
        (&16.into(), Some(rate)),
        "{json}"
    );
}
