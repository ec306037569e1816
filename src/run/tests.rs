//! Existing directories, truncated and invalid logs.
use std::fs;
use std::path::Path;

use serde_json::json;
use tempfile::tempdir;

use super::*;
use crate::config::RunConfig;

#[test]
fn a_new_run_has_its_configuration_and_cannot_be_created_twice() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("runs/a");
    let run = RunDir::create(&path, &RunConfig::default().to_toml()).unwrap();
    assert_eq!(fs::read_to_string(run.config()).unwrap(), RunConfig::default().to_toml());
    assert!(path.join("checkpoints").is_dir() && path.join("logs").is_dir());
    assert_eq!(run.name(), "a");
    assert!(matches!(RunDir::create(&path, &RunConfig::default().to_toml()), Err(Error::Exists { .. })));
    assert_eq!(RunDir::open(&path).unwrap(), run);
    assert!(matches!(RunDir::open(&path.join("b")), Err(Error::Missing { .. })));
}

#[test]
fn a_resumed_log_is_identical_to_an_uninterrupted_one() {
    let dir = tempdir().unwrap();
    let (whole, cut) = (dir.path().join("whole.jsonl"), dir.path().join("cut.jsonl"));
    let record = |step: u64| json!({ "step": step, "loss": 1.0 / step as f64 });
    let write = |path: &Path, after: u64, to: u64| {
        let mut log = JsonLines::after(path, after).unwrap();
        for step in after + 1..=to {
            log.write(&record(step)).unwrap();
        }
        log.sync().unwrap();
    };
    write(&whole, 0, 20);
    let want = fs::read(&whole).unwrap();
    for torn in 0..30 {
        write(&cut, 0, 13);
        let mut bytes = fs::read(&cut).unwrap();
        bytes.truncate(bytes.len() - torn);
        fs::write(&cut, bytes).unwrap();
        write(&cut, 8, 20);
        assert_eq!(fs::read(&cut).unwrap(), want, "torn by {torn} bytes");
    }
}

#[test]
fn damaged_lines_of_a_log_are_set_aside_and_the_others_are_kept() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("timings.jsonl");
    let line = |step: u64| format!("{{\"step\":{step},\"x\":1}}\n");
    let whole: String = (1..=6).map(line).collect();
    for (damage, with, steps, moved) in [
        ("", "", vec![1, 2, 3, 4], 0),
        ("{\"step\":2", "{\"stop\":2", vec![1, 3, 4], 1),
        ("{\"step\":2", "{\"step\":9", vec![1, 3, 4], 1),
        ("{\"step\":3", "[\"step\":1", vec![1, 2, 4], 1),
        ("{\"step\":4", "\u{0}\"step\":4", vec![1, 2, 3], 1),
        ("{\"step\":5", "xx", vec![1, 2, 3, 4], 0),
        ("}\n{\"step\":3", "},{\"step\":3", vec![1, 4], 1),
    ] {
        let _ = fs::remove_file(dir.path().join("timings.jsonl.damaged"));
        fs::write(&path, whole.replacen(damage, with, 1)).unwrap();
        let log = JsonLines::after(&path, 4).unwrap();
        let kept: String = steps.into_iter().map(line).collect();
        assert_eq!(fs::read_to_string(&path).unwrap(), kept, "{with}");
        let aside = log.set_aside().map_or(0, |aside| aside.lines);
        let text = fs::read_to_string(dir.path().join("timings.jsonl.damaged")).unwrap_or_default();
        assert_eq!((aside, text.lines().count()), (moved, moved), "{with}: {text}");
    }
    // A log that is appended to after it was repaired has its lines in order.
    fs::write(&path, whole.replacen("{\"step\":2", "{", 1)).unwrap();
    JsonLines::after(&path, 4).unwrap().write(&json!({ "step": 5, "x": 1 })).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), [1, 3, 4, 5].map(line).concat());
}

#[test]
fn a_log_without_a_valid_line_is_reported_with_file_and_line() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("metrics.jsonl");
    for (text, line, part) in [
        ("", 1, "empty"),
        ("xx\n[2]\n", 1, "text that is not JSON at column 1"),
        ("\n", 1, "no text"),
        ("[1]\n", 1, "a JSON object"),
        ("{\"loss\":1}\n", 1, "`step`"),
        ("{\"step\":-1}\n", 1, "`step`"),
        ("{\"step\":2,\"lo", 1, "JSON that ends inside a string"),
    ] {
        fs::write(&path, text).unwrap();
        let message = Metrics::read(&path).unwrap_err().to_string();
        assert!(
            message.contains(&format!("metrics.jsonl:{line}: ")) && message.contains(part),
            "{text:?}: {message}"
        );
    }
    let deep = format!("{{\"step\":1,\"x\":{}}}\n", "[".repeat(100_000));
    fs::write(&path, deep).unwrap();
    assert!(matches!(Metrics::read(&path), Err(Error::Line { line: 1, .. })));
}

#[test]
fn damaged_lines_are_skipped_and_an_unfinished_one_is_none() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("metrics.jsonl");
    let valid = |step: u64| format!("{{\"step\":{step},\"loss\":1}}\n");
    for (damage, lines) in
        [("xx\n", "1 damaged line"), ("\n[1]\n{\"loss\":1}\n", "3 damaged lines"), ("", "")]
    {
        fs::write(&path, valid(1) + damage + &valid(5) + "{\"step\":6,\"lo").unwrap();
        let metrics = Metrics::read(&path).unwrap();
        assert_eq!(metrics.curve("loss"), Some(&[(1.0, 1.0), (5.0, 1.0)][..]), "{damage:?}");
        let warning = metrics.skipped().map(ToString::to_string);
        let want = format!("{}: skipped {lines}, the first is line 2", path.display());
        assert_eq!(warning, (!damage.is_empty()).then_some(want), "{damage:?}");
        #[cfg(feature = "faults")]
        {
            use crate::tensor::faults::{self, Fault};
            let metrics = faults::with(Fault::SkippedLinesUnreported, || Metrics::read(&path)).unwrap();
            assert_eq!(metrics.skipped(), None);
        }
    }
}

#[test]
fn a_value_that_is_not_a_number_leaves_a_gap() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("metrics.jsonl");
    let mut log = JsonLines::after(&path, 0).unwrap();
    for (step, loss) in [(1, 2.0), (2, f64::NAN), (3, 1.0)] {
        log.write(&json!({ "step": step, "loss": loss })).unwrap();
    }
    let metrics = Metrics::read(&path).unwrap();
    assert_eq!(metrics.keys().collect::<Vec<_>>(), ["loss"]);
    assert_eq!(metrics.curve("loss"), Some(&[(1.0, 2.0), (3.0, 1.0)][..]));
    assert_eq!(metrics.curve("val_loss"), None);
}

#[test]
fn the_remaining_time_is_estimated_from_the_last_50_steps() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a");
    let run = RunDir::create(&path, "[train]\nsteps = 100\n").unwrap();
    let (mut metrics, mut timings) = run.logs_after(0).unwrap();
    for step in 1..=60u64 {
        metrics.write(&json!({ "step": step, "loss": 1.0 })).unwrap();
        let seconds = if step > 10 { 2.0 } else { 500.0 };
        timings.write(&json!({ "step": step, "step_time": seconds })).unwrap();
        if step == 5 {
            assert_eq!(RunView::read(&run).unwrap().seconds_left(), Some(95.0 * 500.0));
        }
    }
    assert_eq!(RunView::read(&run).unwrap().seconds_left(), Some(40.0 * 2.0));
}
