//! Inputs that are wrong: `tests/data/bad_inputs.txt` has each command, its exit code, its message and its hint.
//! `XTRAIN_BLESS=1` writes the file again.
use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::cli::{Scratch, ok, program, text};
use crate::commands::tiny_run;
use crate::fixtures::path;

/// Texts of parsers and types that mean nothing to a user.
const FORBIDDEN: [&str; 28] = [
    "..=",
    "EOF",
    "Err(",
    "Missing vocab",
    "Model missing",
    "None",
    "Option",
    "ParseInt",
    "PathBuf",
    "Some(",
    "Utf8Error",
    "Vec<",
    "expected value",
    "column 0",
    "invalid digit",
    "invalid float",
    "invalid type",
    "io::",
    "missing field",
    "non-zero type",
    "panicked",
    "serde",
    "target type",
    "trailing characters",
    "u32",
    "unknown field",
    "untagged",
    "usize",
];

/// What Git writes in place of a large file.
const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 134000000\n";

/// A directory with a model, a run, and files that are not what their names say.
fn directory() -> Scratch {
    let scratch = Scratch::new("bad-inputs");
    let noise: Vec<u8> = (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(scratch.0.join("noise"), noise).unwrap();
    let pair = format!("{{\"prompt\": \"{}\", \"completion\": \"b\"}}\n", "a".repeat(300));
    let long = pair.repeat(90);
    for (name, content) in [
        ("empty", ""),
        ("text.txt", "The quick brown fox jumps over the lazy dog. ".repeat(40).as_str()),
        ("list.jsonl", "[1, 2]\n"),
        ("objects.jsonl", "\u{feff}[{\"text\": \"a\"}]\n"),
        ("conversation.jsonl", "[{\"role\": \"user\", \"content\": \"a\"}]\n"),
        ("lines.jsonl", "{\n  \"text\": \"a\"\n}\n"),
        ("part.jsonl", "{\"prompt\": [], \"completion\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n"),
        ("cut.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"a\n"),
        ("cut_object.jsonl", "{\"prompt\": \"a\"\n"),
        ("value.jsonl", "{\"prompt\": nul}\n"),
        ("long.jsonl", long.as_str()),
        ("blank.jsonl", "{\"text\": \"\"}\n"),
        ("completion.jsonl", "{\"prompt_id\": \"a\"}\n"),
        ("object.json", "{}"),
        ("list.json", "[1]"),
        ("cut.json", "{\"version\": \"1.0\", \"model\": {\"type\": \"BPE\", "),
        ("model.json", "{\"version\": \"1.0\", \"model\": {\"type\": \"BPE\"}}"),
        ("type.json", "{\"version\": \"1.0\", \"model\": {\"type\": \"Morse\"}}"),
        (
            "vocab.json",
            "{\"version\": \"1.0\", \"model\": {\"type\": \"BPE\", \"vocab\": 5, \"merges\": []}}",
        ),
        ("other.jsonl", "{\"question\": \"a\"}\n"),
        ("gsm8k.jsonl", "{\"question\": \"a\", \"answer\": \"b\"}\n"),
        ("alpaca.jsonl", "{\"instruction\": \"a\", \"input\": \"\", \"output\": \"b\"}\n"),
        ("sharegpt.jsonl", "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]}\n"),
        ("number.jsonl", "{\"prompt\": 5}\n"),
        ("both.jsonl", "{\"prompt\": \"a\", \"prompt_ids\": [1]}\n"),
        ("ids.jsonl", "{\"prompt_ids\": [1, -2]}\n"),
        ("large.jsonl", "{\"prompt_ids\": [99999]}\n"),
        ("taken.jsonl", "{\"prompt\": \"a\", \"reward\": 1}\n"),
        ("rolled/rollouts/step_000001.jsonl", ""),
        ("max_new.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"max_new\": 3.0}\n"),
        ("prompt_only.jsonl", "{\"prompt\": \"a\"}\n"),
        ("null.jsonl", "{\"text\": null}\n"),
        ("roles.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n"),
        ("content.jsonl", "{\"messages\": [{\"role\": \"user\"}]}\n"),
        ("good.jsonl", "{\"prompt\": \"a\"}\n"),
        ("cut.toml", "[train\nsteps = 5\n"),
        ("large.toml", "[train]\nsteps = 99999999999999999999\n"),
        ("key.toml", "[train]\nstep = 5\n"),
        ("type.toml", "[train]\nsteps = \"many\"\n"),
        ("twice.toml", "[train]\nsteps = 5\nsteps = 6\n"),
        ("bare.toml", "steps = 5\n"),
        ("date.toml", "[train]\nsteps = 2020-01-01\n"),
        ("section.toml", "train = 5\n"),
        ("bad.tok", "not a token file"),
        ("bad.gguf", "GGUF and no more"),
        ("bare/config.json", "{}"),
        ("cut/config.json", "{\"model_type\": \"llama\","),
        ("family/config.json", "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"]}"),
        ("template.jinja", "{% for message in messages %}"),
        (
            "merges.json",
            "{\"version\": \"1.0\", \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a b\"]}}",
        ),
        ("language.jsonl", "{\"prompt\": \"a\", \"regex\": \"b\", \"json_schema\": {}}\n"),
        ("regex.jsonl", "{\"prompt\": \"a\", \"regex\": 5}\n"),
        ("schema.jsonl", "{\"prompt\": \"a\", \"json_schema\": \"b\"}\n"),
        ("priority.jsonl", "{\"prompt\": \"a\", \"priority\": 2147483648}\n"),
        ("prompt_id.jsonl", "{\"prompt\": \"a\", \"finish_reason\": 1}\n"),
        ("id.jsonl", "{\"prompt\": \"a\", \"id\": 1}\n"),
        ("assistant.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n"),
        ("noncharacter.jsonl", "{\"prompt\": \"a\\ufdd0\"}\n"),
        ("answer.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"answer\": \"c\"}\n"),
        ("names.toml", "[train]\nlearning_rate = 1.0\nlr = 2.0\n"),
        ("latin.txt", "text"),
        ("zero.txt", "a\0b"),
        ("latin.toml", "[train]"),
        ("latin.jinja", "text"),
        ("grpo.toml", "[grpo]\nmax_grad_norm = 1.0\n"),
        ("pointer.jsonl", POINTER),
        ("pointer/model.safetensors", POINTER),
        ("pointer/tokenizer.json", POINTER),
        ("pytorch/pytorch_model.bin", "PK"),
        ("no_index/model-00001-of-00002.safetensors", ""),
        ("hub/models--Owner--Name/snapshots/abc/config.json", "{}"),
        ("ggufs/model.gguf", "GGUF"),
        ("noise.parquet", "PAR1"),
        ("noise.bin", "PK"),
        ("data.json", "[]"),
    ] {
        scratch.file(name, content);
    }
    std::os::unix::fs::symlink(path("models/qwen3_tied"), scratch.0.join("model")).unwrap();
    let sets = ["train.steps=2", "train.warmup=1", "train.eval_every=0", "data.val_fraction=0"];
    ok_or_print(&scratch.0, &tiny_run("runs/run", "text.txt", &sets));
    ok_or_print(&scratch.0, &["prepare", "text.txt", "--out", "packed.tok"]);
    ok_or_print(
        &scratch.0,
        &["rollout", "model", "--prompts", "good.jsonl", "--max-new", "2", "--out", "done.jsonl"],
    );
    fs::write(scratch.0.join("latin.txt"), b"text \xe9").unwrap();
    fs::write(scratch.0.join("latin.toml"), b"[train]\n# \xe9").unwrap();
    fs::write(scratch.0.join("latin.jinja"), b"text \xe9").unwrap();
    fs::write(scratch.0.join("noise.parquet"), b"PAR1 \xe9").unwrap();
    fs::write(scratch.0.join("noise.bin"), b"PK\x00").unwrap();
    let config = fs::read_to_string(path("models/llama_sharded/config.json")).unwrap();
    for name in ["pytorch", "no_index", "pointer", "shards"] {
        scratch.file(&format!("{name}/config.json"), &config);
    }
    for name in ["model-00001-of-00003.safetensors", "model.safetensors.index.json"] {
        fs::copy(path("models/llama_sharded").join(name), scratch.0.join("shards").join(name)).unwrap();
    }
    scratch.file("spm/tokenizer.model", "SentencePiece");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(path("models/qwen3_tied").join(name), scratch.0.join("spm").join(name)).unwrap();
    }
    fs::create_dir(scratch.0.join("bare_ids")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(path("models/qwen3_tied").join(name), scratch.0.join("bare_ids").join(name)).unwrap();
    }
    scratch
}

