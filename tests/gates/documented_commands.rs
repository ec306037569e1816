//! Every command line of the README and the book runs: in one directory, in the order of reading, with small models in
//! the place of large ones and few training steps. Names of commands and flags in running text exist.
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cli::{Scratch, program_path, text, xtrain};

/// The pages with command lines, in the order of reading.
const PAGES: [&str; 15] = [
    "docs/guide/getting-started.md",
    "README.md",
    "docs/guide/training.md",
    "docs/guide/watching.md",
    "docs/guide/fine-tuning.md",
    "docs/guide/rollouts.md",
    "docs/guide/engine.md",
    "docs/guide/chat.md",
    "docs/guide/verify.md",
    "docs/guide/formats.md",
    "docs/guide/grpo.md",
    "docs/guide/rewards.md",
    "docs/guide/cluster.md",
    "docs/bench.md",
    "CONTRIBUTING.md",
];

/// Command lines that this test does not run, by their beginnings.
const NOT_RUN: [(&str, &str); 9] = [
    ("cargo fmt", ".ci/run runs it"),
    ("cargo clippy", ".ci/run runs it"),
    ("cargo run --release -- quickstart", ".ci/run runs it"),
    ("cargo test", "it contains this test"),
    ("cargo install", "it compiles the workspace again and writes outside of this directory"),
    ("cargo build --release --manifest-path tests/mutants", "it builds mutants, for hours"),
    ("for stage in build record run table", "it runs mutants, for hours"),
    ("python3 -m venv target/book-venv", ".ci/run builds the book"),
    ("target/book-venv", ".ci/run builds the book"),
];

/// Programs and files that the pages name and do not create. The first text is the name; the second the file of this
/// repository that stands for it.
const FILES: [(&str, &str); 13] = [
    ("configs", "configs"),
    ("examples", "examples"),
    ("Qwen3-0.6B", "tests/data/models/qwen3_tied"),
    ("Qwen3-1.7B", "tests/data/models/qwen3_tied"),
    ("chat.jsonl", "examples/data/conversations.jsonl"),
    ("book.txt", "examples/data/tinyshakespeare.txt"),
    ("my_reward.py", "examples/rewards/exact.py"),
    ("BASE", "runs/quickstart"),
    ("runs/earlier", "runs/quickstart"),
    ("runs/a", "runs/quickstart"),
    ("runs/long", "runs/shakespeare"),
    ("runs/b", "runs/shakespeare"),
    ("model.gguf", "shakespeare.gguf"),
];

/// Runs the program with few steps. Later settings win over those of a page.
const WRAPPER: &str = r#"#!/bin/sh
command=$1
shift
case "$*" in
*--init*) init=yes ;;
*) init= ;;
esac
tiny="--set model.n_layers=1 --set model.dim=64"
steps="--set train.steps=2 --set train.warmup=1"
case "$*" in
*--steps*) steps="--steps 2 --set train.warmup=1" ;;
*--epochs*) steps="--epochs 1e-6 --set train.warmup=0" ;;
esac
case "$*" in
*runs/four*) batch=4 ;;
*) batch=2 ;;
esac
case $command$init in
quickstart) set -- "$@" $tiny $steps ;;
train) set -- "$@" $tiny $steps --set train.batch=$batch --set train.context=128 --set train.eval_every=0 ;;
trainyes) set -- "$@" $steps --set train.batch=$batch --set train.context=128 --set train.eval_every=0 ;;
grpo) set -- "$@" $steps ;;
esac
case $command in
train) set -- "$@" --set train.sample_every=0 ;;
grpo) set -- "$@" --set grpo.steps=2 --set grpo.prompts_per_step=2 --set grpo.num_generations=2 \
    --set grpo.max_completion_length=8 --set grpo.eval_every=0 ;;
esac
exec "$XTRAIN" "$command" "$@"
"#;

/// Stands for `mpirun`: one process. The feature `mpi` tests several.
const MPIRUN: &str = r#"#!/bin/sh
while [ "$1" != xtrain ]; do shift; done
exec "$@"
"#;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The command lines of the shell blocks of a page. Continued lines are joined.
fn command_lines(page: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut in_block, mut continued) = (false, String::new());
    for line in page.lines() {
        if line.starts_with("```") {
            in_block = !in_block && line == "```sh";
        } else if in_block && let Some(start) = line.strip_suffix('\\') {
            continued += start;
        } else if in_block {
            lines.push(std::mem::take(&mut continued) + line);
        }
    }
    lines
}

/// The Markdown pages of the repository, except those that are generated from the program or tell its history.
fn all_pages() -> BTreeSet<String> {
    let files = |dir: &'static str| {
        let entries = fs::read_dir(root().join(dir)).unwrap();
        entries.map(move |entry| format!("{dir}/{}", entry.unwrap().file_name().into_string().unwrap()))
    };
    let top = files(".").map(|name| name.trim_start_matches("./").to_string());
    let pages = top.chain(files("docs")).chain(files("docs/bench")).chain(files("docs/guide"));
    pages.filter(|name| name.ends_with(".md") && name != "CHANGELOG.md").collect()
}

