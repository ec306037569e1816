//! The commands that run a model, as processes.
use std::fs;
use std::path::Path;

use serde_json::Value;

#[cfg(unix)]
use crate::cli::program_path;
use crate::cli::{Scratch, ok, program, refused, text, xtrain};
use crate::fixtures::{f32s, golden, json, path, sha};

/// A model with 256 positions, a vocabulary of 512 and a tokenizer.
pub(crate) fn model() -> String {
    path("models/qwen3_tied").display().to_string()
}

/// Ids in the format of a flag.
fn flag(ids: &Value) -> String {
    ids.as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>().join(",")
}

/// Runs a command that must succeed; standard error may hold anything. Returns its standard output.
#[track_caller]
pub(crate) fn done(dir: &Path, args: &[&str]) -> String {
    let output = xtrain(dir, args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    text(&output.stdout)
}

/// The flags of a very short training run.
pub(crate) fn tiny_run<'a>(run: &'a str, data: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let keys = [
        "model.dim=16",
        "model.n_layers=1",
        "model.n_heads=2",
        "train.context=8",
        "train.batch=2",
        "train.sample_every=0",
    ];
    let sets = keys.iter().chain(more).flat_map(|key| ["--set", *key]);
    ["train", "--run", run, "--data", data].into_iter().chain(sets).collect()
}