/// Runs a command that must succeed.
fn ok_or_print(dir: &Path, args: &[&str]) {
    let output = program().args(args).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
}

/// The exit code of a command line, and its message and its hint, on two lines.
fn run(dir: &Path, line: &str) -> (i32, String) {
    let words = shlex::split(line).unwrap_or_else(|| panic!("{line}: not a command line"));
    assert_eq!(words[0], "xtrain", "{line}");
    let output = program().args(&words[1..]).current_dir(dir).stdin(Stdio::null()).output().unwrap();
    let errors = text(&output.stderr);
    let message = errors.lines().find(|line| line.starts_with("error: ")).or(errors.lines().next());
    let hint = errors.lines().find(|line| line.starts_with("hint: "));
    let lines: Vec<&str> = message.into_iter().chain(hint).collect();
    let message = lines.join("\n").replace(&*dir.to_string_lossy(), "DIR");
    (output.status.code().unwrap_or(-1), message)
}

#[test]
fn wrong_input_has_the_documented_exit_code_and_message() {
    let file = path("bad_inputs.txt");
    let table = fs::read_to_string(&file).unwrap();
    let scratch = directory();
    let commands: Vec<&str> = table.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    assert!(commands.len() >= 150, "{} commands", commands.len());
    let (mut found, mut wrong) = (String::new(), Vec::new());
    for command in &commands {
        let (code, message) = run(&scratch.0, command);
        let raw = FORBIDDEN.iter().find(|raw| message.contains(**raw));
        if raw.is_some() || [0, 70].contains(&code) || !message.starts_with("error: ") {
            wrong.push(format!("{command}\n{code} {message}"));
        }
        found += &format!("$ {command}\n{code} {message}\n\n");
    }
    if std::env::var_os("XTRAIN_BLESS").is_some() {
        fs::write(&file, &found).unwrap();
    }
    assert!(wrong.is_empty(), "raw or missing messages:\n{}", wrong.join("\n\n"));
    for (want, found) in table.split("\n\n").zip(found.split("\n\n")) {
        assert_eq!(found.trim(), want.trim());
    }
    // the program still works in this directory
    ok(&scratch.0, &["tokenize", "a", "--tokenizer", "model"]);
}

/// A configuration is UTF-8, so it cannot hold every name of a file.
#[cfg(target_os = "linux")]
#[test]
fn a_data_file_whose_name_is_not_utf_8_is_refused_with_a_hint() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new("not-utf-8");
    let name = std::ffi::OsStr::from_bytes(b"lat\xe9.txt");
    std::fs::write(scratch.0.join(name), "some text").unwrap();
    let output = program().args(["train", "--data"]).arg(name).current_dir(&scratch.0).output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(66), "{errors}");
    assert!(errors.contains("a configuration holds only names in UTF-8"), "{errors}");
}