/// A directory with the files that the pages name.
fn directory() -> Scratch {
    let scratch = Scratch::new("documented");
    fs::create_dir(scratch.0.join("runs")).unwrap();
    for (name, file) in FILES {
        let file = if root().join(file).exists() { root().join(file) } else { scratch.0.join(file) };
        std::os::unix::fs::symlink(file, scratch.0.join(name)).unwrap();
    }
    let prompts: String =
        (10..14).map(|a| format!("{{\"prompt\":\"{a}+34=\",\"answer\":\"0{}\"}}\n", a + 34)).collect();
    scratch.file("prompts.jsonl", &prompts);
    scratch.file("sums.jsonl", &prompts);
    let function =
        |name: &str| format!("def {name}(completions, **kwargs):\n    return [1.0] * len(completions)\n\n");
    scratch.file("my_rewards.py", &[function("accuracy_reward"), function("format_reward")].concat());
    for (name, script) in [("bin/xtrain", WRAPPER), ("bin/mpirun", MPIRUN)] {
        fs::set_permissions(scratch.file(name, script), fs::Permissions::from_mode(0o755)).unwrap();
    }
    scratch
}

/// Runs a command line in `dir`.
///
/// # Errors
/// The line and its output if it fails.
fn run(dir: &Path, line: &str) -> Result<(), String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("sh")
        .args(["-c", line])
        .current_dir(dir)
        .env("PATH", format!("{}:{path}", dir.join("bin").display()))
        .env("XTRAIN", program_path())
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|e| format!("{line}: {e}"))?;
    match output.status.code() {
        Some(0) => Ok(()),
        code => Err(format!("{line}\nexit code {code:?}\n{}{}", text(&output.stdout), text(&output.stderr))),
    }
}

#[test]
fn every_command_line_of_the_pages_runs() {
    let scratch = directory();
    let python = Command::new("python3").arg("--version").output().is_ok();
    assert!(python || std::env::var_os("XTRAIN_REQUIRE_PYTHON").is_none(), "python3 does not run");
    let mut seen = BTreeSet::new();
    let (mut failed, mut ran) = (Vec::new(), 0);
    for line in PAGES.iter().flat_map(|name| command_lines(&page(name))) {
        let is_excluded = NOT_RUN.iter().any(|(start, _)| line.starts_with(start));
        if is_excluded || (!python && line.contains("python3")) || !seen.insert(line.clone()) {
            continue;
        }
        ran += 1;
        let clock = std::time::Instant::now();
        failed.extend(run(&scratch.0, &line).err());
        println!("{:5.1} s  {line}", clock.elapsed().as_secs_f64());
    }
    println!("{ran} command lines");
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    assert!(run(&scratch.0, "xtrain verify runs/quickstart --no-such-flag").is_err());
    assert!(run(&scratch.0, "printf x | xtrain verify runs/no-such-run").is_err());
}

#[test]
fn no_page_with_command_lines_is_left_out() {
    let with_commands = |name: &String| !command_lines(&page(name)).is_empty();
    let found: BTreeSet<String> = all_pages().into_iter().filter(with_commands).collect();
    let listed: BTreeSet<String> = PAGES.iter().map(ToString::to_string).collect();
    let missing: Vec<&String> = found.difference(&listed).collect();
    assert!(missing.is_empty(), "pages with command lines that no test runs: {missing:?}");
}

/// The commands of `text` in running text: the words of each inline code that begins with `xtrain`.
fn inline_commands(page: &str) -> Vec<Vec<String>> {
    let outside = |(i, part): (usize, &'_ str)| (i % 2 == 0).then(|| part.to_string());
    let text: String = page.split("```").enumerate().filter_map(outside).collect();
    let codes = text.split('`').enumerate().filter(|(i, code)| i % 2 == 1 && code.starts_with("xtrain "));
    codes.map(|(_, code)| code.split_whitespace().skip(1).map(str::to_string).collect()).collect()
}

/// The first word of `words` that is no command, or no flag of its command.
fn unknown_word<'a>(dir: &Path, words: &'a [String]) -> Option<&'a String> {
    let is_name =
        |word: &&String| !word.starts_with('-') && word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let [name, rest @ ..] = words else { return None };
    if !is_name(&name) || name == "help" {
        return None;
    }
    // `tokenizer` and `bench` have commands of their own
    let second = rest.first().filter(is_name).filter(|_| ["tokenizer", "bench"].contains(&name.as_str()));
    let command: Vec<&str> = [Some(name), second].into_iter().flatten().map(String::as_str).collect();
    let help = xtrain(dir, &[&command[..], &["--help"]].concat());
    if !help.status.success() {
        return Some(name);
    }
    let help = text(&help.stdout);
    let is_known =
        |flag: &str| help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').any(|word| word == flag);
    rest.iter()
        .filter(|word| word.starts_with("--"))
        .find(|word| !is_known(word.split('=').next().unwrap_or(word)))
}

#[test]
fn commands_and_flags_in_running_text_exist() {
    let scratch = Scratch::new("inline");
    let mut commands = 0;
    let mut distinct = BTreeSet::new();
    for name in all_pages() {
        for words in inline_commands(&page(&name)) {
            commands += 1;
            if distinct.insert(words.clone()) {
                assert_eq!(unknown_word(&scratch.0, &words), None, "{name}: `xtrain {}`", words.join(" "));
            }
        }
    }
    assert!(commands > 25, "{commands} commands found");
    for unknown in [vec!["trian"], vec!["verify", "--no-such-flag"], vec!["tokenizer", "train", "--step"]] {
        let words: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        assert!(unknown_word(&scratch.0, &words).is_some(), "{unknown:?}");
    }
}
