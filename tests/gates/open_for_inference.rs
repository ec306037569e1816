//! Gate: a model opened for inference, whose matrices are packed while they are read, is bit-identical to the same
//! model opened with its f32 master weights.
use std::path::Path;
use std::process::Stdio;

use xtrain::decode::Request;
use xtrain::model::export::{self, ExportSource};
use xtrain::model::gguf::Quant;
use xtrain::model::{
    AdamW, Config, Error, Grads, LogitsProcessing, Model, OptimConfig, Param, TrainingExample, objective,
    store,
};
use xtrain::tensor::testing::{available_gpus, compare_bits};
use xtrain::tensor::{Device, Dtype, Simd, ThreadSchedule};

use crate::cli::{Scratch, program, text};
use crate::decode::{KINDS, Oracle, options};
use crate::fixtures::path;
use crate::golden::logits;

const GATE: &str = "open for inference";
const SEED: u64 = 20_251_121;

/// Models of every family, tied and untied, in one file, in shards and as GGUF files of every type.
const MODELS: [&str; 13] = [
    "models/llama3_rope",
    "models/llama_odd",
    "models/llama_sharded",
    "models/qwen2_bias",
    "models/qwen3_bf16",
    "models/qwen3_tied",
    "models/qwen3_untied_hd",
    "gguf/k_quants.gguf",
    "gguf/llama3_rope.Q4_0.gguf",
    "gguf/qwen3_tied.BF16.gguf",
    "gguf/qwen3_tied.F16.gguf",
    "gguf/qwen3_tied.Q8_0.gguf",
    "gguf/small_quants.gguf",
];

/// The model of a path, with and without its f32 master weights.
fn both(path: &Path, compute: Dtype, device: &Device) -> [Model; 2] {
    let open = |open: fn(&Path, Dtype, &Device) -> Result<store::LoadedModel, store::StoreError>| {
        open(path, compute, device).unwrap_or_else(|e| panic!("{}: {e}", path.display())).model
    };
    [open(store::open), open(store::open_for_inference)]
}

/// Compares the logits of a pass and of rollouts over every cache. Returns the number of compared rows, or the first
/// difference.
fn same([whole, packed]: &[Model; 2], tokens: &[u32], what: &str) -> Result<usize, String> {
    let differ = |e: String| format!("gate {GATE}, seed {SEED}: {what}: {e}");
    compare_bits(&logits(packed, tokens), &logits(whole, tokens)).map_err(differ)?;
    let mut rows = tokens.len();
    // on a GPU, one pass is sufficient: other gates compare its rollouts with the pass
    if !matches!(packed.device(), Device::Gpu(_)) {
        let requests = vec![Request::sampled(tokens, 6, 1.0, SEED), Request::greedy(&tokens[..3], 5)];
        let oracle = Oracle::new(whole, requests);
        for kv in KINDS {
            rows += oracle.check(packed, options(kv, 2)).map_err(|e| differ(format!("{kv}: {e}")))?;
        }
    }
    Ok(rows)
}

fn devices() -> Vec<Device> {
    let mut devices = vec![Device::cpu_with(3, Simd::detect()), Device::reference()];
    devices.extend(available_gpus(&[ThreadSchedule::Forward]));
    devices
}

#[test]
fn a_model_opened_for_inference_has_the_bits_of_one_with_master_weights() {
    let mut compared = 0;
    for (device, name) in devices().iter().flat_map(|d| MODELS.map(|name| (d, name))) {
        for compute in [Dtype::F32, Dtype::BF16] {
            let models = both(&path(name), compute, device);
            let what = format!("{name} in {compute} on {device}");
            compared += same(&models, &[5, 1, 9, 2, 11, 3, 7, 0], &what).unwrap_or_else(|e| panic!("{e}"));
        }
    }
    println!("open for inference: {compared} rows of logits, 0 differ");
    assert!(compared >= 2 * 2 * 11 * 8 * 16, "{compared}");
}

