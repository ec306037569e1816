//! `xtrain train`: the best weights, early stopping, norms of each layer, events, the learning rate test.
use std::fs;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::cli::{Scratch, refused, text, xtrain};
use crate::commands::{done, parsed, tiny_run};

fn scratch(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    scratch.file("t.txt", &"the cat sat on the mat and the dog sat too\n".repeat(20));
    scratch
}

/// Runs a command that must succeed. Returns its standard error.
#[track_caller]
fn errors(dir: &Path, args: &[&str]) -> String {
    let output = xtrain(dir, args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    text(&output.stderr)
}

fn metrics(run: &Path) -> Vec<Value> {
    fs::read_to_string(run.join("metrics.jsonl")).unwrap().lines().map(parsed).collect()
}

pub(crate) fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The events of a run: their times, and their bytes as text.
pub(crate) fn events(run: &Path) -> Vec<(f64, String)> {
    let bytes = fs::read(run.join("logs/events.out.tfevents.0.xtrain")).unwrap();
    let (mut at, mut records) = (0, Vec::new());
    while at < bytes.len() {
        let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        let record = &bytes[at + 12..at + 12 + length];
        assert_eq!(record[0], 9, "field 1, a number of 8 bytes");
        let time = f64::from_le_bytes(record[1..9].try_into().unwrap());
        records.push((time, String::from_utf8_lossy(record).into_owned()));
        at += 16 + length;
    }
    records
}

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Runs `test`, which compares times of the system's clock, and repeats it if it fails while the clock is set. On a
/// virtual machine, the clock was set back by 80 ms during a test.
pub(crate) fn repeated_if_the_clock_is_set(test: fn()) {
    for _ in 0..3 {
        let (begun, before) = (Instant::now(), now());
        let Err(failure) = std::panic::catch_unwind(test) else { return };
        let set_by = now() - before - begun.elapsed().as_secs_f64();
        if set_by.abs() < 1e-3 {
            std::panic::resume_unwind(failure);
        }
        println!("the clock was set by {set_by} s: the test is repeated");
    }
    panic!("the clock was set during each attempt");
}

/// Whether `times` do not fall and lie between `before` and `after`.
pub(crate) fn are_times_between(times: &[f64], before: f64, after: f64) -> bool {
    times.is_sorted() && times.iter().all(|time| (before..=after).contains(time))
}

#[test]
pub(crate) fn the_best_weights_are_those_of_the_step_with_the_lowest_validation_loss() {
    let scratch = scratch("best");
    let dir = &scratch.0;
    let keys = [
        "train.steps=12",
        "train.eval_every=2",
        "train.save_every=1",
        "train.keep=99",
        "train.learning_rate=0.5",
        "train.schedule=constant",
    ];
    done(
        dir,
        &tiny_run("r", "t.txt", &[&keys[..], &["train.keep_best=true", "train.stats_every=3"]].concat()),
    );
    let loss = |line: &Value| line["val_loss"].as_f64();
    let lines = metrics(&dir.join("r"));
    let evaluated = lines.iter().filter(|line| loss(line).is_some());
    let best = evaluated.min_by(|a, b| loss(a).unwrap().total_cmp(&loss(b).unwrap())).unwrap();
    let step = format!("step_{:06}", best["step"].as_u64().unwrap());
    assert_ne!(step, "step_000012", "the test needs a loss that rises again: {lines:?}");
    assert_eq!(names(&dir.join("r/best/checkpoints")), [&*step], "{lines:?}");
    let weights = |at: &str| fs::read(dir.join(at).join(&step).join("model.safetensors")).unwrap();
    assert_eq!(weights("r/best/checkpoints"), weights("r/checkpoints"));
    done(dir, &["generate", "r/best", "--prompt", "the", "--max-new", "2"]);

    // The options change no bit of the run.
    done(dir, &tiny_run("s", "t.txt", &keys));
    for file in ["model.safetensors", "trainer/optimizer.safetensors", "manifest.json"] {
        let bytes = |run: &str| fs::read(dir.join(run).join("checkpoints/step_000012").join(file)).unwrap();
        assert_eq!(bytes("r"), bytes("s"), "{file}");
    }
    for (line, plain) in lines.iter().zip(metrics(&dir.join("s"))) {
        let mut line = line.as_object().unwrap().clone();
        let squares: f64 = line
            .iter()
            .filter(|(key, _)| key.starts_with("grad_norm/"))
            .map(|(_, norm)| norm.as_f64().unwrap().powi(2))
            .sum();
        let (norm, step) = (line["grad_norm"].as_f64().unwrap(), line["step"].as_u64().unwrap());
        assert_eq!(step % 3 == 0, squares > 0.0, "{line:?}");
        assert!(squares == 0.0 || (squares.sqrt() / norm - 1.0).abs() < 1e-5, "{line:?}");
        let groups = line.keys().filter(|key| key.contains('/')).count();
        assert_eq!(groups, if step % 3 == 0 { 6 } else { 0 }, "embed, layers.0 and norm: {line:?}");
        line.retain(|key, _| !key.contains('/'));
        assert_eq!(Value::Object(line), plain);
    }
}

#[test]
fn a_resume_removes_best_weights_of_steps_that_it_repeats() {
    let scratch = scratch("best-stale");
    let dir = &scratch.0;
    done(dir, &tiny_run("r", "t.txt", &["train.steps=2", "train.eval_every=2", "train.keep_best=true"]));
    let best = dir.join("r/best/checkpoints");
    assert_eq!(names(&best), ["step_000002"]);
    // A killed run has saved the weights of a later step, after the last checkpoint.
    let stale = best.join("step_000050");
    fs::create_dir(&stale).unwrap();
    fs::write(stale.join("model.safetensors"), "").unwrap();
    errors(dir, &["train", "--resume", "r", "--set", "train.steps=3"]);
    let kept = names(&best);
    assert!(kept.iter().all(|name| ["step_000002", "step_000003"].contains(&&**name)), "{kept:?}");
    done(dir, &["generate", "r/best", "--prompt", "the", "--max-new", "2"]);
}

#[test]
#[cfg(unix)]
pub(crate) fn a_killed_run_keeps_the_best_weights_of_its_last_checkpoint() {
    let scratch = scratch("best-killed");
    let dir = &scratch.0;
    let keys = [
        "train.steps=100000",
        "train.eval_every=1",
        "train.save_every=20",
        "train.keep_best=true",
        "train.warmup=1",
    ];
    let mut run = crate::cli::program();
    run.args(tiny_run("r", "t.txt", &[&keys[..], &["train.learning_rate=1e-4", "train.decay=1"]].concat()))
        .current_dir(dir);
    let mut run = run.stderr(std::process::Stdio::null()).spawn().unwrap();
    let steps = |at: &str| -> Vec<u64> {
        let Ok(found) = fs::read_dir(dir.join(at)) else { return Vec::new() };
        let names = found.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| name.strip_prefix("step_")?.parse().ok()).collect()
    };
    // The loss falls at every step, and the weights of steps after the last checkpoint are saved, too.
    let saved = || steps("r/checkpoints").into_iter().max().unwrap_or(0);
    let since = std::time::Instant::now();
    while saved() == 0 || steps("r/best/checkpoints").into_iter().max().unwrap_or(0) < saved() + 4 {
        assert!(since.elapsed().as_secs() < 60, "no best weights after a checkpoint");
        assert_eq!(run.try_wait().unwrap(), None);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    // A resume removes the weights that it would otherwise find twice; with another rate, it does not reach them again.
    let rates = ["train.learning_rate=1e-60", "train.min_learning_rate=1e-60"];
    let (steps_set, saved) = (format!("train.steps={}", saved() + 1), saved());
    let sets = [&rates[..], &[&steps_set]].concat();
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    errors(dir, &[&["train", "--resume", "r"], &sets[..]].concat());
    let best = steps("r/best/checkpoints");
    assert!(
        best.len() == 1 && best[0] <= saved,
        "expected the best weights of the last checkpoint, step {saved} or earlier, found {best:?}"
    );
    done(dir, &["generate", "r/best", "--prompt", "the", "--max-new", "2"]);
}

#[test]
fn options_that_compare_validation_losses_need_comparable_ones() {
    let scratch = scratch("comparable");
    let dir = &scratch.0;
    for key in ["train.patience=2", "train.keep_best=true"] {
        let parts = ["`data.val_fraction` = 0", key.split('=').next().unwrap()];
        refused(dir, &tiny_run("r", "t.txt", &[key, "data.val_fraction=0"]), 2, &parts);
    }
    // A run without a validation split cannot get such an option, but one of an earlier version that has it can go on.
    done(dir, &tiny_run("n", "t.txt", &["train.steps=2", "train.eval_every=1", "data.val_fraction=0"]));
    for key in ["train.patience=2", "train.keep_best=true", "train.eval_tokens=8"] {
        refused(dir, &["train", "--resume", "n", "--set", key], 2, &["0", key.split('=').next().unwrap()]);
    }
    fs::remove_dir_all(dir.join("n/checkpoints/step_000000")).unwrap();
    fs::remove_dir_all(dir.join("n/checkpoints/step_000002")).unwrap();
    let config = fs::read_to_string(dir.join("n/config.toml")).unwrap();
    assert!(config.contains("\npatience = 0\n"), "{config}");
    fs::write(dir.join("n/config.toml"), config.replace("\npatience = 0\n", "\npatience = 2\n")).unwrap();
    done(dir, &["train", "--resume", "n"]);
    done(dir, &tiny_run("r", "t.txt", &["train.steps=2", "train.eval_every=2", "train.patience=9"]));
    let resume = ["train", "--resume", "r", "--set", "train.steps=3", "--set"];
    for (set, key) in
        [("train.eval_every=1", "train.eval_every"), ("train.eval_tokens=16", "train.eval_tokens")]
    {
        let message = format!("cannot change {key} of a run with train.patience");
        refused(dir, &[&resume[..], &[set]].concat(), 2, &[&message, "train.patience=0"]);
    }
    done(dir, &[&resume[..], &["train.eval_every=1", "--set", "train.patience=0"]].concat());
}

#[test]
pub(crate) fn a_lowest_loss_of_other_evaluations_is_forgotten() {
    let scratch = scratch("forgotten");
    let dir = &scratch.0;
    // In f32, this learning rate changes no weight, so no loss is lower than the first one.
    let keys =
        ["train.learning_rate=1e-60", "train.min_learning_rate=1e-60", "train.steps=2", "train.eval_every=1"];
    done(dir, &tiny_run("r", "t.txt", &keys));
    let resume = |sets: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        errors(dir, &[&["train", "--resume", "r"], &sets[..]].concat())
    };
    resume(&["train.steps=4", "train.eval_every=2"]);
    let shown = resume(&["train.steps=20", "train.patience=1", "train.keep_best=true"]);
    assert!(
        shown.contains("note: the weights of step 4, which has the lowest validation loss so far"),
        "{shown}"
    );
    assert!(shown.contains("stopped early: ") && shown.contains(" at step 4\n"), "{shown}");
}

