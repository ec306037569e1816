//! Importing and exporting models keeps every weight, and training continues from an imported model.
use std::path::Path;

use xtrain::model::{Model, store};
use xtrain::tensor::testing::assert_bits_eq;
use xtrain::tensor::{Device, Dtype};

use crate::cli::{Scratch, ok, refused};
use crate::commands::{done, parsed};
use crate::commands_situations::copied;
use crate::fixtures::{json, path};

fn open(path: &Path) -> Model {
    store::open(path, Dtype::F32, &Device::cpu()).unwrap_or_else(|e| panic!("{}: {e}", path.display())).model
}

/// Asserts that two models have the same configuration and the same bits.
#[track_caller]
fn same(a: &Model, b: &Model) {
    assert_eq!(a.config(), b.config());
    for (a, b) in a.params.iter().zip(b.params.iter()) {
        assert_eq!(a.name(), b.name());
        let [a_values, b_values] = [a, b].map(|p| p.value().unwrap().data::<f32>().unwrap());
        assert_bits_eq(a_values, b_values, a.name());
    }
}

#[test]
pub(crate) fn import_and_export_keep_the_bytes_of_every_tensor() {
    let scratch = Scratch::new("exchange");
    // norm weights are F32 in every GGUF file, and have the type of the matrices in a directory
    for (n, (from, [in_hf, in_gguf])) in [
        ("models/qwen2_bias", ["f32", "f32"]),
        ("models/qwen3_bf16", ["bf16", "bf16"]),
        ("models/llama_sharded", ["f32", "f32"]),
        ("gguf/llama3_rope.Q4_0.gguf", ["f32", "f32"]),
        ("gguf/qwen3_tied.BF16.gguf", ["f32", "bf16"]),
        ("gguf/qwen3_tied.F16.gguf", ["f32", "f16"]),
    ]
    .into_iter()
    .enumerate()
    {
        let source = path(from).display().to_string();
        let name = |what: &str| format!("{what}{n}");
        let (run, hf, gguf) = (name("run"), name("hf"), name("model") + ".gguf");
        ok(&scratch.0, &["import", &source, &run]);
        ok(&scratch.0, &["export", &run, &hf, "--type", in_hf]);
        ok(&scratch.0, &["export", &run, &gguf, "--type", in_gguf]);
        let config = parsed(&std::fs::read_to_string(scratch.0.join(&hf).join("config.json")).unwrap());
        for field in ["dtype", "torch_dtype"] {
            let want = if in_hf == "bf16" { "bfloat16" } else { "float32" };
            assert_eq!(config[field], want, "{from}: {field}");
        }
        let want = open(&path(from));
        for got in [&run, &hf, &gguf] {
            same(&open(&scratch.0.join(got)), &want);
        }
    }
    refused(&scratch.0, &["export", "run0", "hf0"], 2, &["hf0", "already exists"]);
    refused(&scratch.0, &["export", "run0", "other", "--type", "q8_0"], 2, &["q8_0", "Hugging Face"]);
    refused(&scratch.0, &["import", "hf0", "run0"], 2, &["run0"]);
}

#[test]
fn an_export_keeps_the_fields_that_no_computation_reads() {
    let scratch = Scratch::new("exchange-kept");
    let from = path("models/qwen3_tied");
    let dir = scratch.0.join("m");
    std::fs::create_dir(&dir).unwrap();
    for name in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(name), dir.join(name)).unwrap();
    }
    let mut config = json("models/qwen3_tied/config.json");
    (config["bos_token_id"], config["pad_token_id"]) = (3.into(), 0.into());
    config["max_window_layers"] = 21.into();
    scratch.file("m/config.json", &config.to_string());
    let generation =
        r#"{"bos_token_id": 3, "do_sample": true, "eos_token_id": [2, 0], "temperature": 0.6, "top_k": 20}"#;
    scratch.file("m/generation_config.json", generation);
    scratch.file("text.txt", &"a text to train on, long enough for a few windows of it. ".repeat(20));
    ok(&scratch.0, &["import", "m", "run"]);
    let train = ["train", "--init", "run", "--data", "text.txt", "--run", "tuned", "--set", "train.steps=1"];
    done(&scratch.0, &[&train[..], &["--set", "train.context=16", "--set", "train.save_every=1"]].concat());
    done(&scratch.0, &["train", "--resume", "tuned", "--set", "train.steps=2"]);
    for (model, out) in [("m", "a"), ("run", "b"), ("tuned", "c")] {
        ok(&scratch.0, &["export", model, out]);
        let read = |name: &str| parsed(&std::fs::read_to_string(scratch.0.join(out).join(name)).unwrap());
        assert_eq!(read("generation_config.json"), parsed(generation), "{model}");
        let written = read("config.json");
        for field in ["bos_token_id", "pad_token_id", "max_window_layers"] {
            assert_eq!(written[field], config[field], "{model}: {field}");
        }
    }
}