/// Quantized matrices stay quantized in memory on a CPU in f32, and the bits are those of their f32 values. Returns the
/// number of compared rows.
pub(crate) fn quantized() -> Result<usize, String> {
    let (device, mut rows) = (Device::cpu(), 0);
    for name in MODELS.into_iter().filter(|name| name.contains("quants") || name.contains(".Q")) {
        let models = both(&path(name), Dtype::F32, &device);
        let matrices = || models[1].params.iter().filter(|p| p.shape().len() == 2);
        let packed: usize = matrices().map(|p| p.packed().expect("a matrix").packed_bytes()).sum();
        // panels of 64 columns: rows of the matrix
        let values = |p: &Param| p.shape()[0].next_multiple_of(64) * p.shape()[1];
        let whole = size_of::<f32>() * matrices().map(values).sum::<usize>();
        if 2 * packed > whole {
            return Err(format!(
                "gate {GATE}, seed {SEED}: {name}: {packed} bytes, expected at most half of {whole}"
            ));
        }
        rows += same(&models, &[5, 1, 9, 2, 11, 3, 7, 0], name)?;
    }
    Ok(rows)
}

#[test]
fn quantized_matrices_stay_quantized_with_the_bits_of_their_values() {
    let rows = quantized().unwrap_or_else(|e| panic!("{e}"));
    println!("quantized: {rows} rows of logits, 0 differ");
    assert!(rows > 4 * 8, "{rows}");
}

/// The common configuration of the models created here.
fn small() -> Config {
    Config {
        ffn_dim: 24,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 8,
        max_positions: 16,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        ..Config::default()
    }
}

/// Compares embedding tables that are long enough to be prefetched, from safetensors and GGUF files, with the model
/// that wrote them.
pub(crate) fn long_tables() -> Result<usize, String> {
    const TOKENS: [u32; 4] = [0, 9000, 4242, 77];
    let cfg = Config { vocab: 9001, dim: 256, n_layers: 1, tie_embeddings: true, ..small() };
    let (scratch, device) = (Scratch::new("long"), Device::cpu());
    let mut compared = 0;
    for (quant, compute) in [(Quant::F32, Dtype::F32), (Quant::BF16, Dtype::BF16)] {
        let model = Model::init(&cfg, compute, &device, SEED).map_err(|e| e.to_string())?;
        let subject = ExportSource { model: &model, tokenizer: None, eos: &[] };
        let [hf, gguf] = ["hf", "gguf"].map(|kind| scratch.0.join(format!("{compute}.{kind}")));
        export::huggingface(&hf, &subject, quant, export::MAX_SHARD).map_err(|e| e.to_string())?;
        export::gguf(&gguf, &subject, quant).map_err(|e| e.to_string())?;
        let want = logits(&model, &TOKENS);
        for (path, opened) in
            [&hf, &gguf].into_iter().flat_map(|path| both(path, compute, &device).map(|m| (path, m)))
        {
            let differ = |e: String| format!("gate {GATE}, seed {SEED}: {}: {e}", path.display());
            compare_bits(&logits(&opened, &TOKENS), &want).map_err(differ)?;
            compared += want.len();
        }
    }
    Ok(compared)
}

#[test]
fn a_table_that_is_prefetched_equals_the_one_that_was_written() {
    assert_eq!(long_tables().unwrap(), 2 * 2 * 2 * 4 * 9001);
}

/// Simulates a system that refuses to start threads, by a stack size that cannot be allocated.
#[cfg(target_pointer_width = "64")]
#[test]
fn threads_that_the_system_refuses_are_reported_and_not_needed() {
    let cfg = Config { vocab: 9001, dim: 256, n_layers: 1, tie_embeddings: true, ..small() };
    let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), SEED).unwrap();
    let (scratch, subject) =
        (Scratch::new("no-threads"), ExportSource { model: &model, tokenizer: None, eos: &[] });
    export::huggingface(&scratch.0.join("hf"), &subject, Quant::F32, export::MAX_SHARD).unwrap();
    let run = |stack: u64, args: &[&str]| {
        let mut command = program();
        command
            .args(args)
            .current_dir(&scratch.0)
            .stdin(Stdio::null())
            .env("RUST_MIN_STACK", stack.to_string());
        let output = command.output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let refused = "note: the system granted 1 of 3 threads\n";
    for (out, stack, note) in [("with", 1 << 20, ""), ("without", 1 << 50, refused)] {
        let args = ["logits", "hf", "--tokens", "0,9000,4242,77", "--out", out, "--threads", "3"];
        assert_eq!(run(stack, &args), (Some(0), note.into()));
    }
    let [with, without] = ["with", "without"].map(|name| std::fs::read(scratch.0.join(name)).unwrap());
    if let Some(difference) = crate::difference::first(&without, &with) {
        panic!("the logits without threads: {difference}");
    }
    // `chat` needs a thread to read standard input
    let chat = ["chat", "--threads", "1", "--model", &path("models/qwen3_tied").display().to_string()];
    let (code, errors) = run(1 << 50, &chat);
    assert!(
        code == Some(74) && errors.contains("error: cannot start a thread to read standard input: "),
        "{code:?} {errors}"
    );
}