#[track_caller]
pub(crate) fn parsed(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

#[test]
fn generate_returns_the_greedy_tokens_of_the_reference_with_every_cache() {
    let (scratch, m) = (Scratch::new("generate"), model());
    let reference = json("models/qwen3_tied/ref.json");
    let mut bits = Vec::new();
    for (case, kv) in [(0, "paged"), (1, "off"), (2, "growing"), (3, "contiguous"), (2, "paged")] {
        let case = &reference["cases"][case];
        let (prompt, greedy) = (flag(&case["prompt"]), case["greedy"].as_array().unwrap());
        let n = greedy.len().to_string();
        let args = ["generate", &m, "--tokens", &prompt, "--max-new", &n, "--temperature", "0"];
        let got = parsed(&ok(&scratch.0, &[&args[..], &["--ignore-eos", "--json", "--kv", kv]].concat()));
        assert_eq!(got["completion_ids"].as_array().unwrap(), greedy, "{kv}");
        assert_eq!(got["finish_reason"], "length");
        for key in ["time_to_first_token_ms", "decode_tokens_per_second"] {
            assert!(got["timings"][key].as_f64().unwrap() > 0.0, "{key}");
        }
        // each token after the first one is a pass
        let time = |key: &str| got["timings"][key].as_f64().unwrap();
        let seconds = (time("total_ms") - time("time_to_first_token_ms")) / 1e3;
        let (found, rest) = (time("decode_tokens_per_second") * seconds, greedy.len() - 1);
        assert!((found / rest as f64 - 1.0).abs() < 1e-6, "{kv}: {found} tokens, expected {rest}");
        assert_eq!(got["timings"]["decode_per_forward_ms"]["n"].as_u64(), Some(rest as u64), "{kv}");
        let hex = |v: &Value| u32::from_str_radix(v.as_str().unwrap(), 16).unwrap();
        let logprobs = got["logprobs"].as_array().unwrap();
        for (x, b) in logprobs.iter().zip(got["logprob_bits"].as_array().unwrap()) {
            assert_eq!((x.as_f64().unwrap() as f32).to_bits(), hex(b));
        }
        bits.push(got["logprob_bits"].clone());
    }
    assert_eq!(bits[2], bits[4], "growing and paged");
}

#[test]
fn generate_streams_the_same_text_as_its_json_output() {
    let (scratch, m) = (Scratch::new("stream"), model());
    let args = ["generate", &m, "--prompt", "ab", "--max-new", "24", "--seed", "5", "--ignore-eos"];
    let shown = done(&scratch.0, &args);
    let whole = parsed(&ok(&scratch.0, &[&args[..], &["--json"]].concat()));
    assert_eq!(shown.trim_end_matches('\n'), whole["completion"].as_str().unwrap().trim_end_matches('\n'));
    let other = parsed(&ok(&scratch.0, &[&args[..], &["--json", "--sample-id", "1"]].concat()));
    assert_ne!(other["completion_ids"], whole["completion_ids"], "another sample of one seed");
}

#[test]
fn the_logits_file_has_the_golden_bits() {
    let (scratch, m) = (Scratch::new("logits"), model());
    let prompt = flag(&json("models/qwen3_tied/ref.json")["prompts"][2]);
    ok(&scratch.0, &["logits", &m, "--tokens", &prompt, "--out", "l.safetensors"]);
    let bytes = fs::read(scratch.0.join("l.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let logits = file.tensor("logits").unwrap();
    assert_eq!(logits.shape(), [9, 512]);
    assert_eq!(sha(f32s(logits.data())), golden("models.txt", "F/qwen3_tied/2"));
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1, "a temporary file is left");
}

#[test]
fn rollout_numbers_its_samples_prompt_by_prompt_and_each_equals_a_single_generation() {
    let (scratch, m) = (Scratch::new("rollout"), model());
    scratch.file("p.jsonl", "{\"prompt_ids\": [492, 341, 282]}\n\n{\"prompt\": \"ab\", \"answer\": 3}\n");
    let common = ["--max-new", "9", "--seed", "7", "--temperature", "0.8", "--top-k", "20"];
    let args = ["rollout", &m, "--prompts", "p.jsonl", "-n", "3"];
    let printed = done(&scratch.0, &[&args[..], &common].concat());
    done(
        &scratch.0,
        &[&args[..], &common, &["--out", "c.jsonl", "--max-batch-size", "2", "--kv", "growing"]].concat(),
    );
    assert_eq!(
        fs::read_to_string(scratch.0.join("c.jsonl")).unwrap(),
        printed,
        "the bytes depend on the batch size"
    );
    let lines: Vec<Value> = printed.lines().map(parsed).collect();
    assert_eq!(lines.len(), 6);
    for (at, line) in lines.iter().enumerate() {
        let place = [&line["prompt_id"], &line["group"], &line["sample"], &line["sample_id"], &line["seed"]];
        let want = [at / 3, at / 3, at % 3, at, 7].map(|n| n.to_string());
        assert_eq!(place.map(Value::to_string), want);
        let (ids, logprobs) = (line["completion_ids"].as_array().unwrap(), &line["logprobs"]);
        assert_eq!(logprobs.as_array().unwrap().len(), ids.len());
        assert_eq!(line["truncated"], line["finish_reason"] == "length");
        assert!(line["prompt"].is_string() && line["completion"].is_string());
        let (prompt, id) = (flag(&line["prompt_ids"]), at.to_string());
        let alone = ["generate", &m, "--tokens", &prompt, "--json", "--sample-id", &id];
        let alone = parsed(&ok(&scratch.0, &[&alone[..], &common].concat()));
        assert_eq!(
            (&alone["completion_ids"], &alone["logprobs"]),
            (&line["completion_ids"], logprobs),
            "{at}"
        );
    }
    assert_ne!(lines[0]["completion_ids"], lines[1]["completion_ids"], "samples of a group differ");
}

#[test]
fn input_that_a_model_cannot_run_is_refused_in_one_line() {
    let (scratch, m) = (Scratch::new("refused"), model());
    let long = vec!["5"; 256].join(",");
    let longer = vec!["5"; 257].join(",");
    scratch.file("bad.jsonl", "{\"prompt_ids\": [1]}\n{\"prompt_ids\": [512]}\n");
    scratch.file("none.jsonl", "\n");
    scratch.file("text.jsonl", "prompt\n");
    fs::create_dir_all(scratch.0.join("bare")).unwrap();
    for (args, code, parts) in [
        (&["generate", "gone", "--prompt", "a"][..], 66, &["gone"][..]),
        (&["generate", "bare", "--prompt", "a"], 66, &["config.json"]),
        (&["generate", &m, "--tokens", "512"], 2, &["512", "position 0"]),
        (&["generate", &m, "--tokens", "1,-2"], 2, &["-2"]),
        (&["generate", &m, "--tokens", &long], 2, &["256", "255"]),
        (&["generate", &m, "--prompt", ""], 2, &["prompt is empty"]),
        (&["generate", &m, "--tokens", "1", "--max-new", "0"], 2, &["at least 1"]),
        (&["logits", "gone", "--tokens", "1", "--out", "x"], 66, &["gone"]),
        (&["logits", &m, "--tokens", "1,600", "--out", "x"], 2, &["600", "512"]),
        (&["logits", &m, "--tokens", &longer, "--out", "x"], 2, &["257", "256"]),
        (&["logits", &m, "--tokens", "1", "--out", "no/x"], 66, &["no/x"]),
        (&["rollout", &m, "--prompts", "gone.jsonl"], 66, &["gone.jsonl"]),
        (&["rollout", &m, "--prompts", "bad.jsonl", "--out", "o"], 65, &["bad.jsonl:2", "512"]),
        (&["rollout", &m, "--prompts", "none.jsonl"], 65, &["none.jsonl", "expected at least one line"]),
        (
            &["rollout", &m, "--prompts", "text.jsonl"],
            65,
            &["text.jsonl:1", "text that is not JSON", "prompt_ids"],
        ),
        (&["rollout", &m, "--prompts", "bad.jsonl", "--max-new", "0"], 2, &["--max-new"]),
        (&["eval", &m, "--data", "gone.txt"], 66, &["gone.txt"]),
        (&["eval", &m, "--data", "bad.jsonl", "--context", "300"], 2, &["--context", "256"]),
        (&["eval", &m, "--task", "bad.jsonl"], 65, &["bad.jsonl:1: expected"]),
        (&["inspect", "gone"], 66, &["gone"]),
        (&["inspect", "--set", "model.n_layers=0"], 2, &["model.n_layers"]),
        (&["bench", "decode", "--model", &m, "--max-new", "200"], 2, &["328", "256"]),
        (&["bench", "kv", "--model", &m, "--prompt-len", "250"], 2, &["282", "256"]),
        (&["prepare", "bad.jsonl", "--out", "x.bin"], 2, &[".tok"]),
        (&["prepare", "gone.txt", "--out", "x.tok"], 66, &["gone.txt"]),
        (&["tokenizer", "train", "gone.txt"], 66, &["gone.txt"]),
    ] {
        refused(&scratch.0, args, code, parts);
    }
    for name in ["o", "x", "x.tok", "tokenizer.json"] {
        assert!(!scratch.0.join(name).exists(), "{name}");
    }
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 4, "a temporary file is left");
}

#[test]
fn eval_reports_the_loss_of_a_text_and_the_accuracy_on_a_task() {
    let (scratch, m) = (Scratch::new("eval"), model());
    scratch.file("t.txt", "some text to measure, of no meaning at all\n");
    let got = parsed(&ok(&scratch.0, &["eval", &m, "--data", "t.txt", "--json"]));
    let number = |key: &str| got["data"][key].as_f64().unwrap();
    assert!((number("loss").exp() / number("perplexity") - 1.0).abs() < 1e-12);
    let bits = number("loss") * number("tokens") / std::f64::consts::LN_2 / number("bytes");
    assert!((bits / number("bits_per_byte") - 1.0).abs() < 1e-12);
    // the only target is the end token, which has no text
    scratch.file("one.txt", "a");
    let one = parsed(&ok(&scratch.0, &["eval", &m, "--data", "one.txt", "--json"]));
    assert_eq!((&one["data"]["bytes"], &one["data"]["bits_per_byte"]), (&0.into(), &Value::Null), "{one}");
    let reply = parsed(&ok(
        &scratch.0,
        &["generate", &m, "--prompt", "Hello", "--temperature", "0", "--max-new", "16", "--json"],
    ));
    let answer = reply["completion"].as_str().unwrap().trim().lines().next().unwrap().to_string();
    let lines = [("Hello", answer.as_str()), ("cd", "never this")];
    let lines = lines.map(|(p, a)| serde_json::json!({"prompt": p, "answer": a}).to_string()).join("\n");
    scratch.file("task.jsonl", &lines);
    let got = parsed(&ok(&scratch.0, &["eval", &m, "--task", "task.jsonl", "--json"]));
    assert_eq!((&got["task"]["prompts"], &got["task"]["wrong"][0]["prompt"]), (&2.into(), &"cd".into()));
    let shown = ok(&scratch.0, &["eval", &m, "--data", "t.txt", "--task", "task.jsonl"]);
    assert!(shown.contains("perplexity") && shown.contains("50.0 %"), "{shown}");
    let sums = parsed(&ok(&scratch.0, &["eval", &m, "--task", "sums", "--json"]));
    assert_eq!((&sums["task"]["name"], &sums["task"]["prompts"]), (&"sums".into(), &998.into()));
    refused(&scratch.0, &["eval", &m, "--task", "sumz"], 66, &["sumz", "one of sums, sorting"]);
}

/// A NaN weight is an error for commands that read weights and does not matter to `inspect`, which reads headers
/// only.
#[test]
fn inspect_reads_no_weight() {
    let (scratch, to) = (Scratch::new("inspect-headers"), Scratch::new("inspect-headers-model"));
    for file in std::fs::read_dir(model()).unwrap().flatten() {
        std::fs::copy(file.path(), to.0.join(file.file_name())).unwrap();
    }
    let file = to.0.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let end = bytes.len();
    bytes[end - 64..].fill(0xff);
    std::fs::write(&file, bytes).unwrap();
    let m = to.0.to_str().unwrap();
    let mut whole = parsed(&ok(&scratch.0, &["inspect", &model(), "--json"]));
    whole["checkpoint"] = m.into();
    assert_eq!(parsed(&ok(&scratch.0, &["inspect", m, "--json"])), whole);
    let read = ["logits", m, "--tokens", "1,2", "--out", "x.safetensors"];
    refused(&scratch.0, &read, 65, &["model.safetensors", "model.norm.weight", "NaN"]);
}

#[test]
fn inspect_counts_parameters_and_the_bytes_of_a_cached_token() {
    let (scratch, m) = (Scratch::new("inspect"), model());
    let got = parsed(&ok(&scratch.0, &["inspect", &m, "--json"]));
    let parts = got["parts"].as_array().unwrap();
    let sum: u64 = parts.iter().map(|part| part["parameters"].as_u64().unwrap()).sum();
    assert_eq!(got["parameters"].as_u64(), Some(sum));
    assert_eq!(got["memory"]["weights"].as_u64(), Some(4 * sum));
    assert_eq!(got["cache_bytes_per_token"], 2 * 2 * 2 * 16 * 4);
    let half = parsed(&ok(&scratch.0, &["inspect", &m, "--json", "--dtype", "bf16"]));
    assert_eq!(half["cache_bytes_per_token"], 2 * 2 * 2 * 16 * 2);
    assert_eq!(half["cache_bytes_per_token_int8"], 2 * 2 * 2 * (16 + 4));
    let shown = ok(&scratch.0, &["inspect", "--set", "model.preset=qwen3-0.6b"]);
    assert!(shown.contains("596049920") && shown.contains("151936"), "{shown}");
}

#[test]
fn data_prepared_with_a_trained_tokenizer_can_be_trained_on() {
    let (scratch, line) = (Scratch::new("prepare"), "the cat sat on the mat and the dog sat too\n");
    scratch.file("t.txt", &line.repeat(60));
    scratch.file("t.jsonl", "{\"prompt\": \"the cat\", \"completion\": \" sat\"}\n");
    let output =
        done(&scratch.0, &["tokenizer", "train", "t.txt", "t.jsonl", "--vocab", "280", "--out", "b.json"]);
    assert!(output.starts_with("wrote b.json: vocabulary of 2"), "{output}");
    let output =
        done(&scratch.0, &["prepare", "t.txt", "t.jsonl", "--tokenizer", "b.json", "--out", "t.tok"]);
    assert!(output.contains("2 documents"), "{output}");
    let set = |keys: &[&'static str]| keys.iter().flat_map(|key| ["--set", key]).collect::<Vec<_>>();
    let keys = ["model.dim=16", "model.n_layers=1", "train.steps=2", "train.context=8", "train.batch=2"];
    let train = ["train", "--run", "r", "--data", "t.tok", "--set", "data.tokenizer=b.json"];
    done(&scratch.0, &[&train[..], &set(&keys)].concat());
    let got = parsed(&done(&scratch.0, &["eval", "r", "--data", "t.tok", "--json"]));
    assert_eq!(got["data"]["context"], 8);
    let other = xtrain(&scratch.0, &["eval", &model(), "--data", "t.tok"]);
    assert_eq!(other.status.code(), Some(65), "{other:?}");
}

#[test]
fn benches_print_tables_and_their_raw_samples() {
    let (scratch, m) = (Scratch::new("bench"), model());
    let decode = ["bench", "decode", "--model", &m, "--batch", "2", "--prompt-len", "20", "--max-new", "6"];
    let got = parsed(&ok(&scratch.0, &[&decode[..], &["--repeats", "2", "--json"]].concat()));
    let samples = got["samples"].as_array().unwrap();
    assert_eq!((samples.len(), samples[0]["decode"].as_array().unwrap().len()), (2, 5));
    assert_eq!(got["per_forward_ms"]["decode"]["n"], 10);
    assert_eq!(got["cache_bytes_per_token"], 512);
    let small = ["--set", "model.dim=16", "--set", "model.n_layers=1", "--set", "train.batch=2"];
    let shown = ok(&scratch.0, &[&["bench", "kv", "--repeats", "1"][..], &small].concat());
    for kind in ["off", "growing", "contiguous", "paged:64"] {
        assert_eq!(shown.lines().filter(|line| line.starts_with(kind)).count(), 3, "{shown}");
    }
    let shown = ok(&scratch.0, &[&["bench", "train", "--steps", "2"][..], &small].concat());
    assert!(shown.contains("ms per step") && shown.contains("tok/s"), "{shown}");
    let linear =
        [&["bench", "linear", "--rows", "1,3", "--repeats", "2", "--copies", "3"][..], &small].concat();
    let got = parsed(&ok(&scratch.0, &[&linear[..], &["--json"]].concat()));
    let products = got["products"].as_array().unwrap();
    assert_eq!(products.len(), 12);
    assert!(
        products.iter().all(|p| p["copies"] == 3 && p["us"]["n"] == 2 && p["us"]["min"].as_f64() > Some(0.0)),
        "{got}"
    );
    assert_eq!(ok(&scratch.0, &linear).lines().filter(|line| line.starts_with("head")).count(), 2);
    let scale = [&["bench", "scale", "--estimate", "--steps", "1"][..], &small].concat();
    let got = parsed(&ok(&scratch.0, &[&scale[..], &["--json"]].concat()));
    let bytes: Vec<u64> =
        got["estimate"].as_array().unwrap().iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
    let parameters = got["parameters"].as_u64().unwrap();
    assert_eq!((bytes.len(), bytes[0], bytes[1]), (13, 0, 4 * parameters), "{got}");
    assert!(ok(&scratch.0, &scale).contains("     4096  "));
    let guard = ["bench", "guard", "--rounds", "1", "--tolerance", "1e9"];
    let got = parsed(&ok(&scratch.0, &[&guard[..], &["--json"]].concat()));
    let rows = got["rows"].as_array().unwrap();
    let ratio = |row: &Value| row["ms"].as_f64().unwrap() / got["reference_ms"].as_f64().unwrap();
    assert!(rows.len() == 8 && rows.iter().all(|row| row["ratio"] == ratio(row)), "{got}");
    assert_eq!(ok(&scratch.0, &guard).lines().filter(|line| line.starts_with("decode")).count(), 4);
}

#[test]
fn the_ideal_training_step_is_computed_from_the_shapes() {
    let scratch = Scratch::new("bench-ideal");
    let sizes =
        ["dim=16", "ffn_dim=32", "n_layers=1", "n_heads=2", "n_kv_heads=1", "head_dim=8", "vocab=256"];
    let sizes: Vec<String> = sizes.map(|size| format!("model.{size}")).to_vec();
    let mut command = vec!["bench", "train", "--steps", "1", "--json"];
    for size in sizes.iter().map(String::as_str).chain([
        "train.batch=3",
        "train.context=4",
        "model.tie_embeddings=true",
    ]) {
        command.extend(["--set", size]);
    }
    let got = parsed(&ok(&scratch.0, &command));
    let parameters = got["parameters"].as_u64().unwrap();
    assert_eq!(got["ideal_step"]["state_bytes"], 32 * parameters);
    // forward: 2 per parameter and token, 4 per channel of each pair of a row and a visible position; backward: twice
    // that
    let pairs = 1 + 2 + 3 + 4;
    assert_eq!(got["ideal_step"]["operations"], 3 * 3 * (2 * 4 * parameters + 4 * 2 * 8 * pairs));
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn the_decode_benchmark_on_a_gpu_counts_bytes_read_and_synchronizations() {
    let (scratch, m) = (Scratch::new("bench-gpu"), model());
    let decode = [
        "bench",
        "decode",
        "--device",
        "emulated",
        "--model",
        &m,
        "--batch",
        "2",
        "--repeats",
        "1",
        "--json",
    ];
    for (prompt, sync_every, passes) in [("3", "4", [1, 4, 4]), ("20", "8", [1, 8, 0])] {
        let sizes = ["--prompt-len", prompt, "--max-new", "9", "--sync-every", sync_every];
        let got = parsed(&ok(&scratch.0, &[&decode[..], &sizes].concat()));
        let times = got["kv_read_over_needed"].as_f64().unwrap();
        assert!((1.0..=1.1).contains(&times), "{got}");
        let syncs = passes.iter().filter(|&&n| n > 0).count() as f64;
        assert_eq!(got["per_token"]["syncs"].as_f64().unwrap(), syncs / 18.0, "{got}");
        assert_eq!(got["per_token"]["bytes_to_host"], 16.0, "{got}");
        assert!(got["per_token"]["partial_bytes"].as_f64().unwrap() > 0.0, "{got}");
    }
}

#[test]
fn the_load_benchmark_reads_every_weight_and_removes_its_files() {
    let (scratch, m) = (Scratch::new("bench-load"), model());
    let got = parsed(&ok(&scratch.0, &["bench", "load", "--model", &m, "--repeats", "2", "--json"]));
    let length = fs::metadata(path("models/qwen3_tied/model.safetensors")).unwrap().len();
    assert_eq!((got["file_bytes"].as_u64(), got["files"].as_u64()), (Some(length), Some(1)));
    assert_eq!(got["samples"].as_array().unwrap().len(), 2);
    assert_eq!(got["weight_bytes"].as_u64(), got["parameters"].as_u64().map(|n| 4 * n));
    assert_eq!(got["peak_bytes"].is_object(), cfg!(target_os = "linux"), "{got}");
    let random = |more: &[&str]| {
        let mut random = program();
        random.args(["bench", "load", "--repeats", "1"]).args(more).env("TMPDIR", &scratch.0);
        text(&random.output().unwrap().stdout)
    };
    let shown = random(&["--dtype", "bf16", "--set", "model.n_layers=2"]);
    for part in ["(2 layers, dim 128)", "bf16", "weights in 1 file", "open model", "peak memory"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // 38 MB of weights, or 19 MB in bf16, each in memory once, packed or in f32. The rest is the program itself with
    // its slabs of 2 MiB, 1 MiB to be packed, and three pieces of 256 KiB that are being read.
    for more in [&[][..], &["--dtype", "bf16"], &["--masters"]] {
        let got = parsed(&random(&[&["--set", "model.preset=small-10m", "--json"], more].concat()));
        assert_eq!(got["pack_ms"].is_object(), more.contains(&"--masters"), "{got}");
        if cfg!(target_os = "linux") {
            let weights = got["weight_bytes"].as_u64().unwrap();
            let opened = got["peak_bytes"]["opened"].as_u64().unwrap();
            assert!((weights..weights + (15 << 20)).contains(&opened), "{more:?}: {opened} of {weights}");
        }
    }
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0, "the random weights are still there");
}

#[test]
fn a_dry_run_estimates_the_memory_of_training() {
    let scratch = Scratch::new("memory");
    let shown = ok(&scratch.0, &["train", "--dry-run", "--set", "model.preset=tiny-1m"]);
    let line = shown.lines().find(|line| line.starts_with("# memory: about ")).unwrap();
    for part in ["weights", "gradients", "optimizer state", "packed weights", "activations"] {
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn what_is_no_model_leads_to_the_model_in_its_directory() {
    let (scratch, m) = (Scratch::new("no-model"), model());
    let dir = &scratch.0;
    ok(dir, &["import", &m, "run"]);
    scratch.file("my text.txt", "text");
    scratch.file("run/checkpoints/step_000000/notes.txt", "text");
    let inner = "to use the model in this directory: run";
    for (name, code, found, hint) in [
        ("run/checkpoints", 66, "another directory", inner),
        ("run/lock", 65, "a file that is not GGUF", inner),
        (
            "run/checkpoints/step_000000/model.safetensors",
            65,
            "a file that is not GGUF",
            "checkpoints/step_000000",
        ),
        ("my text.txt", 65, "a file that is not GGUF", "a directory with config.json and weights"),
        (".", 66, "another directory", "a run, one of its checkpoints"),
    ] {
        for command in
            [&["generate", name, "--prompt", "a"][..], &["inspect", name], &["export", name, "o.gguf"]]
        {
            let message = format!("{name}: expected a model, found {found}");
            refused(dir, command, code, &[&message, hint]);
        }
    }
}

/// Permissions do not apply to root: the program is then started as another user.
#[cfg(unix)]
#[test]
fn a_model_directory_that_may_not_be_read_is_an_error_of_reading() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let scratch = Scratch::new("denied");
    let mode = |path: &str, mode: u32| {
        fs::set_permissions(scratch.0.join(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    scratch.file("un/m/config.json", "{}");
    // where every user can start it
    let copy = scratch.0.join("xtrain");
    let linked = fs::hard_link(program_path(), &copy);
    linked.or_else(|_| fs::copy(program_path(), &copy).map(drop)).unwrap();
    ["", "un", "un/m", "xtrain"].iter().for_each(|path| mode(path, 0o755));
    let is_root = fs::metadata(&scratch.0).unwrap().uid() == 0;
    for (path, denied) in [("un/m", 0o000), ("un/m", 0o444), ("un", 0o000)] {
        mode(path, denied);
        let mut command = std::process::Command::new(&copy);
        command.args(["generate", "un/m", "--prompt", "a"]).current_dir(&scratch.0);
        if is_root {
            command.uid(65_534);
        }
        let output = command.output();
        mode(path, 0o755);
        let output = output.unwrap();
        assert_eq!(text(&output.stderr), "error: un/m: Permission denied\n", "{path} {denied:o}");
        assert_eq!(output.status.code(), Some(74), "{path} {denied:o}");
    }
}

#[test]
fn a_directory_is_no_data_and_a_file_no_run() {
    let scratch = Scratch::new("kinds");
    scratch.file("d/a.txt", &"a text to train on. ".repeat(20));
    scratch.file("d/b.txt", "text");
    let parts = ["d: expected a file, found a directory", "for example d/a.txt"];
    refused(&scratch.0, &["prepare", "d", "--out", "o.tok"], 65, &parts);
    refused(&scratch.0, &["train", "--data", "d"], 65, &["expected a file, found a directory", "d/a.txt"]);
    let run = ["train", "--data", "d/a.txt", "--run", "d/b.txt"];
    refused(&scratch.0, &run, 74, &["d/b.txt: expected a directory, found a file"]);
    scratch.file("empty.jsonl", "");
    refused(
        &scratch.0,
        &["rollout", &model(), "--prompts", "empty.jsonl"],
        65,
        &["at least one line with a JSON object"],
    );
}
