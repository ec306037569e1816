//! A dry run of each stage of the GPU report (`scripts/gpu-report.sh`): every line of a stage runs on the emulator, and a
//! program that fails is reported. `gates/contact.rs` of xtrain-tensor plants a fault in a kernel, which `contact` names.
#![cfg(xtrain_emu)]
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cli::{Scratch, program_path, text};

/// The result of a stage.
struct Stage {
    code: Option<i32>,
    /// Title and verdict of each step, in order.
    steps: Vec<(String, String)>,
    report: String,
}

/// The newest test program of xtrain-tensor next to this one.
fn tensor_tests() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let programs = fs::read_dir(this.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let is_program = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.strip_prefix("xtrain_tensor-").is_some_and(|hash| !hash.contains('.'))
    };
    let newest = programs.filter(is_program).max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.unwrap_or_else(|| panic!("no test program of xtrain-tensor next to {}", this.display()))
}

/// Runs a stage with `--dry-run` in a directory with the contents of gpu-pack.sh, in which `program` stands for xtrain.
fn stage(name: &str, program: &Path, operations: &[&str], environment: &[(&str, &str)]) -> Stage {
    let scratch = Scratch::new(name);
    let (pack, root) = (&scratch.0, Path::new(env!("CARGO_MANIFEST_DIR")));
    let link = |from: &Path, to: &str| symlink(from, pack.join(to)).unwrap();
    for script in ["gpu-report.sh", "gpu-report"] {
        link(&root.join("scripts").join(script), script);
    }
    link(&root.join("tests/peers/gpu.py"), "gpu.py");
    link(&root.join("tests/data"), "data");
    link(program, "xtrain");
    link(&std::env::current_exe().unwrap(), "test-gates");
    link(&tensor_tests(), "test-tensor");
    scratch.file("commit", "0\n");
    let mut command = Command::new("bash");
    command.current_dir(pack).args(["gpu-report.sh", name, "out", "--dry-run"]).args(operations);
    let output = command.envs(environment.iter().copied()).output().unwrap();
    assert_eq!(text(&output.stderr), "", "{name}");
    let report = fs::read_to_string(pack.join(format!("out/{name}.md"))).unwrap();
    let files = fs::read_dir(pack.join("out")).unwrap().count();
    assert!(files <= 8, "{name}: {files} result files, expected at most 8");
    let cells = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match cells[..] {
            ["", title, verdict, seconds, ""] if seconds.parse::<u32>().is_ok() => {
                Some((title.to_string(), verdict.to_string()))
            }
            _ => None,
        }
    };
    let steps = report.lines().filter_map(cells).collect();
    Stage { code: output.status.code(), steps, report }
}

/// Runs a stage of which every step must pass. Returns the titles.
fn passed(name: &str, operations: &[&str]) -> Vec<String> {
    let Stage { code, steps, report } = stage(name, &program_path(), operations, &[]);
    assert!(steps.iter().all(|(_, verdict)| verdict == "passed"), "{report}");
    assert_eq!(code, Some(0), "{report}");
    println!("dry run of the stage {name}: {} steps passed", steps.len());
    steps.into_iter().map(|(title, _)| title).collect()
}

#[test]
fn contact_and_sanitize_run_an_operation() {
    assert_eq!(passed("contact", &["add"]), ["xtrain doctor", "operation add"]);
    let titles = ["memcheck, add", "racecheck, add", "synccheck, add"];
    assert_eq!(passed("sanitize", &["add"]), titles);
}

#[test]
fn decode_runs_every_batch_and_top_p() {
    let titles = passed("decode", &[]);
    for part in [
        "batch 1, bf16",
        "batch 32, f32",
        "batch 256, bf16",
        "--top-p 0.9",
        "--one-prompt",
        "--kv int8",
        "--kv sinks",
    ] {
        assert!(titles.iter().any(|title| title.contains(part)), "{part}: {titles:?}");
    }
}

#[test]
fn train_runs_steps_and_grpo() {
    let titles = passed("train", &[]);
    assert!(titles.iter().any(|title| title.starts_with("GRPO, qwen3-0.6b")), "{titles:?}");
}

#[test]
fn ncu_runs_a_step_of_each_kind() {
    assert_eq!(passed("ncu", &[]), ["decode, batch 1", "decode, batch 32", "train"]);
}

#[test]
fn gpus_run_steps_and_grpo_on_two_and_four() {
    let titles = passed("gpus", &[]);
    assert_eq!(titles.len(), 4, "{titles:?}");
}

#[test]
fn gates_run_in_their_own_processes() {
    let test = "launch_log::the_recorder_receives_the_launches_of_a_device";
    assert_eq!(passed("gates", &[test]), [test]);
}

/// PyTorch is not a part of a test machine: the stage says so. `XTRAIN_REQUIRE_PEERS=1` requires it.
#[test]
fn peers_run_on_the_cpu_or_are_reported_as_missing() {
    let python = Command::new("python3").args(["-c", "import torch"]).output();
    if python.is_ok_and(|python| python.status.success()) {
        let titles = passed("peers", &[]);
        assert_eq!(titles.last().unwrap(), "train, torch.compile");
        return;
    }
    assert!(std::env::var("XTRAIN_REQUIRE_PEERS").is_err(), "XTRAIN_REQUIRE_PEERS=1: python3 has no torch");
    let Stage { code, steps, report } = stage("peers", &program_path(), &[], &[]);
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(steps, [("peers".to_string(), "NOT RUN: python3 has no torch".to_string())]);
}

#[test]
fn a_program_that_fails_fails_each_step_and_the_stage() {
    for name in ["decode", "train", "ncu"] {
        let Stage { code, steps, report } = stage(name, Path::new("/bin/false"), &[], &[]);
        assert_eq!(code, Some(1), "{report}");
        assert!(!steps.is_empty(), "{report}");
        assert!(steps.iter().all(|(_, verdict)| verdict.starts_with("FAILED (1)")), "{report}");
    }
}

#[test]
fn a_gate_that_no_test_has_fails_the_stage() {
    let Stage { code, steps, report } = stage("gates", &program_path(), &["no::such_gate"], &[]);
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(steps, [("no::such_gate".to_string(), "FAILED: no test ran".to_string())]);
}

#[test]
fn a_stage_ends_when_its_time_is_spent() {
    let Stage { code, steps, report } =
        stage("decode", &program_path(), &[], &[("XTRAIN_STAGE_SECONDS", "1")]);
    assert_eq!(code, Some(1), "{report}");
    assert!(steps.iter().all(|(_, verdict)| verdict == "NOT RUN: no time left"), "{report}");
    assert!(steps.len() > 20, "{report}");
}

/// The steps of a stage may use no more time than a command on a borrowed machine has.
#[test]
fn a_stage_has_less_than_520_seconds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = fs::read_to_string(root.join("scripts/gpu-report.sh")).unwrap();
    let budget = script.split("XTRAIN_STAGE_SECONDS:-").nth(1).and_then(|rest| rest.split('}').next());
    let budget: u32 = budget.unwrap().parse().unwrap();
    // a step that is stopped has five more seconds to end
    assert!(budget + 5 < 520, "{budget}");
}