#[test]
fn best_weights_of_other_evaluations_are_not_removed() {
    let scratch = scratch("kept-best");
    let dir = &scratch.0;
    let resume = |sets: &[&'static str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        ["train", "--resume", "r"].into_iter().chain(sets).collect::<Vec<_>>()
    };
    done(dir, &tiny_run("r", "t.txt", &["train.steps=2", "train.eval_every=2", "train.keep_best=true"]));
    done(dir, &resume(&["train.steps=3", "train.eval_every=3", "train.keep_best=false"]));
    let again = resume(&["train.steps=4", "train.keep_best=true"]);
    refused(dir, &again, 2, &["r/best: expected no weights of earlier evaluations", "move the directory"]);
    assert_eq!(names(&dir.join("r/best/checkpoints")), ["step_000002"]);
    fs::rename(dir.join("r/best"), dir.join("earlier")).unwrap();
    done(dir, &again);
    assert!(dir.join("r/best").is_dir());
}

#[test]
fn a_run_without_progress_stops_early_and_a_resume_does_not_restart_it() {
    let scratch = scratch("early");
    let dir = &scratch.0;
    // In f32, this learning rate changes no weight.
    let rates = ["train.learning_rate=1e-60", "train.min_learning_rate=1e-60"];
    let keys = ["train.steps=50", "train.eval_every=2", "train.patience=3", "train.save_every=0"];
    let shown = errors(dir, &tiny_run("r", "t.txt", &[&keys[..], &rates].concat()));
    assert!(
        shown.contains("stopped early: no lower validation loss in 3 evaluations; the lowest is "),
        "{shown}"
    );
    assert!(shown.contains(" at step 2\n"), "{shown}");
    assert_eq!(metrics(&dir.join("r")).len(), 8);
    assert!(dir.join("r/checkpoints/step_000008").is_dir());
    let again = errors(dir, &["train", "--resume", "r"]);
    assert!(again.contains("stopped early"), "{again}");
    assert_eq!(metrics(&dir.join("r")).len(), 8);
    errors(dir, &["train", "--resume", "r", "--set", "train.patience=0", "--set", "train.steps=10"]);
    assert_eq!(metrics(&dir.join("r")).len(), 10);
    refused(
        dir,
        &tiny_run("s", "t.txt", &["train.patience=1", "train.eval_every=0"]),
        2,
        &["`train.patience`", "train.eval_every"],
    );
}