/// Compares a table with bf16 denormals, which packed panels do not hold, tied and untied.
pub(crate) fn denormals() -> Result<usize, String> {
    let device = Device::cpu();
    let mut compared = 0;
    for tie_embeddings in [true, false] {
        let cfg = Config { vocab: 40, dim: 16, n_layers: 2, tie_embeddings, ..small() };
        for compute in [Dtype::F32, Dtype::BF16] {
            let mut whole = Model::init(&cfg, compute, &device, SEED).map_err(|e| e.to_string())?;
            let table = whole.params.embed.value_mut().and_then(|t| Ok(t.data_mut::<f32>()?));
            // the row of the first token: values around 2^-127
            let row = &mut table.map_err(|e| e.to_string())?[5 * 16..6 * 16];
            row.iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x = f32::from_bits(0x0030_0000 + 0x0001_2345 * i as u32));
            let packed = whole.for_inference().map_err(|e| e.to_string())?;
            let what = format!("a row of denormals, tied {tie_embeddings}, in {compute}");
            compared += same(&[whole, packed], &[5, 5, 5, 1], &what)?;
        }
    }
    Ok(compared)
}

#[test]
fn a_denormal_of_a_table_is_embedded_unchanged() {
    assert!(denormals().unwrap() >= 4 * 8 * 8);
}

#[test]
fn gradients_are_the_same_and_an_update_or_an_export_is_refused_by_name() {
    for compute in [Dtype::F32, Dtype::BF16] {
        let [whole, packed] = both(&path("models/qwen3_untied_hd"), compute, &Device::cpu());
        let gradients = |model: &Model| {
            let (mut loss, mut grads) = (0.0, Grads::zeros(&model.params).unwrap());
            let samples = [TrainingExample::window(&[5, 1, 9, 2, 11], 0.25)];
            objective::backward(model, &samples, LogitsProcessing::default(), &mut loss, &mut grads).unwrap();
            let all = grads.finish().unwrap().iter().flat_map(|g| g.to_vec::<f32>().unwrap()).collect();
            (loss, all)
        };
        let (want, got): ((f32, Vec<f32>), _) = (gradients(&whole), gradients(&packed));
        compare_bits(&[got.0], &[want.0]).unwrap_or_else(|e| panic!("loss in {compute}: {e}"));
        compare_bits(&got.1, &want.1).unwrap_or_else(|e| panic!("gradient in {compute}: {e}"));
        let name = "model.embed_tokens.weight";
        let none = |got: Error| assert_eq!(got, Error::NoMasterWeights { name: name.into() });
        none(AdamW::new(OptimConfig::default(), &packed.params).unwrap_err());
        none(packed.params.embed.value().unwrap_err());
        none(packed.to_device(&Device::reference()).unwrap_err());
        let (scratch, subject) =
            (Scratch::new("opened"), ExportSource { model: &packed, tokenizer: None, eos: &[] });
        let files = [
            export::huggingface(&scratch.0.join("hf"), &subject, Quant::F32, export::MAX_SHARD),
            export::gguf(&scratch.0.join("m.gguf"), &subject, Quant::F32),
        ];
        for refused in files {
            let text = refused.unwrap_err().to_string();
            assert!(text.starts_with(&format!("tensor {name}: ")) && text.contains("store::open"), "{text}");
        }
        assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0, "a file is left");
    }
}
