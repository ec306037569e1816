//! `xtrain watch` without a terminal: lines while a run grows, until it ends.
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::json;

use crate::cli::{Scratch, ok, program, refused, xtrain};

/// The session of a process that ended with `outcome`.
fn session(outcome: &str) -> String {
    let machine = json!({"version": "0", "commit": "x", "device": "cpu", "system": "linux"});
    let end = json!({"time": 1, "outcome": outcome, "message": "the loss is not finite"});
    json!({"pid": 1, "started": 0, "first_step": 0, "machine": machine, "end": end}).to_string()
}

#[test]
fn watch_follows_a_run_that_does_not_exist_yet_until_it_fails() {
    let scratch = Scratch::new("watch");
    let mut watch = program()
        .args(["watch", "runs/a", "--interval", "0.05"])
        .current_dir(&scratch.0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    // Lines with other values may come between: a poll can see a part of the writes.
    let mut shows = |want: &str| {
        let found =
            lines.by_ref().inspect(|line| assert_ne!(line, "a: step 0")).find(|line| line.contains(want));
        assert!(found.is_some(), "no line with {want:?}");
        found.unwrap()
    };
    assert_eq!(shows("waiting"), "waiting for runs/a");
    // another directory is not a run at step 0
    scratch.file("runs/a/config.json", "{}");
    std::thread::sleep(std::time::Duration::from_millis(200));
    scratch.file("runs/a/config.toml", "[train]\nsteps = 8\n");
    let log = scratch.file("runs/a/metrics.jsonl", "{\"step\":1,\"loss\":4.0}\n{\"step\":2,\"lo");
    assert_eq!(shows("step 1/8"), "a: step 1/8 (12 %), loss 4.000");
    let mut log = fs::OpenOptions::new().append(true).open(log).unwrap();
    log.write_all(b"ss\":3.5,\"val_loss\":3.75}\n").unwrap();
    assert_eq!(shows("step 2/8"), "a: step 2/8 (25 %), loss 3.500, validation loss 3.750");
    // A resumed run truncates its logs.
    log.set_len(0).unwrap();
    log.write_all(b"{\"step\":1,\"loss\":4.0}\n").unwrap();
    shows("step 1/8");
    scratch.file("runs/a/logs/session.json", &session("failed"));
    assert_eq!(shows("failed"), "a: step 1/8 (12 %), loss 4.000; failed: the loss is not finite");
    assert_eq!(watch.wait().unwrap().code(), Some(0));
}

#[test]
pub(crate) fn watch_of_a_run_that_has_ended_is_one_line() {
    let scratch = Scratch::new("watched");
    scratch.file("a/metrics.jsonl", "{\"step\":1,\"loss\":4.0}\n");
    scratch.file("a/logs/session.json", &session("done"));
    assert_eq!(ok(&scratch.0, &["watch", "a"]), "a: step 1, loss 4.000; finished\n");
    scratch.file("imported/checkpoints/step_000000/manifest.json", "{}");
    assert_eq!(ok(&scratch.0, &["watch", "imported"]), "imported: step 0; not running\n");
    // a run of `xtrain grpo` that stopped in its base model
    scratch.file("g/config.toml", "[grpo]\nsteps = 8\n");
    scratch.file("g/base/logs/session.json", &session("stopped"));
    let shown = ok(&scratch.0, &["watch", "g"]);
    assert!(shown.ends_with("; stopped\n") && shown.lines().count() == 1, "{shown}");
    let other = "hint: expected the directory of a run";
    refused(&scratch.0, &["report", "g"], 66, &["g/metrics.jsonl: no such file", other]);
    scratch.file("g/base/metrics.jsonl", "{\"step\":1,\"loss\":4.0}\n");
    refused(&scratch.0, &["report", "g"], 66, &["g/metrics.jsonl: no such file", "xtrain report g/base"]);
    refused(&scratch.0, &["plot", "g"], 66, &["g/metrics.jsonl: no such file", "xtrain plot g/base"]);
    scratch.file("g/base/checkpoints/step_000001/manifest.json", "{}");
    let base = "hint: only its base model has a checkpoint: g/base";
    refused(&scratch.0, &["inspect", "g"], 66, &["g/config.json not found", base]);
    std::fs::create_dir(scratch.0.join("g/checkpoints")).unwrap();
    refused(&scratch.0, &["inspect", "g"], 66, &["g/checkpoints not found", base]);
    scratch.file("a/metrics.jsonl", "nonsense\n");
    refused(&scratch.0, &["watch", "a"], 65, &["metrics.jsonl:1: "]);
    for command in ["watch", "plot", "report"] {
        let parts = ["a/metrics.jsonl: expected the directory of a run, found a file"];
        refused(&scratch.0, &[command, "a/metrics.jsonl"], 74, &parts);
    }
    refused(&scratch.0, &["watch", "a", "--interval", "0"], 2, &["--interval", "from 0.05 to 3600"]);
}

#[test]
fn damaged_lines_of_a_log_are_skipped_with_one_warning() {
    let scratch = Scratch::new("damaged-lines");
    let lines = "{\"step\":1,\"loss\":4.0}\nxx\n[3]\n{\"step\":4,\"loss\":3.0}\n";
    scratch.file("a/metrics.jsonl", lines);
    scratch.file("a/logs/session.json", &session("done"));
    for command in ["watch", "plot", "report"] {
        let output = xtrain(&scratch.0, &[command, "a"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{command}: {errors}");
        let warning = "warning: a/metrics.jsonl: skipped 2 damaged lines, the first is line 2\n";
        assert_eq!(errors, warning, "{command}");
    }
}

#[test]
#[cfg(unix)]
fn names_keys_and_messages_of_a_run_do_not_control_the_terminal() {
    let scratch = Scratch::new("escapes");
    let (run, key) = ("a\u{1b}[2J", "loss\u{1b}[2J");
    for run in [run, "b"] {
        scratch.file(
            &format!("{run}/metrics.jsonl"),
            &format!("{}\n", json!({"step": 1, "loss": 4.0, key: 1.0})),
        );
        let session = session("failed").replace("the loss", "\\u001b[2J");
        scratch.file(&format!("{run}/logs/session.json"), &session);
    }
    for args in [
        &["watch", run][..],
        &["watch", "b"],
        &["plot", run],
        &["plot", "b", "--keys", key, "--out", "b.svg"],
        &["plot", run, "b"],
    ] {
        let shown = ok(&scratch.0, args);
        assert!(shown.contains("[2J") && !shown.contains('\u{1b}'), "{args:?}: {shown}");
    }
    refused(&scratch.0, &["plot", "b", "--keys", "los"], 2, &["`loss"]);
    refused(&scratch.0, &["plot", "b", "--keys", "x"], 2, &["available keys: loss, loss\u{fffd}[2J"]);
}
