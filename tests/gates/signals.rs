//! After a signal a run finishes and saves its step, and resumes bit-identically.
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::cli::{Scratch, program};
use crate::kill::{bytes, checkpoints, train, write_text};

const STEPS: u64 = 1500;

/// The number of logged steps of a run.
fn logged(run: &Path) -> u64 {
    std::fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default().lines().count() as u64
}

fn send(signal: &str, child: &Child) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {}", child.id())]).status().unwrap();
    assert!(sent.success(), "the run ended before SIG{signal}");
}

/// Returns an error unless the session of the run, and `xtrain watch`, say that a signal stopped it.
pub(crate) fn ended_by_a_signal(scratch: &Path, run: &str) -> Result<(), String> {
    let session = std::fs::read_to_string(scratch.join(run).join("logs/session.json")).unwrap();
    let end = &crate::commands::parsed(&session)["end"];
    let shown = crate::cli::ok(scratch, &["watch", run]);
    let is_stopped = end["outcome"] == "stopped" && end.get("message").is_none();
    (is_stopped && shown.ends_with("; stopped\n")).then_some(()).ok_or(format!("{end}, {shown}"))
}

/// Sends `signal` to a run in the middle of its training. Returns an error unless it ends and resumes correctly.
fn stopped(scratch: &Path, signal: &'static str, code: i32) -> Result<(), String> {
    let run = scratch.join(signal);
    // saves happen only at step 0, at the last step and after the signal
    let begin = ["--data", "text.txt", "--set", "train.save_every=0", "--run", signal];
    let mut child = train(scratch, STEPS, &begin);
    let since = Instant::now();
    while logged(&run) < 3 {
        assert!(since.elapsed() < Duration::from_secs(120), "no step was logged");
        std::thread::sleep(Duration::from_millis(1));
    }
    send(signal, &child);
    let status = child.wait().unwrap();
    if status.code() != Some(code) {
        return Err(format!("SIG{signal}: ended with {status}, want {code}"));
    }
    ended_by_a_signal(scratch, signal).map_err(|found| format!("SIG{signal}: {found}"))?;
    let (steps, saved) = (logged(&run), checkpoints(&run));
    if steps >= STEPS || saved != ["step_000000".into(), format!("step_{steps:06}")] {
        return Err(format!("SIG{signal}: {steps} steps logged, saved {saved:?}"));
    }
    let resumed = train(scratch, STEPS, &["--resume", signal, "--set", "train.save_every=0"]);
    let status = { resumed }.wait().unwrap();
    if !status.success() {
        return Err(format!("SIG{signal}: the resumed run ended with {status}"));
    }
    let whole = bytes(&scratch.join("whole"), STEPS);
    match crate::difference::first_file(&bytes(&run, STEPS), &whole) {
        None => Ok(()),
        Some(difference) => Err(format!("SIG{signal} after {steps} steps: {difference}")),
    }
}

#[cfg(unix)]
#[test]
fn a_signal_finishes_and_saves_the_step_and_the_run_resumes_bit_identically() {
    let scratch = Scratch::new("signals");
    write_text(&scratch.0);
    let begin = ["--data", "text.txt", "--set", "train.save_every=0", "--run", "whole"];
    assert!(train(&scratch.0, STEPS, &begin).wait().unwrap().success());
    stopped(&scratch.0, "INT", 130).unwrap();
    stopped(&scratch.0, "TERM", 143).unwrap();
    #[cfg(target_os = "linux")]
    stopped(&scratch.0, "HUP", 129).unwrap();
    // the check is not vacuous: it finds a signal that is not handled
    let seen = stopped(&scratch.0, "KILL", 137).unwrap_err();
    assert!(seen.contains("want 137"), "{seen}");
}

/// A process that is killed on drop.
struct Process(Child);

impl Process {
    fn wait(&mut self) -> ExitStatus {
        let since = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(since.elapsed() < Duration::from_secs(120), "the process does not exit");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends `signal` to a load benchmark as soon as its directory holds a name for which `exists` is true. Returns the
/// exit code and a file that is left.
fn stopped_loading(
    preset: &str,
    exists: fn(&str) -> bool,
    signal: &str,
) -> (Option<i32>, Option<std::ffi::OsString>) {
    let scratch = Scratch::new(&format!("signal-load-{signal}"));
    let preset = format!("model.preset={preset}");
    let mut load = program();
    load.args(["bench", "load", "--repeats", "1000000", "--set", &preset]).env("TMPDIR", &scratch.0);
    let mut load = Process(load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let names = |dir: &Path| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).collect::<Vec<_>>()
    };
    let since = Instant::now();
    while !names(&scratch.0)
        .iter()
        .any(|made| names(&scratch.0.join(made)).iter().any(|name| exists(&name.to_string_lossy())))
    {
        assert!(since.elapsed() < Duration::from_secs(120), "nothing was written: {:?}", names(&scratch.0));
        std::thread::sleep(Duration::from_millis(1));
    }
    // into the middle of the work
    std::thread::sleep(Duration::from_millis(50));
    send(signal, &load.0);
    (load.wait().code(), names(&scratch.0).pop())
}

#[cfg(unix)]
#[test]
fn a_signal_to_the_load_benchmark_removes_its_checkpoint() {
    let written = |name: &str| name.starts_with("model");
    let opened = |name: &str| name == "model";
    // first: while the checkpoint is written or opened for the first time; second: while it is opened
    assert_eq!(stopped_loading("base-30m", written, "INT"), (Some(130), None));
    assert_eq!(stopped_loading("tiny-1m", opened, "TERM"), (Some(143), None));
    // the check is not vacuous: it finds a signal that is not handled
    assert!(matches!(stopped_loading("tiny-1m", opened, "KILL"), (None, Some(_))));
}