#[test]
fn a_run_writes_an_event_for_each_step() {
    repeated_if_the_clock_is_set(events_of_steps);
}

fn events_of_steps() {
    let scratch = scratch("events");
    let dir = &scratch.0;
    let run = dir.join("r");
    let (first, before) = (now(), now());
    done(dir, &tiny_run("r", "t.txt", &["train.steps=3", "train.stats_every=3"]));
    let after = now();
    let (times, records): (Vec<f64>, Vec<String>) = events(&run).into_iter().unzip();
    assert_eq!(records.len(), 4, "the version and three steps");
    assert_eq!(times[0], 0.0);
    assert!(are_times_between(&times[1..], before, after), "{before}, {times:?}, {after}");
    assert!(!records[2].contains("weight_norm/") && records[3].contains("weight_norm/layers.0"));
    assert!(
        records[1].contains("loss") && !records[1].contains("val_loss") && records[3].contains("val_loss")
    );
    let before = now();
    done(dir, &["train", "--resume", "r", "--set", "train.steps=5"]);
    let after = now();
    let times: Vec<f64> = events(&run).into_iter().map(|(time, _)| time).collect();
    assert_eq!(times.len(), 6, "a resume writes the earlier steps again");
    assert!(are_times_between(&times[4..], before, after), "{before}, {times:?}, {after}");
    // a step of the first session is dated back from its end by the time that the steps after it took
    assert!(are_times_between(&times[1..4], first - 1e-3, before), "{first}, {times:?}, {before}");
    let seconds = |key: &str, line: &str| parsed(line)[key].as_f64().unwrap_or(0.0);
    let timings = fs::read_to_string(run.join("timings.jsonl")).unwrap();
    let took: Vec<f64> = timings
        .lines()
        .map(|line| {
            ["step_time", "eval_time", "sample_time", "save_time"].iter().map(|key| seconds(key, line)).sum()
        })
        .collect();
    for step in 1..3 {
        let between = times[step + 1] - times[step];
        assert!((between - took[step]).abs() < 1e-3, "step {step}: {between} s, {took:?}");
    }
}

#[test]
fn the_learning_rate_test_suggests_a_rate_and_writes_nothing() {
    let scratch = scratch("lrfind");
    let args = [
        &["train", "--lr-find=40", "--data", "t.txt"][..],
        &["--set", "model.dim=16", "--set", "train.batch=2"],
    ]
    .concat();
    let args = [&args[..], &["--set", "train.context=8", "--set", "model.n_heads=2"]].concat();
    let shown = done(&scratch.0, &args);
    assert!(shown.contains("learning rate test") && shown.contains("--set train.learning_rate="), "{shown}");
    assert_eq!(done(&scratch.0, &args), shown, "a function of configuration and seed");
    assert_eq!(names(&scratch.0), ["t.txt"]);
    refused(&scratch.0, &["train", "--lr-find=1", "--data", "t.txt"], 2, &["--lr-find", "10"]);
    refused(&scratch.0, &["train", "--lr-find", "--resume", "r"], 2, &["--lr-find", "--resume"]);
}
