//! A run without a checkpoint is written by the process that holds its lock.
use std::fs;
#[cfg(target_os = "linux")]
use std::io::{BufRead, BufReader};
#[cfg(target_os = "linux")]
use std::process::{Child, Command, Stdio};

#[cfg(target_os = "linux")]
use crate::cli::program;
use crate::cli::{Scratch, refused, text, xtrain};
use crate::commands::{done, tiny_run};

/// A run that was stopped before its first checkpoint, on `bytes` bytes of text.
fn without_checkpoint(name: &str, bytes: usize) -> Scratch {
    let scratch = Scratch::new(name);
    scratch.file("t.txt", &"The cat sat on the mat. ".repeat(bytes / 24));
    done(&scratch.0, &tiny_run("r", "t.txt", &["train.steps=2"]));
    remove_checkpoints(&scratch);
    scratch
}

/// Removes the checkpoints of the run `r`, and what it writes before them.
fn remove_checkpoints(scratch: &Scratch) {
    let run = scratch.0.join("r");
    for entry in fs::read_dir(run.join("checkpoints")).unwrap() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    for file in ["data.json", "metrics.jsonl", "timings.jsonl"] {
        let _ = fs::remove_file(run.join(file));
    }
}

#[test]
pub(crate) fn a_resume_without_the_lock_writes_nothing() {
    let scratch = without_checkpoint("train-locked", 2400);
    let config = || fs::read_to_string(scratch.0.join("r/config.toml")).unwrap();
    let before = config();
    let held = fs::File::open(scratch.0.join("r/lock")).unwrap();
    held.lock().unwrap();
    let resume = ["train", "--resume", "r", "--set", "train.steps=3"];
    let output = xtrain(&scratch.0, &resume);
    let errors = text(&output.stderr);
    assert!(errors.contains("lock is held by another process"), "{errors}");
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert_eq!(config(), before, "the configuration was replaced");
    assert!(!scratch.0.join("r/data.json").exists());
    drop(held);
    done(&scratch.0, &resume);
    assert!(config().contains("\nsteps = 3\n") && scratch.0.join("r/checkpoints/step_000003").is_dir());
}

#[test]
fn the_directory_of_a_start_that_was_interrupted_is_named_as_such() {
    let scratch = Scratch::new("train-interrupted");
    scratch.file("t.txt", "The cat sat on the mat.");
    for dir in ["r/checkpoints", "r/logs"] {
        fs::create_dir_all(scratch.0.join(dir)).unwrap();
        let start =
            "hint: the start of a run was interrupted there; remove it, or use another directory: --run DIR";
        refused(&scratch.0, &tiny_run("r", "t.txt", &["train.steps=2"]), 2, &[start]);
        let found =
            ["found one whose start was interrupted", "hint: remove the directory, and start the run again"];
        refused(&scratch.0, &["train", "--resume", "r"], 66, &found);
    }
    scratch.file("r/logs/notes.txt", "mine");
    let other = ["found one that is not empty", "hint: to use another directory"];
    refused(&scratch.0, &tiny_run("r", "t.txt", &["train.steps=2"]), 2, &other);
}

/// A process that is stopped and killed with the test.
#[cfg(target_os = "linux")]
struct Paused(Child);

#[cfg(target_os = "linux")]
impl Drop for Paused {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A resume that has found no checkpoint in the run `r` and is paused while it reads its data, before it locks the run.
#[cfg(target_os = "linux")]
fn paused_resume(scratch: &Scratch) -> (Paused, impl BufRead + use<>) {
    for _ in 0..20 {
        let mut command = program();
        command.current_dir(&scratch.0).args(["train", "--resume", "r"]).stdout(Stdio::null());
        let mut child = Paused(command.stderr(Stdio::piped()).spawn().unwrap());
        let mut errors = BufReader::new(child.0.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("it has no checkpoint yet") {
            line.clear();
            assert!(errors.read_line(&mut line).unwrap() > 0, "the resume ended");
        }
        signal("STOP", &child);
        let lock = fs::File::open(scratch.0.join("r/lock")).unwrap();
        if lock.try_lock().is_ok() && !scratch.0.join("r/checkpoints/step_000000").exists() {
            return (child, errors);
        }
        drop(child);
        remove_checkpoints(scratch);
    }
    panic!("every resume had the lock before it was paused");
}

#[cfg(target_os = "linux")]
fn signal(name: &str, child: &Paused) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.0.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
#[cfg(target_os = "linux")]
pub(crate) fn a_run_that_another_process_has_trained_meanwhile_does_not_start_again() {
    let scratch = without_checkpoint("train-meanwhile", 24 << 20);
    let (mut child, errors) = paused_resume(&scratch);
    done(&scratch.0, &["train", "--resume", "r"]);
    let metrics = || fs::read_to_string(scratch.0.join("r/metrics.jsonl")).unwrap();
    let before = metrics();
    signal("CONT", &child);
    let errors: Vec<String> = errors.lines().map(Result::unwrap).collect();
    let (status, errors) = (child.0.wait().unwrap(), errors.join("\n"));
    assert_eq!(status.code(), Some(2), "the resume was not refused: {errors}");
    for part in [
        "r: expected no checkpoint, found one that another process saved meanwhile",
        "hint: to resume it: xtrain train --resume r",
    ] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
    assert_eq!(metrics(), before);
    assert!(done(&scratch.0, &["train", "--resume", "r"]).contains("complete at step 2"));
}
