//! Fine-tuning on conversations and training on windows of whole documents, as processes.
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::cli::{Scratch, ok, refused, text, xtrain};
use crate::commands::{done, tiny_run};
use crate::fixtures::path;

/// The flags of a very short run with a quarter of its conversations held out.
fn tiny<'a>(run: &'a str, data: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let own = ["train.context=64", "data.val_fraction=0.25"];
    tiny_run(run, data, &[&own, more].concat())
}

/// One line of JSON: a question and its answer.
fn row(question: &str, answer: &str) -> String {
    let turns = [("user", question), ("assistant", answer)];
    let turns = turns.map(|(role, content)| serde_json::json!({ "role": role, "content": content }));
    format!("{}\n", serde_json::json!({ "messages": turns }))
}

/// Eight conversations. Those with an even number have an answer of two bytes, the others of three.
fn conversations() -> String {
    (0..8).map(|i| row(&format!("say {i}"), if i % 2 == 0 { "ok" } else { "yes" })).collect()
}

fn metrics(dir: &Path, run: &str) -> Vec<Value> {
    let lines = fs::read_to_string(dir.join(run).join("metrics.jsonl")).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn weights(dir: &Path, run: &str, step: u64) -> Vec<u8> {
    fs::read(dir.join(run).join(format!("checkpoints/step_{step:06}/model.safetensors"))).unwrap()
}

#[test]
pub(crate) fn only_answers_count_as_target_tokens_and_a_token_file_is_the_same_data() {
    let scratch = Scratch::new("sft");
    let dir = &scratch.0;
    scratch.file("c.jsonl", &conversations());
    let sft =
        |run, data, more: &[&'static str]| [&tiny(run, data, more)[..], &["--objective", "sft"]].concat();
    let shown = xtrain(dir, &sft("r", "c.jsonl", &["train.steps=4", "train.save_every=2"]));
    let stderr = text(&shown.stderr);
    assert!(shown.status.success(), "{stderr}");
    // 6 to train on, of 23 or 24 inputs in windows of 64: two of them each
    assert!(stderr.contains("6 conversations packed into 3 windows of 64 tokens (73.4 % full)"), "{stderr}");
    assert!(!stderr.contains("note: "), "{stderr}");
    // three windows per epoch, two per step: after three steps each answer and its end token counted twice
    let targets = 3 * (3 + 4);
    assert_eq!(metrics(dir, "r")[2]["num_tokens"], 2 * targets);
    let config = fs::read_to_string(dir.join("r/config.toml")).unwrap();
    for line in ["task = \"sft\"", "packing = \"documents\"", "order = \"shuffled\""] {
        assert!(config.contains(line), "{config}");
    }
    scratch.file("long.txt", &"text ".repeat(60));
    let evaluated: Value =
        serde_json::from_str(&done(dir, &["eval", "r", "--data", "long.txt", "--json"])).unwrap();
    let count = evaluated["data"]["tokens"].as_u64().unwrap();
    assert!(count > 290, "text is split into windows, not truncated: {count} tokens of 300");
    let eval = |run: &str, data: &str| -> Value {
        let args = ["eval", run, "--data", data, "--val-fraction", "0.25", "--json"];
        serde_json::from_str(&done(dir, &args)).unwrap()
    };
    let last = metrics(dir, "r")[3].clone();
    let found = eval("r", "c.jsonl")["data"].clone();
    assert_eq!((found["tokens"].clone(), found["loss"].clone()), (7.into(), last["val_loss"].clone()));

    // the built-in chat template is part of the run's recorded data; a token file no longer needs it
    let record = fs::read_to_string(dir.join("r/data.json")).unwrap();
    scratch.file("r/data.json", &record.replace("\"chat_template\": \"", "\"chat_template\": \"0"));
    refused(
        dir,
        &["train", "--resume", "r", "--set", "train.steps=5"],
        65,
        &["chat template", "found sha256:"],
    );
    scratch.file("r/data.json", &record);
    done(dir, &["prepare", "c.jsonl", "--out", "c.tok"]);
    done(dir, &sft("p", "c.tok", &["train.steps=2"]));
    done(dir, &["train", "--resume", "p", "--set", "train.steps=4"]);
    assert_eq!(eval("r", "c.tok")["data"]["loss"], found["loss"]);
    done(dir, &sft("q", "c.tok", &["train.steps=4"]));
    assert_eq!(weights(dir, "q", 4), weights(dir, "r", 4));
    done(dir, &sft("s", "c.tok", &["train.steps=4", "train.save_every=2", "train.schedule=constant"]));
    done(dir, &sft("t", "c.jsonl", &["train.steps=2", "train.schedule=constant", "train.warmup=0"]));
    assert_ne!(weights(dir, "s", 4), weights(dir, "r", 4));
}

#[test]
fn a_conversation_longer_than_a_window_is_truncated_counted_and_reported() {
    let scratch = Scratch::new("sft-long");
    let (dir, long) = (&scratch.0, "a".repeat(90));
    let rows = [row("a", "ok"), row("b", &long), row(&long, "ok"), row("c", "ok")];
    scratch.file("c.jsonl", &rows.concat());
    let shown =
        xtrain(dir, &[&tiny("r", "c.jsonl", &["train.steps=1"])[..], &["--objective", "sft"]].concat());
    let stderr = text(&shown.stderr);
    for part in [
        "2 conversations packed into 2 windows",
        "note: 2 conversations longer than train.context = 64: truncated",
        "note: 1 conversation without target tokens in the first 64 tokens: skipped",
    ] {
        assert!(shown.status.success() && stderr.contains(part), "{stderr}");
    }
}

#[test]
fn fine_tuning_starts_from_an_imported_model_and_its_chat_template() {
    let scratch = Scratch::new("sft-init");
    let (dir, model) = (&scratch.0, path("models/qwen3_tied").display().to_string());
    scratch.file("c.jsonl", &conversations());
    let train = ["train", "--objective", "sft", "--init", &model, "--data", "c.jsonl", "--run", "r"];
    let keys = ["train.context=128", "train.batch=1", "train.steps=3", "data.val_fraction=0.25"];
    let sets = keys.iter().flat_map(|key| ["--set", *key]);
    let words: Vec<&str> = train.into_iter().chain(sets).collect();
    done(dir, &words);
    let lines = metrics(dir, "r");
    assert!(lines[2]["val_loss"].as_f64().unwrap() < lines[0]["loss"].as_f64().unwrap(), "{lines:?}");
    // a resume accepts the same conversations and refuses another chat template
    let record = fs::read_to_string(dir.join("r/data.json")).unwrap();
    assert!(record.contains("chat_template"), "{record}");
    scratch.file("r/data.json", &record.replace("\"chat_template\": \"", "\"chat_template\": \"0"));
    let args = ["train", "--resume", "r", "--set", "train.steps=4"];
    refused(dir, &args, 65, &["chat template", "found "]);
    scratch.file("r/data.json", &record);
    done(dir, &args);
}

#[test]
fn an_invalid_conversation_is_refused_by_file_line_and_field() {
    let scratch = Scratch::new("sft-refused");
    let dir = &scratch.0;
    scratch.file("t.txt", "some text\n");
    scratch.file(
        "a.jsonl",
        &format!("{}{{\"messages\":[{{\"role\":\"user\",\"content\":\"a\"}}]}}\n", row("a", "b")),
    );
    scratch.file("b.jsonl", "{\"messages\":[{\"role\":\"assistant\"}]}\n");
    scratch.file("c.jsonl", "{\"messages\":\"hi\"}\n");
    scratch.file("d.jsonl", "{\"text\":\"a\"}\n");
    scratch.file("one.jsonl", &row("a", "b"));
    done(dir, &["prepare", "t.txt", "--out", "t.tok"]);
    for (file, parts) in [
        ("t.txt", &["t.txt", "\"messages\"", "found text"][..]),
        ("t.tok", &["t.tok", "expected conversations", "hint: "]),
        ("a.jsonl", &["a.jsonl:2: expected \"messages\"", "\"assistant\"", "found only the roles \"user\""]),
        ("b.jsonl", &["b.jsonl:1: expected text as \"content\" for the built-in template, found "]),
        ("c.jsonl", &["c.jsonl:1: expected \"messages\" as [", "a string"]),
        ("d.jsonl", &["d.jsonl:1: expected \"messages\", or \"prompt\"", "found \"text\""]),
    ] {
        refused(dir, &[&tiny("r", file, &[])[..], &["--objective", "sft"]].concat(), 65, parts);
    }
    let sft = |more: &[&'static str]| [&tiny("r", "one.jsonl", more)[..], &["--objective", "sft"]].concat();
    refused(dir, &sft(&["data.packing=stream"]), 2, &["`data.packing`", "train.task = sft"]);
    refused(dir, &sft(&["data.packing=bins"]), 2, &["`data.packing`", "stream, documents"]);
    refused(dir, &sft(&[]), 65, &["a document with a target"]);
    refused(dir, &["train", "--objective", "rl"], 2, &["'rl'", "lm, sft"]);
    assert!(!dir.join("r").exists());
}

#[test]
fn windows_of_whole_documents_read_text_as_well() {
    let scratch = Scratch::new("documents");
    let dir = &scratch.0;
    let rows: String =
        (0..30).map(|i| format!("{{\"text\":\"{}\"}}\n", "the cat sat ".repeat(1 + i % 9))).collect();
    scratch.file("t.jsonl", &rows);
    let documents = |more: &[&'static str]| {
        tiny("r", "t.jsonl", &[&["data.packing=documents", "train.order=shuffled"], more].concat())
    };
    let shown = xtrain(dir, &documents(&["train.steps=3"]));
    let stderr = text(&shown.stderr);
    assert!(shown.status.success() && stderr.contains(" documents packed into "), "{stderr}");
    assert!(stderr.contains("documents longer than train.context = 64: split"), "{stderr}");
    let whole: Value =
        serde_json::from_str(&done(dir, &["eval", "r", "--data", "t.jsonl", "--json"])).unwrap();
    let stream = ["eval", "r", "--data", "t.jsonl", "--packing", "stream", "--json"];
    let stream: Value = serde_json::from_str(&done(dir, &stream)).unwrap();
    // a stream also predicts the first token of every document except the first
    let tokens = |of: &Value| of["data"]["tokens"].as_u64().unwrap();
    assert_eq!(tokens(&stream) - tokens(&whole), 29);
}

#[test]
fn the_conversations_of_the_readme_train_to_a_lower_loss() {
    let scratch = Scratch::new("sft-readme");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (config, data) = ("configs/conversations.toml", "examples/data/conversations.jsonl");
    let (config, data) = (root.join(config).display().to_string(), root.join(data).display().to_string());
    let words =
        ["train", "-c", &config, "--data", &data, "--set", "train.steps=40", "--set", "train.warmup=4"];
    done(&scratch.0, &words);
    let lines = metrics(&scratch.0, "runs/conversations");
    let (first, last) = (lines[0]["loss"].as_f64().unwrap(), lines[39]["val_loss"].as_f64().unwrap());
    assert!(last < first / 2.0, "{first} to {last}");
}

#[test]
fn step_time_excludes_evaluation_sampling_and_saving() {
    let scratch = Scratch::new("times");
    scratch.file("t.txt", &"the cat sat on the mat\n".repeat(40));
    let keys = ["train.steps=4", "train.eval_every=2", "train.save_every=4", "train.sample_every=4"];
    done(&scratch.0, &[&tiny("r", "t.txt", &keys)[..], &["--set", "train.sample_every=4"]].concat());
    let lines = fs::read_to_string(scratch.0.join("r/timings.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let has = |key: &str| lines.iter().map(|line| line[key].is_f64()).collect::<Vec<_>>();
    assert_eq!(lines.len(), 4);
    assert_eq!(has("step_time"), [true; 4]);
    assert_eq!(has("eval_time"), [false, true, false, true]);
    assert_eq!(has("sample_time"), [false, false, false, true]);
    assert_eq!(has("save_time"), [false, false, false, true]);
}

#[test]
fn a_dry_run_opens_no_device_and_reads_no_weights() {
    let scratch = Scratch::new("dry-init");
    let dir = &scratch.0;
    let from = path("models/qwen3_tied");
    fs::create_dir(dir.join("m")).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(from.join(name), dir.join("m").join(name)).unwrap();
    }
    // a valid header followed by NaN weights
    let mut bytes = fs::read(from.join("model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[header..].fill(0xff);
    fs::write(dir.join("m/model.safetensors"), bytes).unwrap();
    let args = ["train", "--init", "m", "--set", "train.context=32", "--device", "cuda:7", "--dry-run"];
    let shown = ok(dir, &args);
    assert!(shown.contains("dim = 64") && shown.contains("tokenizer = \"m\""), "{shown}");
    refused(dir, &[&args[..5], &["--run", "r"]].concat(), 65, &["model.safetensors"]);
    fs::remove_file(dir.join("m/model.safetensors")).unwrap();
    refused(dir, &args, 66, &["model.safetensors"]);
    let big = ["train", "--init", "m", "--dry-run", "--set", "train.context=300"];
    fs::copy(from.join("model.safetensors"), dir.join("m/model.safetensors")).unwrap();
    refused(dir, &big, 2, &["`train.context` = 300", "256"]);
}

#[test]
fn a_page_size_needs_a_paged_cache() {
    let scratch = Scratch::new("pages");
    let model = path("models/qwen3_tied").display().to_string();
    let args = ["generate", &model, "--tokens", "1,2", "--max-new", "1", "--page-size", "8", "--kv"];
    refused(&scratch.0, &[&args[..], &["growing"]].concat(), 2, &["--page-size", "--kv growing", "hint: "]);
    refused(&scratch.0, &[&args[..], &["off"]].concat(), 2, &["--page-size", "--kv off"]);
    done(&scratch.0, &[&args[..], &["paged"]].concat());
    done(&scratch.0, &args[..8]);
}

#[test]
fn a_model_that_was_fine_tuned_with_the_built_in_template_keeps_it() {
    let scratch = Scratch::new("sft-template");
    let dir = &scratch.0;
    scratch.file("c.jsonl", &conversations());
    let sft = tiny("r", "c.jsonl", &["train.steps=1"]);
    done(dir, &[&sft[..], &["--objective", "sft"]].concat());
    ok(dir, &["export", "r", "hf"]);
    ok(dir, &["export", "r", "m.gguf"]);
    let config = fs::read_to_string(dir.join("hf/tokenizer_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert!(config["chat_template"].as_str().unwrap().contains("generation"), "{config}");
    scratch.file("chat.json", r#"[{"role": "user", "content": "say 1"}]"#);
    for model in ["r", "hf", "m.gguf"] {
        let shown = ok(dir, &["tokenize", "--chat", "--json", "--model", model, "--file", "chat.json"]);
        let shown: Value = serde_json::from_str(shown.lines().next().unwrap()).unwrap();
        assert_eq!(shown["text"], "user\nsay 1<|endoftext|>", "{model}");
        let chat = xtrain(dir, &["chat", "--model", model, "--max-new", "1"]);
        assert!(chat.status.success() && !text(&chat.stderr).contains("built-in"), "{model}: {chat:?}");
    }
    // a run of an earlier version: its checkpoints have no template
    let checkpoint =
        fs::read_dir(dir.join("r/checkpoints")).unwrap().flatten().map(|entry| entry.path()).max();
    let old = checkpoint.unwrap();
    for name in ["manifest.json", "trainer"] {
        let path = old.join(name);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    fs::write(old.join("tokenizer_config.json"), r#"{"eos_token": "<|endoftext|>"}"#).unwrap();
    let chat = xtrain(dir, &["chat", "--model", &old.display().to_string(), "--max-new", "1"]);
    assert!(chat.status.success() && !text(&chat.stderr).contains("built-in"), "{chat:?}");
}

#[test]
fn a_fine_tuned_model_is_sampled_on_the_first_held_out_turn_unless_a_prompt_is_set() {
    let scratch = Scratch::new("sft-samples");
    let dir = &scratch.0;
    scratch.file("c.jsonl", &conversations());
    let pairs: String =
        (0..8).map(|i| format!("{{\"prompt\": \"say {i}\", \"completion\": \" ok\"}}\n")).collect();
    scratch.file("p.jsonl", &pairs);
    let sample = |run: &'static str, data: &'static str, more: &[&'static str]| {
        let keys = ["train.steps=1", "train.sample_every=1", "sample.max_new=3", "train.save_every=0"];
        let args = [&tiny(run, data, &[&keys[..], more].concat())[..], &["--objective", "sft"]].concat();
        done(dir, &args);
        let lines = fs::read_to_string(dir.join(run).join("samples.jsonl")).unwrap();
        let line: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        line.to_string()
    };
    // The last two of eight conversations are held out.
    let shown = sample("r", "c.jsonl", &[]);
    assert!(shown.contains("user\\nsay 6<|endoftext|>assistant\\n"), "{shown}");
    let config = fs::read_to_string(dir.join("r/config.toml")).unwrap();
    assert!(config.contains("# computed: prompt = \"\"\n"), "{config}");
    assert!(sample("q", "p.jsonl", &[]).contains("\"say 6"), "the prompt of the pair");
    assert!(sample("s", "c.jsonl", &["data.val_fraction=0"]).contains("user\\nsay 0<|endoftext|>assistant"));
    assert!(sample("t", "c.jsonl", &["sample.prompt=hello"]).contains("\"hello"), "a prompt that is set");
}

/// The keys of a run that samples after each step.
const SAMPLES: [&str; 4] =
    ["train.sample_every=1", "sample.max_new=12", "train.save_every=0", "sample.temperature=1"];

/// The weights stay the same, so only the random numbers differ.
#[test]
pub(crate) fn the_samples_of_two_steps_differ() {
    let scratch = Scratch::new("sample-ids");
    scratch.file("c.jsonl", &conversations());
    let keys = [&SAMPLES[..], &["train.steps=2", "train.learning_rate=1e-30"]].concat();
    done(&scratch.0, &tiny("r", "c.jsonl", &keys));
    let lines = fs::read_to_string(scratch.0.join("r/samples.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_ne!(lines[0]["samples"], lines[1]["samples"], "samples of steps 1 and 2");
}

/// The context is 64 tokens, the first held-out turn has more than 100.
#[test]
pub(crate) fn a_long_first_turn_is_cut_to_the_context() {
    let scratch = Scratch::new("long-turn");
    let question = format!("{}{}", "a".repeat(70), "b".repeat(40));
    let short = row("short", "ok");
    scratch.file("c.jsonl", &[short.repeat(6), row(&question, "ok"), short].concat());
    let keys = [&SAMPLES[..], &["train.steps=1"]].concat();
    let args = [&tiny("r", "c.jsonl", &keys)[..], &["--objective", "sft"]].concat();
    let shown = xtrain(&scratch.0, &args);
    assert!(shown.status.success(), "{shown:?}");
    let warnings = text(&shown.stderr);
    assert!(!warnings.contains("sampling failed"), "{warnings}");
    let line = fs::read_to_string(scratch.0.join("r/samples.jsonl")).unwrap();
    // of 63 tokens, 11 are the end token and the start of the answer
    assert!(
        line.contains(&format!("\"{}{}<|endoftext|>assistant", "a".repeat(12), "b".repeat(40))),
        "{line}"
    );
}