#[test]
fn inspect_reads_all_weights_and_counts_those_that_are_not_finite() {
    let scratch = Scratch::new("exchange-verify");
    let gguf = path("gguf/llama3_rope.Q4_0.gguf").display().to_string();
    let found = parsed(&ok(&scratch.0, &["inspect", &gguf, "--verify", "--json"]));
    assert_eq!(found["verified"]["weights"], found["parameters"]);
    assert_eq!((&found["verified"]["nan"], &found["verified"]["infinite"]), (&0.into(), &0.into()));
    let bad = path("models/qwen3_tied");
    std::fs::create_dir(scratch.0.join("m")).unwrap();
    std::fs::copy(bad.join("config.json"), scratch.0.join("m/config.json")).unwrap();
    let mut bytes = std::fs::read(bad.join("model.safetensors")).unwrap();
    let end = bytes.len();
    for nan in bytes[end - 8..].chunks_exact_mut(4) {
        nan.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    bytes[end - 12..end - 8].copy_from_slice(&f32::INFINITY.to_le_bytes());
    std::fs::write(scratch.0.join("m/model.safetensors"), bytes).unwrap();
    let output = crate::cli::xtrain(&scratch.0, &["inspect", "m", "--verify", "--json"]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    let found = parsed(&crate::cli::text(&output.stdout));
    assert_eq!((&found["verified"]["nan"], &found["verified"]["infinite"]), (&2.into(), &1.into()));
    let error = "error: 2 of 119168 weights are NaN and 1 are infinite, first in model.norm.weight\n";
    assert_eq!(crate::cli::text(&output.stderr), error);
    ok(&scratch.0, &["import", &path("models/qwen3_tied").display().to_string(), "run"]);
    ok(&scratch.0, &["inspect", "run", "--verify"]);
    let file = scratch.0.join("run/checkpoints/step_000000/model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[end / 2] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    refused(&scratch.0, &["inspect", "run", "--verify"], 65, &["model.safetensors"]);
    ok(&scratch.0, &["inspect", "run"]);
}

#[test]
fn a_directory_of_another_family_is_refused_by_family() {
    let scratch = Scratch::new("exchange-family");
    for family in ["gpt2", "bert"] {
        scratch.file(&format!("{family}/config.json"), &format!(r#"{{"model_type": "{family}"}}"#));
        scratch.file(&format!("{family}/pytorch_model.bin"), "weights");
        refused(
            &scratch.0,
            &["inspect", family],
            65,
            &["model_type", family, "qwen3, qwen2, llama or mistral"],
        );
    }
}

#[test]
fn shards_hold_every_tensor_once_and_respect_the_maximum_size() {
    let scratch = Scratch::new("exchange-shards");
    for (n, (from, dtype, max_size)) in [
        ("models/llama_sharded", "f32", 60_000),
        ("models/qwen3_bf16", "bf16", 20_000),
        ("models/qwen3_untied_hd", "f32", 1),
        ("models/qwen2_bias", "f32", 50_000),
    ]
    .into_iter()
    .enumerate()
    {
        let (source, size, sharded) =
            (path(from), max_size.to_string(), scratch.0.join(format!("sharded{n}")));
        let (run, single) = (format!("run{n}"), scratch.0.join(format!("single{n}")));
        ok(&scratch.0, &["import", &source.display().to_string(), &run]);
        ok(
            &scratch.0,
            &["export", &run, &sharded.display().to_string(), "--type", dtype, "--max-shard-size", &size],
        );
        ok(&scratch.0, &["export", &run, &single.display().to_string(), "--type", dtype]);
        assert!(!single.join("model.safetensors.index.json").exists());
        assert!(!sharded.join("model.safetensors").exists());
        let text = std::fs::read_to_string(sharded.join("model.safetensors.index.json")).unwrap();
        let index = parsed(&text);
        let map = index["weight_map"].as_object().unwrap();
        let files: std::collections::BTreeSet<&str> =
            map.values().map(|file| file.as_str().unwrap()).collect();
        let names: Vec<String> =
            (1..=files.len()).map(|i| format!("model-{i:05}-of-{:05}.safetensors", files.len())).collect();
        assert!(files.iter().eq(&names) && files.len() > 2, "{files:?}");
        let (mut total, mut tensors) = (0, std::collections::BTreeMap::new());
        for file in &files {
            let bytes = std::fs::read(sharded.join(file)).unwrap();
            let shard = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let held: usize = shard.tensors().iter().map(|(_, tensor)| tensor.data().len()).sum();
            assert!(held <= max_size || shard.len() == 1, "{file}: {held} bytes, {} tensors", shard.len());
            for (name, tensor) in shard.tensors() {
                assert_eq!(map[&name].as_str(), Some(*file));
                let twice = tensors.insert(name, (tensor.shape().to_vec(), tensor.data().to_vec()));
                assert!(twice.is_none());
            }
            total += held;
        }
        assert_eq!(index["metadata"]["total_size"].as_u64(), Some(total as u64));
        let bytes = std::fs::read(single.join("model.safetensors")).unwrap();
        let whole = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(whole.len(), tensors.len());
        for (name, tensor) in whole.tensors() {
            assert_eq!(tensors[&name], (tensor.shape().to_vec(), tensor.data().to_vec()), "{name}");
        }
        let back = format!("back{n}");
        ok(&scratch.0, &["import", &sharded.display().to_string(), &back]);
        let want = open(&source);
        for got in [&sharded, &scratch.0.join(back)] {
            same(&open(got), &want);
        }
    }
    refused(
        &scratch.0,
        &["export", "run0", "m.gguf", "--max-shard-size", "5GB"],
        2,
        &["a GGUF file has no shards"],
    );
    refused(
        &scratch.0,
        &["export", "run0", "other", "--max-shard-size", "5TB"],
        2,
        &["5TB", "expected a size"],
    );
}

/// A GGUF file holds it as f32.
#[test]
fn a_rope_factor_keeps_its_value_in_a_gguf_file() {
    let (scratch, source) = (Scratch::new("exchange-factor"), path("models/llama_linear"));
    std::fs::create_dir(scratch.0.join("m")).unwrap();
    for file in std::fs::read_dir(&source).unwrap().flatten() {
        std::fs::copy(file.path(), scratch.0.join("m").join(file.file_name())).unwrap();
    }
    let mut config = json("models/llama_linear/config.json");
    let scaling = ["rope_parameters", "rope_scaling"].into_iter().find(|key| config.get(key).is_some());
    config[scaling.unwrap()]["factor"] = 1.1.into();
    scratch.file("m/config.json", &config.to_string());
    ok(&scratch.0, &["import", "m", "run"]);
    ok(&scratch.0, &["export", "run", "m.gguf", "--type", "f32"]);
    let want = open(&scratch.0.join("m"));
    assert_eq!(want.config().rope_scaling, xtrain::tensor::RopeScaling::Linear { factor: 1.1 });
    same(&open(&scratch.0.join("m.gguf")), &want);
}

#[test]
pub(crate) fn a_number_that_is_no_f32_is_noted_and_part_of_a_position_is_refused() {
    let scratch = Scratch::new("exchange-rounded");
    let model = copied(&scratch, "llama_yarn");
    let mut config = json("models/llama_yarn/config.json");
    let mut set = |key: &str, value: f64| {
        config["rope_parameters"][key] = value.into();
        scratch.file("llama_yarn/config.json", &config.to_string());
    };
    set("rope_theta", 283_461_213.0);
    let output = crate::cli::xtrain(&scratch.0, &["export", &model, "m.gguf", "--type", "f32"]);
    let errors = crate::cli::text(&output.stderr);
    let note = "note: llama.rope.freq_base 283461213 is 283461220 in the file, as f32: logits differ in the last digits";
    assert!(output.status.success() && errors.contains(note), "no note: {errors}");
    assert_eq!(open(&scratch.0.join("m.gguf")).config().rope_theta, 283_461_220.0);
    set("original_max_position_embeddings", 15.5);
    refused(
        &scratch.0,
        &["export", &model, "other.gguf"],
        65,
        &["rope_scaling must be a whole number of original positions in a GGUF file, found 15.5"],
    );
}

#[test]
fn yarn_is_read_from_a_gguf_file_as_it_was_written() {
    let (scratch, model) = (Scratch::new("exchange-yarn"), path("models/llama_yarn"));
    crate::commands::done(&scratch.0, &["export", &model.display().to_string(), "m.gguf", "--type", "f32"]);
    let (want, got) = (open(&model), open(&scratch.0.join("m.gguf")));
    assert_eq!(got.config().rope_scaling, want.config().rope_scaling);
    same(&got, &want);
}

#[test]
fn what_differs_in_llama_cpp_is_noted_and_a_part_of_a_split_file_is_refused() {
    let scratch = Scratch::new("exchange-llama-cpp");
    for (name, is_noted) in [("llama_yarn", true), ("llama_linear", false)] {
        let model = path(&format!("models/{name}")).display().to_string();
        let output = crate::cli::xtrain(&scratch.0, &["export", &model, &format!("{name}.gguf")]);
        let errors = crate::cli::text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        assert_eq!(errors.contains("note: llama.cpp ignores beta_fast and beta_slow"), is_noted, "{errors}");
    }
    // no tensors, and one value: the 16-bit number of parts
    let key = "split.count";
    let header = [b"GGUF", &3u32.to_le_bytes()[..], &0u64.to_le_bytes(), &1u64.to_le_bytes()].concat();
    let value =
        [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), &2u32.to_le_bytes(), &2u16.to_le_bytes()];
    std::fs::write(scratch.0.join("part.gguf"), [header, value.concat()].concat()).unwrap();
    refused(&scratch.0, &["inspect", "part.gguf"], 65, &["part.gguf: ", key, "llama-gguf-split --merge"]);
}

/// The published Qwen3-0.6B and Qwen3-1.7B hold one; models of older versions of transformers hold RoPE frequencies.
#[test]
pub(crate) fn a_tied_model_may_hold_a_copy_of_its_table_as_head() {
    let (scratch, source) = (Scratch::new("exchange-tied"), path("models/qwen3_tied"));
    let bytes = std::fs::read(source.join("model.safetensors")).unwrap();
    let own = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let table = own.tensor("model.embed_tokens.weight").unwrap();
    let frequencies = [0; 8];
    let frequencies =
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2], &frequencies).unwrap();
    let added = [
        ("lm_head.weight".to_string(), table.clone()),
        ("model.layers.0.self_attn.rotary_emb.inv_freq".to_string(), frequencies),
    ];
    let write = |file: &str, tensors: &[(String, safetensors::tensor::TensorView<'_>)]| {
        let bytes = safetensors::serialize(tensors.to_vec(), None).unwrap();
        std::fs::write(scratch.0.join(file), bytes).unwrap();
    };
    let config = std::fs::read_to_string(source.join("config.json")).unwrap();
    for dir in ["single", "shards"] {
        scratch.file(&format!("{dir}/config.json"), &config);
    }
    let (own, all) = (own.tensors(), [own.tensors(), added.to_vec()].concat());
    write("single/model.safetensors", &all);
    let shards =
        [("model-00001-of-00002.safetensors", &own[..]), ("model-00002-of-00002.safetensors", &added)];
    let mut map = serde_json::Map::new();
    for (file, tensors) in shards {
        write(&format!("shards/{file}"), tensors);
        map.extend(tensors.iter().map(|(name, _)| (name.clone(), file.into())));
    }
    let index = serde_json::json!({"weight_map": map});
    scratch.file("shards/model.safetensors.index.json", &index.to_string());
    for dir in ["single", "shards"] {
        same(&open(&scratch.0.join(dir)), &open(&source));
        ok(&scratch.0, &["inspect", dir, "--verify"]);
    }

    let mut changed = table.data().to_vec();
    *changed.last_mut().unwrap() ^= 1;
    let head = safetensors::tensor::TensorView::new(table.dtype(), table.shape().to_vec(), &changed).unwrap();
    write("single/model.safetensors", &[own.clone(), vec![("lm_head.weight".into(), head)]].concat());
    let expected = "tensor lm_head.weight: expected the bytes of model.embed_tokens.weight";
    refused(&scratch.0, &["inspect", "single", "--verify"], 65, &["single/model.safetensors: ", expected]);

    let untied = config.replace("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
    assert_ne!(untied, config);
    scratch.file("single/config.json", &untied);
    write("single/model.safetensors", &[own, added.to_vec()].concat());
    assert!(!open(&scratch.0.join("single")).config().tie_embeddings);
}

#[test]
fn commands_accept_a_gguf_file_like_a_directory() {
    let scratch = Scratch::new("exchange-commands");
    let reference = json("gguf/ref.json");
    let case = &reference["files"].as_array().unwrap()[0];
    let file = path(&format!("gguf/{}", case["file"].as_str().unwrap())).display().to_string();
    let prompt: Vec<String> = case["prompt"].as_array().unwrap().iter().map(ToString::to_string).collect();
    let args = ["generate", &file, "--tokens", &prompt.join(","), "--max-new", "16", "--temperature", "0"];
    let got = parsed(&ok(&scratch.0, &[&args[..], &["--ignore-eos", "--json"]].concat()));
    assert_eq!(got["completion_ids"], case["greedy16_f32"]);
    let got = parsed(&ok(&scratch.0, &["inspect", &file, "--json"]));
    assert_eq!((&got["config"]["model_type"], &got["eos"][0]), (&"qwen3".into(), &2.into()));
}

#[test]
fn training_continues_from_a_model_of_another_family() {
    let scratch = Scratch::new("exchange-init");
    let text = "a text to train on, long enough for a few windows of it. ".repeat(60);
    scratch.file("text.txt", &text);
    let model = path("models/llama3_rope").display().to_string();
    let settings = ["train.context=32", "train.batch=4", "train.learning_rate=0.003", "train.warmup=0"];
    let sets: Vec<&str> = settings.iter().flat_map(|s| ["--set", s]).collect();
    let args = ["train", "--init", &model, "--data", "text.txt", "--run", "run", "--set", "train.steps=6"];
    done(&scratch.0, &[&args[..], &sets].concat());
    let (before, after) = (open(&path("models/llama3_rope")), open(&scratch.0.join("run")));
    assert_eq!(before.config(), after.config());
    let lines = std::fs::read_to_string(scratch.0.join("run/metrics.jsonl")).unwrap();
    let losses: Vec<f64> = lines.lines().map(|line| parsed(line)["loss"].as_f64().unwrap()).collect();
    assert!(losses.len() == 6 && losses[5] < losses[0], "{losses:?}");
    // the run is resumed and exported like any other run
    done(&scratch.0, &["train", "--resume", "run", "--set", "train.steps=8"]);
    ok(&scratch.0, &["export", "run", "run.gguf"]);
    same(&open(&scratch.0.join("run.gguf")), &open(&scratch.0.join("run")));
    let long = ["train", "--init", &model, "--data", "text.txt", "--run", "b", "--set", "train.context=512"];
    refused(&scratch.0, &long, 2, &["train.context", "256"]);
    let sized = ["train", "--init", &model, "--data", "text.txt", "--run", "b", "--set", "model.dim=96"];
    refused(&scratch.0, &sized, 2, &["[model]"]);
    let other = ["train", "--init", &model, "--data", "text.txt", "--run", "b", "--set", "train.context=32"];
    refused(&scratch.0, &[&other[..], &["--set", "data.tokenizer=bytes"]].concat(), 2, &["data.tokenizer"]);
}
