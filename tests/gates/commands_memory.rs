//! Commands that need more memory than there is, and files without an end.
#![cfg(target_os = "linux")]
use std::path::Path;
use std::process::{Command, Output};

use crate::cli::{Scratch, program, refused, text, xtrain};
use crate::commands::{done, model};

const LINE: &str = "the cat sat on the mat and the dog sat too\n";

/// Runs a command with a limit of the address space in MiB.
fn limited(dir: &Path, mebibytes: u64, args: &[&str]) -> Output {
    let program = program();
    let script = format!("ulimit -v {} && exec \"$0\" \"$@\"", mebibytes << 10);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).arg(program.get_program()).args(args).current_dir(dir);
    shell.output().unwrap()
}

#[track_caller]
fn too_large(output: &Output, parts: &[&str]) {
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(71), "{errors}");
    for part in ["error: not enough memory: "].iter().chain(parts) {
        assert!(errors.contains(part), "{part:?} is not in: {errors}");
    }
}

#[test]
fn a_run_that_does_not_fit_is_refused_before_it_has_a_directory() {
    let scratch = Scratch::new("toolarge");
    let dir = &scratch.0;
    scratch.file("t.txt", &LINE.repeat(20));
    let train =
        |key: &'static str| ["train", "--run", "r", "--data", "t.txt", "--threads", "1", "--set", key];
    let wide = ["--set", "model.n_layers=1000", "--set", "model.head_dim=128"];
    let wide = [&train("model.dim=65536")[..], &wide].concat();
    too_large(&xtrain(dir, &wide), &["training needs about", "[model]"]);
    let long = [&train("train.batch=100000")[..], &["--set", "train.context=4096"]].concat();
    too_large(&xtrain(dir, &long), &["train.micro_batch"]);
    let limit = limited(dir, 600, &train("train.batch=4096"));
    too_large(&limit, &[" of 629 MB are left (ulimit -v)", "training needs about"]);
    let errors = text(&limit.stderr);
    let left = errors.split(" MB of 629 MB").next().and_then(|before| before.rsplit(' ').next());
    let left = left.unwrap().parse::<f64>().unwrap_or_else(|error| panic!("{error}: {errors}"));
    assert!(left < 629.0, "the program itself takes a part: {errors}");
    let grpo = ["grpo", "--task", "sums", "--run", "r", "--threads", "1", "--set", "grpo.micro_batch=65536"];
    let many = ["--set", "grpo.num_generations=65536", "--set", "grpo.max_completion_length=4096"];
    let context = ["--set", "train.context=8192"];
    too_large(&xtrain(dir, &[&grpo[..], &many, &context].concat()), &["the run needs about", "grpo."]);
    assert!(!dir.join("r").exists());
}

#[test]
fn caches_and_benchmarks_that_do_not_fit_are_refused() {
    let (scratch, m) = (Scratch::new("nocache"), model());
    let dir = &scratch.0;
    scratch.file("p.jsonl", "{\"prompt_ids\": [1, 2, 3]}\n");
    let rollout = ["rollout", &m, "--prompts", "p.jsonl", "-n", "65536", "--max-batch-size", "65536"];
    let kinds = ["paged", "contiguous"];
    for kv in kinds {
        let args = [&rollout[..], &["--max-new", "250", "--kv", kv, "--threads", "1"]].concat();
        too_large(&limited(dir, 2000, &args), &["the KV cache needs about", "--max-batch-size"]);
    }
    let preset = ["--set", "model.preset=qwen3-0.6b", "--threads", "1"];
    too_large(&limited(dir, 2000, &[&["bench", "train"][..], &preset].concat()), &["training needs"]);
    too_large(&limited(dir, 2000, &[&["bench", "decode"][..], &preset].concat()), &["the model needs"]);
    let linear = [&["bench", "linear", "--copies", "60000"][..], &preset].concat();
    too_large(&limited(dir, 2000, &linear), &["the benchmark needs", "--copies"]);
}

#[test]
fn an_allocation_that_fails_ends_the_process_with_an_error() {
    let scratch = Scratch::new("alloc");
    let file = scratch.file("p.jsonl", "");
    std::fs::File::options().write(true).open(&file).unwrap().set_len(3 << 30).unwrap();
    let output = limited(&scratch.0, 600, &["tokenize", "--file", "p.jsonl"]);
    too_large(&output, &["an allocation of", "ulimit -v"]);
}

#[test]
fn a_file_without_an_end_is_refused() {
    let (scratch, m) = (Scratch::new("endless"), model());
    scratch.file("t.txt", LINE);
    for args in [
        &["rollout", &m, "--prompts", "/dev/zero"][..],
        &["prepare", "/dev/zero", "--out", "o.tok"],
        &["tokenize", "--file", "/dev/zero"],
        &["chat", "--model", &m, "--template", "/dev/zero"],
        &["tokenizer", "train", "/dev/zero", "--out", "o.json"],
        &["replay", "/dev/zero", "--model", &m],
    ] {
        refused(&scratch.0, args, 65, &["/dev/zero: expected a file or a pipe, found a device"]);
    }
}

#[test]
fn a_pipe_is_refused_where_a_file_is_read_twice() {
    let (scratch, m) = (Scratch::new("pipes"), model());
    scratch.file("t.txt", LINE);
    assert!(Command::new("mkfifo").arg(scratch.0.join("pipe")).status().unwrap().success());
    for (file, kind) in [("/dev/zero", "a device"), ("pipe", "a pipe"), ("-", "standard input")] {
        for args in [
            &["train", "--run", "r", "--data", file][..],
            &["train", "--run", "r", "--data", "t.txt", file],
            &["eval", &m, "--data", file],
            &["eval", &m, "--task", file],
            &["grpo", "--init", &m, "--prompts", file, "--reward", "cat", "--run", "r"],
        ] {
            let message = format!("{file}: expected a regular file, found {kind}");
            refused(&scratch.0, args, 65, &[&message, "read more than once"]);
        }
    }
    assert!(!scratch.0.join("r").exists());
    // The prompts of a rollout are read once.
    let mut writer = Command::new("sh");
    writer.args(["-c", "echo '{\"prompt_ids\": [1, 2]}' > pipe"]).current_dir(&scratch.0);
    let mut writer = writer.spawn().unwrap();
    let shown = done(&scratch.0, &["rollout", &m, "--prompts", "pipe", "--max-new", "1", "--out", "-"]);
    assert!(writer.wait().unwrap().success() && !shown.is_empty());
}
