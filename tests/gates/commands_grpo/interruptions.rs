//! Kills and signals: the files of a resumed run are those of an uninterrupted one.
use std::fs;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use xtrain::tensor::rng::{Purpose, uniform_u64};
use xtrain::tensor::testing::times;

use super::{
    COMPLETIONS, REWARD, STEPS, TASK, assert_equal, bytes, finish, grpo, lines, names, resume, scratch,
    start, succeeded, write_reward,
};
use crate::cli::{Scratch, refused, text, xtrain};

/// What a reward program runs for each line to make it slow and visible: marks before and after a wait.
const SLOW: &str = "echo start >> calls-$PPID; sleep 0.01; echo end >> calls-$PPID";

/// The number of `start` and `end` marks of the reward program of a process.
fn calls(scratch: &Scratch, child: &Child) -> [usize; 2] {
    let text = fs::read_to_string(scratch.0.join(format!("calls-{}", child.id()))).unwrap_or_default();
    ["start", "end"].map(|mark| text.lines().filter(|line| *line == mark).count())
}

#[test]
fn a_run_killed_at_random_instants_ends_with_the_bytes_of_an_uninterrupted_run() {
    let (min_kills, min_scoring) = (times(20, 200), times(5, 50));
    let scratch = scratch("kill", SLOW);
    let begin = [&TASK[..], &REWARD].concat();
    finish(&scratch, "whole", &REWARD);
    let want = bytes(&scratch.0.join("whole"));
    let run = scratch.0.join("killed");
    let start_or_resume = || {
        if run.join("config.toml").is_file() {
            return start(&scratch, &["--resume", "killed", "--threads", "1"]);
        }
        let _ = fs::remove_dir_all(&run);
        start(&scratch, &[&begin[..], &["--run", "killed"]].concat())
    };
    let (mut kills, mut scoring, mut rounds) = (0, 0, 0);
    // as soon as the first files exist
    for file in
        ["config.toml", "base", "base/config.toml", "base/corpus.tok", "base/data.json", "base/lock", "lock"]
    {
        let mut child = start_or_resume();
        while child.try_wait().unwrap().is_none() && !run.join(file).exists() {
            std::thread::sleep(Duration::from_micros(200));
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success(), "{file}");
        kills += 1;
    }
    while kills < min_kills || scoring < min_scoring {
        rounds += 1;
        assert!(rounds <= 20 * min_kills, "{kills} kills, {scoring} of them while completions were scored");
        let mut child = start_or_resume();
        // alternating: at any instant, and while a completion is scored
        let drawn = uniform_u64(12, rounds, 0, Purpose::Prompts);
        let due = Instant::now() + Duration::from_millis(2 + drawn % 200);
        let marks = 1 + (drawn % 14) as usize;
        while child.try_wait().unwrap().is_none() {
            let [start, end] = calls(&scratch, &child);
            if (rounds % 2 == 0 && Instant::now() >= due)
                || (rounds % 2 == 1 && start >= marks && start > end)
            {
                break;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        if let Some(status) = child.try_wait().unwrap() {
            let output = child.wait_with_output().unwrap();
            assert!(status.success(), "round {rounds} ended with {status}: {}", text(&output.stderr));
            // finished before it was killed: start again
            fs::remove_dir_all(&run).unwrap();
            continue;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        let [start, end] = calls(&scratch, &child);
        scoring += u64::from(start > end);
    }
    let output = start_or_resume().wait_with_output().unwrap();
    succeeded(&output);
    println!("grpo: {kills} kills, {scoring} of them while completions were scored");
    assert_equal(&want, &run, &format!("{kills} kills"));
}

/// Sends SIGINT to a run as soon as a log of it has three lines; checks exit code and hint.
fn interrupted(scratch: &Scratch, run: &str, log: &str, more: &[&str]) {
    let child = start(scratch, &[&TASK[..], &["--run", run], more].concat());
    let since = Instant::now();
    while fs::read_to_string(scratch.0.join(run).join(log)).unwrap_or_default().lines().count() < 3 {
        assert!(since.elapsed() < Duration::from_secs(60), "no step was logged");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    let hint = format!("hint: to resume: xtrain grpo --resume {run}");
    assert!(errors.contains("stopped by a signal; checkpoint saved"), "{errors}");
    assert!(!errors.contains("error: "), "{errors}");
    assert_eq!(errors.lines().last(), Some(hint.as_str()), "{errors}");
    let logged = format!("{run}/{log}");
    let stopped = logged.rsplit_once('/').unwrap().0;
    crate::signals::ended_by_a_signal(&scratch.0, stopped).unwrap();
}

#[test]
fn a_resumed_run_does_not_repeat_its_warnings() {
    let scratch = scratch("warnings", &format!("if [ $n = {} ]; then exit 1; fi", COMPLETIONS + 1));
    let keys = ["grpo.max_completion_length=1", "grpo.eval_every=0"];
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", *key]).collect();
    let output = xtrain(&scratch.0, &[&grpo(&TASK)[..], &["--run", "r"], &REWARD, &sets].concat());
    let (warning, errors) = ("every completion of this step reached the length limit", text(&output.stderr));
    assert_eq!(output.status.code(), Some(65), "{errors}");
    assert!(errors.contains(&format!("warning at step 1: {warning}")), "{errors}");
    write_reward(&scratch, "");
    let errors = resume(&scratch, "r");
    assert!(!errors.contains(warning), "{errors}");
}

#[test]
pub(crate) fn ctrl_c_saves_and_the_hint_resumes_to_the_same_bytes() {
    let scratch = scratch("signal", SLOW);
    // saves happen only at step 0, at the last step and after the signal
    let reward = [&REWARD[..], &["--set", "grpo.save_every=0"]].concat();
    finish(&scratch, "whole", &reward);
    let want = bytes(&scratch.0.join("whole"));
    interrupted(&scratch, "r", "metrics.jsonl", &reward);
    let run = scratch.0.join("r");
    let (saved, logged) = (names(&run.join("checkpoints")), lines(&run.join("metrics.jsonl")));
    let step = logged.last().unwrap()["step"].as_u64().unwrap();
    assert!((2..STEPS).contains(&step), "{step}");
    assert_eq!(saved, ["step_000000".to_string(), format!("step_{step:06}")]);
    // of a step that was sampled after the last checkpoint, before the run was killed
    let later = run.join("rollouts/step_000099.jsonl");
    fs::write(&later, "").unwrap();
    resume(&scratch, "r");
    assert!(!later.exists(), "the completions of a later step were kept");
    assert_equal(&want, &run, "after SIGINT");
    // while the base model is trained
    let base = ["--set", "train.steps=2000", "--set", "train.save_every=0", "--set", "grpo.eval_every=0"];
    interrupted(&scratch, "b", "base/metrics.jsonl", &base);
    assert!(!scratch.0.join("b/metrics.jsonl").exists());
    resume(&scratch, "b");
    assert_eq!(lines(&scratch.0.join("b/metrics.jsonl")).len(), 5);
    // a finished run has nothing left to do, and cannot continue in another way
    resume(&scratch, "r");
    assert_equal(&want, &run, "after a resume without steps");
    let more = ["grpo", "--resume", "r", "--steps", "8", "--set", "grpo.temperature=0.5"];
    refused(&scratch.0, &more, 2, &["--resume cannot change grpo.temperature", "grpo.micro_batch"]);
}

#[test]
fn a_resume_that_is_killed_after_it_changed_the_configuration_before_the_first_step_resumes() {
    let scratch = scratch("changed-start", "exit 1");
    // many completions: what is allocated before the first step takes a while
    let keys = ["grpo.eval_every=0", "grpo.steps=1", "grpo.prompts_per_step=32", "grpo.num_generations=64"];
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    let run = [&TASK[..], &["--run", "r"], &REWARD, &sets].concat();
    assert_eq!(xtrain(&scratch.0, &grpo(&run)).status.code(), Some(65));
    assert_eq!(names(&scratch.0.join("r/checkpoints")), ["step_000000"]);
    let config = || fs::read_to_string(scratch.0.join("r/config.toml")).unwrap();
    let mut child = start(&scratch, &["--resume", "r", "--threads", "1", "--set", "grpo.learning_rate=0.25"]);
    while !config().contains("\nlearning_rate = 0.25\n") && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_micros(500));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    write_reward(&scratch, "");
    resume(&scratch, "r");
    assert!(config().contains("\nlearning_rate = 0.25\n"), "{}", config());
}

#[test]
pub(crate) fn a_resume_without_the_lock_leaves_the_session_of_the_other_process() {
    let scratch = scratch("locked", "");
    finish(&scratch, "r", &[&REWARD[..], &["--set", "grpo.eval_every=0"]].concat());
    let session = scratch.0.join("r/logs/session.json");
    let before = fs::read_to_string(&session).unwrap();
    let log = scratch.0.join("r/logs/reward-0.log");
    fs::remove_file(&log).unwrap();
    let held = fs::File::open(scratch.0.join("r/lock")).unwrap();
    held.lock().unwrap();
    refused(&scratch.0, &["grpo", "--resume", "r"], 2, &["r/lock is held by another process"]);
    assert_eq!(fs::read_to_string(&session).unwrap(), before, "the session");
    assert!(!log.exists(), "a reward program was started");
}

#[test]
pub(crate) fn a_resume_reads_the_same_prompts() {
    let scratch = scratch("prompts", "if [ $n = 5 ]; then exit 1; fi");
    finish(&scratch, "base", &["--set", "grpo.steps=1", "--set", "grpo.eval_every=0"]);
    let files = [("p.jsonl", "{\"prompt\": \"ab\"}\n"), ("e.jsonl", "{\"prompt\": \"cd\"}\n")];
    files.iter().for_each(|(name, text)| drop(scratch.file(name, text)));
    let keys = ["grpo.eval_prompts=e.jsonl", "grpo.prompts_per_step=1", "grpo.steps=2"];
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", *key]).collect();
    let start = ["-c", "c.toml", "--init", "base", "--prompts", "p.jsonl", "--run", "r", "--threads", "1"];
    let output = xtrain(&scratch.0, &[&grpo(&start)[..], &REWARD, &sets].concat());
    assert_eq!(output.status.code(), Some(65), "{}", text(&output.stderr));
    write_reward(&scratch, "");
    for (name, text) in files {
        scratch.file(name, &text.replace(['b', 'd'], "x"));
        refused(&scratch.0, &["grpo", "--resume", "r"], 65, &[name, "expected sha256:"]);
        scratch.file(name, text);
    }
    let removed = ["grpo", "--resume", "r", "--set", "grpo.eval_prompts="];
    let output = xtrain(&scratch.0, &removed);
    let errors = text(&output.stderr);
    let part = "grpo.eval_prompts: r names a file of held-out prompts, and a resume cannot remove it";
    assert!(output.status.code() == Some(2) && errors.contains(part), "a removed file: {errors}");
    fs::rename(scratch.0.join("p.jsonl"), scratch.0.join("moved.jsonl")).unwrap();
    let args = ["--resume", "r", "--prompts", "moved.jsonl", "--threads", "1"];
    succeeded(&xtrain(&scratch.0, &grpo(&args)));
    let config = fs::read_to_string(scratch.0.join("r/config.toml")).unwrap();
    assert!(config.contains("moved.jsonl"), "{config}");
}

#[test]
pub(crate) fn a_resume_may_change_what_changes_no_result() {
    let scratch = scratch("changes", &format!("if [ $n = {} ]; then exit 1; fi", 2 * COMPLETIONS + 1));
    let more = [&REWARD[..], &["--set", "grpo.eval_every=0"]].concat();
    let output = xtrain(&scratch.0, &[&grpo(&TASK)[..], &["--run", "r"], &more].concat());
    assert_eq!(output.status.code(), Some(65), "{}", text(&output.stderr));
    write_reward(&scratch, "");
    finish(&scratch, "whole", &more);
    fs::rename(scratch.0.join("reward.sh"), scratch.0.join("moved.sh")).unwrap();
    let copied = Command::new("cp").args(["-r", "r", "q"]).current_dir(&scratch.0).status();
    assert!(copied.unwrap().success());
    let changed = ["grpo", "--resume", "r", "--threads", "1"];
    for (key, parts) in [
        (
            ["--set", "grpo.temperature=0.5", "--set", "train.seed=3"],
            &["--resume cannot change grpo.temperature, train.seed"],
        ),
        (["--reward", "a", "--reward", "b"], &["--resume cannot change grpo.reward"]),
    ] {
        refused(&scratch.0, &[&changed[..], &key].concat(), 2, parts);
    }
    let keys = ["micro_batch=3", "reward_timeout=30", "reward_processes=2", "save_every=2", "show_every=0"];
    let keys = keys.map(|key| format!("grpo.{key}"));
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", key.as_str()]).collect();
    succeeded(&xtrain(&scratch.0, &[&changed[..], &["--reward", "sh moved.sh"], &sets].concat()));
    assert_equal(&bytes(&scratch.0.join("whole")), &scratch.0.join("r"), "after a resume with changes");
    let config = fs::read_to_string(scratch.0.join("r/config.toml")).unwrap();
    for line in ["reward = [\"sh moved.sh\"]", "micro_batch = 3", "reward_timeout = 30.0", "save_every = 2"] {
        assert!(config.lines().any(|found| found == line), "{line}: {config}");
    }
    // The file does not change results.
    let file = scratch.0.join("r/config.toml");
    fs::write(file, config.replace("\nepsilon = 0.2\n", "\nepsilon = 0.3\n")).unwrap();
    refused(&scratch.0, &changed, 65, &["r/config.toml: `grpo.epsilon` = 0.3: expected 0.2"]);
    // The learning rate can be changed.
    let other = ["grpo", "--resume", "q", "--threads", "1", "--reward", "sh moved.sh"];
    let output = xtrain(&scratch.0, &[&other[..], &["--set", "grpo.learning_rate=0.25"]].concat());
    succeeded(&output);
    let warning =
        "warning: \"sh reward.sh\" computed the rewards so far; \"sh moved.sh\", which replaces it,";
    assert!(text(&output.stderr).contains(warning), "no {warning:?}: {}", text(&output.stderr));
    let record = format!("q/checkpoints/step_{STEPS:06}/run.toml");
    for path in ["q/config.toml", &record].map(|path| scratch.0.join(path)) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\nlearning_rate = 0.25\n"), "{}: {text}", path.display());
    }
}

/// Whether a process runs. One that has ended and that nobody has waited for does not.
#[cfg(target_os = "linux")]
fn runs(process: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

#[cfg(target_os = "linux")]
#[test]
pub(crate) fn the_second_signal_ends_the_reward_programs() {
    let scratch = scratch("second-signal", "echo $$ > pid; exec sleep 1000");
    let mut child = start(&scratch, &[&TASK[..], &["--run", "r"], &REWARD].concat());
    let since = Instant::now();
    let program = || fs::read_to_string(scratch.0.join("pid")).unwrap_or_default().trim().to_string();
    while program().is_empty() {
        assert!(since.elapsed() < Duration::from_secs(60), "no completion was scored");
        std::thread::sleep(Duration::from_millis(1));
    }
    let kill = |signal: &str, process: &str| Command::new("kill").args([signal, process]).status().unwrap();
    // signals that arrive together count as one
    while child.try_wait().unwrap().is_none() {
        assert!(since.elapsed() < Duration::from_secs(60), "the process runs after many signals");
        kill("-INT", &child.id().to_string());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let ended = Instant::now();
    while runs(&program()) {
        if ended.elapsed() > Duration::from_secs(5) {
            kill("-KILL", &program());
            panic!("the reward program still runs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
