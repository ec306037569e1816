//! The commands `grpo` and `replay` as processes: files, kills, signals, reward programs, exit codes.
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use xtrain::tensor::rng::{Purpose, uniform_u64};
use xtrain::tensor::testing::times;

use crate::cli::{Scratch, ok, program, refused, text, xtrain};
use crate::commands::{done, parsed};

/// The configuration of a small run.
const CONFIG: &str = "\
[model]
dim = 16
n_layers = 1
n_heads = 2
ffn_dim = 24
[train]
context = 32
batch = 2
steps = 6
eval_every = 0
sample_every = 0
save_every = 3
[data]
val_fraction = 0
[grpo]
steps = 4
prompts_per_step = 2
num_generations = 4
max_completion_length = 6
learning_rate = 5e-3
eval_every = 2
eval_limit = 3
eval_samples = 2
verify_every = 2
show_every = 2
save_every = 1
keep = 10
";
const STEPS: u64 = 4;
/// Completions of a step of [`CONFIG`].
const COMPLETIONS: usize = 8;

/// The start of a reward program: the reward depends on the line, but not on its id.
const READ: &str = "n=0; while IFS= read -r line; do n=$((n+1)); \
    id=${line#*:}; id=${id%%,*}; rest=${line#*,}; reward=$((${#rest} % 5))\n";
/// Its end.
const REPLY: &str = "echo \"{\\\"id\\\":$id,\\\"reward\\\":$reward}\"; done\n";

/// A directory with [`CONFIG`] as `c.toml` and a reward program as `reward.sh`, which runs `body` for each line.
fn scratch(name: &str, body: &str) -> Scratch {
    let scratch = Scratch::new(&format!("grpo-{name}"));
    scratch.file("c.toml", CONFIG);
    write_reward(&scratch, body);
    scratch
}

fn write_reward(scratch: &Scratch, body: &str) {
    scratch.file("reward.sh", &format!("{READ}{body}\n{REPLY}"));
}

const TASK: [&str; 6] = ["-c", "c.toml", "--task", "sums", "--threads", "1"];
const REWARD: [&str; 2] = ["--reward", "sh reward.sh"];

fn grpo<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["grpo"], args].concat()
}

/// Runs the task of [`CONFIG`] in the directory `run` with more flags; returns its standard error.
#[track_caller]
fn finish(scratch: &Scratch, run: &str, more: &[&str]) -> String {
    let output = xtrain(&scratch.0, &[&grpo(&TASK)[..], &["--run", run], more].concat());
    succeeded(&output)
}

#[track_caller]
fn resume(scratch: &Scratch, run: &str) -> String {
    succeeded(&xtrain(&scratch.0, &grpo(&["--resume", run, "--threads", "1"])))
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    errors
}

/// Starts a process whose standard error can be read.
fn start(scratch: &Scratch, args: &[&str]) -> Child {
    let mut command = program();
    command.current_dir(&scratch.0).args(grpo(args)).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The names in a directory, sorted.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The objects of a file of JSON lines.
#[track_caller]
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(parsed).collect()
}

/// The files of a run that must be bit-identical: metrics, rollouts, the last checkpoint and the base model.
fn bytes(run: &Path) -> Vec<(String, Vec<u8>)> {
    let last = format!("checkpoints/step_{STEPS:06}");
    let mut files = vec!["metrics.jsonl".to_string(), "base/metrics.jsonl".to_string()];
    files.push("base/checkpoints/step_000006/model.safetensors".to_string());
    for file in ["model.safetensors", "trainer/optimizer.safetensors", "trainer/control.bin", "manifest.json"]
    {
        files.push(format!("{last}/{file}"));
    }
    files.extend(names(&run.join("rollouts")).iter().map(|name| format!("rollouts/{name}")));
    let read = |name: String| {
        let bytes = fs::read(run.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, bytes)
    };
    files.into_iter().map(read).collect()
}

#[track_caller]
fn assert_equal(want: &[(String, Vec<u8>)], run: &Path, what: &str) {
    let got = bytes(run);
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|file| file.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(want), names(&got), "{what}");
    for ((name, want), (_, got)) in want.iter().zip(&got) {
        assert!(want == got, "{what}: {name} differs");
    }
}

#[test]
fn a_run_prints_and_writes_what_the_guide_lists() {
    let scratch = scratch("files", "");
    let errors = finish(&scratch, "r", &["--set", "grpo.entropy_coef=0.01"]);
    for part in [
        "training the base model on sums with 50 % wrong answers",
        "2 prompts x 4 completions per step, 4 steps, writing to r",
        "saved r/checkpoints/step_000000",
        "step 0: held-out reward: sampled ",
        "completions of step 1:",
        " values of a group compared with training, 0 differ",
        "step 4: held-out reward: sampled ",
        "saved r/checkpoints/step_000004",
    ] {
        assert!(errors.contains(part), "{part:?}: {errors}");
    }
    let run = scratch.0.join("r");
    let files = [
        "base",
        "checkpoints",
        "config.toml",
        "data.json",
        "lock",
        "logs",
        "metrics.jsonl",
        "rollouts",
        "timings.jsonl",
    ];
    assert_eq!(names(&run), files);
    let steps = |from: u64| (from..=STEPS).map(|step| format!("step_{step:06}")).collect::<Vec<_>>();
    assert_eq!(names(&run.join("checkpoints")), steps(0));
    assert_eq!(
        names(&run.join("rollouts")),
        steps(1).iter().map(|s| format!("{s}.jsonl")).collect::<Vec<_>>()
    );
    let timings = lines(&run.join("timings.jsonl"));
    assert_eq!(timings.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4]);
    for key in ["rollout_time", "reward_time", "update_time", "save_time", "tokens_per_second"] {
        assert!(timings[0][key].as_f64().is_some(), "{key}");
    }

    let metrics = lines(&run.join("metrics.jsonl"));
    assert_eq!(
        metrics.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4]
    );
    for (step, line) in metrics.iter().enumerate() {
        let max = line.get("sampling/sampling_logp_difference/max").map(|max| max.as_f64().unwrap());
        assert!(step == 0 || max == Some(0.0), "{line}");
        let evaluated = ["sampled", "greedy"].map(|key| line.get(format!("eval/reward_{key}")).is_some());
        assert_eq!(evaluated, [step % 2 == 0; 2], "{line}");
    }
    let rows = |step: usize| {
        let all = lines(&run.join(format!("rollouts/step_{step:06}.jsonl")));
        assert_eq!(all.len(), COMPLETIONS);
        all
    };
    let mut tokens = 0;
    for (step, line) in metrics.iter().enumerate().skip(1) {
        let rows = rows(step);
        let n: usize = rows.iter().map(|row| row["completion_ids"].as_array().unwrap().len()).sum();
        let prompts: usize = rows.iter().map(|row| row["prompt_ids"].as_array().unwrap().len()).sum();
        assert_eq!(line["sampling/compared_tokens"].as_f64(), Some(n as f64));
        // The prompt of a group is computed once. The last token of a completion is no input.
        let shared: usize = rows.chunks(4).map(|g| g[0]["prompt_ids"].as_array().unwrap().len()).sum();
        assert_eq!(line["trained_rows"].as_f64(), Some((n + shared - rows.len()) as f64), "no padding");
        tokens += n + prompts;
        assert_eq!(line["num_tokens"].as_f64(), Some(tokens as f64));
        let mean = rows.iter().map(|row| row["reward"].as_f64().unwrap()).sum::<f64>() / rows.len() as f64;
        assert!((line["reward"].as_f64().unwrap() - mean).abs() < 1e-12, "{line}");
        assert_eq!(line["rewards/sums/mean"], line["reward"]);
    }
    let row = &rows(2)[5];
    let at = ["step", "group", "sample", "sample_id", "seed"].map(|key| row[key].as_u64().unwrap());
    assert_eq!(at, [2, 1, 1, 13, 0]);
    assert_eq!((row["trained"].as_bool(), row["max_new"].as_u64()), (Some(true), Some(6)));
    let numbers = ["advantage", "temperature", "top_p", "top_k", "min_p"].map(|key| row[key].as_f64());
    assert!(numbers.iter().all(Option::is_some), "{row}");
    let lengths = ["completion_ids", "processed_logprobs"].map(|key| row[key].as_array().unwrap().len());
    assert_eq!(lengths[0], lengths[1]);
    assert!(row["policy"].as_str().unwrap().starts_with("sha256:"));
    for key in ["prompt", "completion", "finish_reason"] {
        assert!(row[key].is_string(), "{key}");
    }
    let plot = ok(&scratch.0, &["plot", "r", "--keys", "reward,grad_norm", "--ascii"]);
    assert!(plot.contains("reward"), "{plot}");
}

#[test]
fn a_dry_run_prints_an_estimate_and_the_configuration_and_writes_nothing() {
    let scratch = scratch("dry", "");
    let shown = ok(&scratch.0, &[&grpo(&TASK)[..], &["--seed", "3", "--dry-run"]].concat());
    for line in [
        "# parameters: ",
        "# batch: 2 prompts x 4 completions",
        "# memory: about ",
        "task = \"sums\"",
        "seed = 3",
    ] {
        assert!(shown.lines().any(|found| found.starts_with(line)), "{line}: {shown}");
    }
    assert_eq!(names(&scratch.0), ["c.toml", "reward.sh"]);
    scratch.file("again.toml", &shown);
    assert_eq!(ok(&scratch.0, &["grpo", "-c", "again.toml", "--dry-run"]), shown);
}

/// Replaces a field of line `at` of a file, by the function `change`, and writes the lines to `to`.
fn changed(from: &Path, to: &Path, at: usize, field: &str, change: impl Fn(&mut Value)) {
    let mut all = lines(from);
    change(&mut all[at][field]);
    let text: String = all.iter().map(|line| format!("{line}\n")).collect();
    fs::write(to, text).unwrap();
}

#[test]
fn replay_regenerates_every_completion_and_names_the_line_that_differs() {
    let scratch = scratch("replay", "");
    finish(
        &scratch,
        "r",
        &[&REWARD[..], &["--set", "grpo.top_p=0.9", "--set", "grpo.temperature=1.3"]].concat(),
    );
    let file = |step: u64| format!("r/rollouts/step_{step:06}.jsonl");
    for step in 1..=STEPS {
        let shown = done(&scratch.0, &["replay", &file(step)]);
        assert!(shown.starts_with("8 of 8 completions regenerated, "), "{shown}");
        assert!(shown.ends_with(" tokens, 0 differ.\n"), "{shown}");
    }
    for more in [&["--threads", "2", "--kv", "off"][..], &["--page-size", "3", "--prefill-chunk", "2"]] {
        done(&scratch.0, &[&["replay", &file(3)], more].concat());
    }
    let differs = |path: &str, model: &str, parts: &[&str]| {
        let output = xtrain(&scratch.0, &["replay", path, "--model", model]);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(text(&output.stdout).contains(" 1 differ."), "{output:?}");
        parts.iter().for_each(|part| assert!(errors.contains(part), "{part:?}: {errors}"));
    };
    let (original, copy, model) =
        (scratch.0.join(file(2)), scratch.0.join("x.jsonl"), "r/checkpoints/step_000001");
    let next = |value: &mut Value, at: usize| {
        let x = value[at].as_f64().unwrap() as f32;
        value[at] = f64::from(f32::from_bits(x.to_bits() + 1)).into();
    };
    changed(&original, &copy, 4, "processed_logprobs", |value| next(value, 0));
    differs("x.jsonl", model, &["x.jsonl:5: token 0: expected the log-probability "]);
    changed(&original, &copy, 7, "completion_ids", |value| {
        value[0] = (value[0].as_u64().unwrap() ^ 1).into()
    });
    differs("x.jsonl", model, &["x.jsonl:8: token 0: expected "]);
    changed(&original, &copy, 0, "finish_reason", |value| *value = "stop".into());
    differs("x.jsonl", model, &["x.jsonl:1: finish reason: expected stop, found "]);

    // other weights
    let wrong = ["replay", &file(2), "--model", "r/checkpoints/step_000003"];
    refused(&scratch.0, &wrong, 65, &["step_000002.jsonl:1: expected the weights sha256:", "--model"]);
    // a file that does not name its model, a checkpoint that was deleted, and invalid lines
    changed(&original, &copy, 0, "step", |value| *value = 0.into());
    refused(&scratch.0, &["replay", "x.jsonl"], 2, &["--model"]);
    fs::remove_dir_all(scratch.0.join("r/checkpoints/step_000002")).unwrap();
    refused(&scratch.0, &["replay", &file(3)], 66, &["step_000002: checkpoint not found", "grpo.keep"]);
    let first = fs::read_to_string(&original).unwrap().lines().next().unwrap().to_string();
    scratch.file("y.jsonl", &format!("{first}\n\n{{\"prompt_id\": 1}}\n"));
    refused(&scratch.0, &["replay", "y.jsonl", "--model", model], 65, &["y.jsonl:3: expected a completion"]);
    for (from, to, part) in [
        (
            "\"prompt_ids\":[",
            "\"prompt_ids\":[999,",
            "prompt position 0: expected a token id below 257, found 999",
        ),
        ("\"temperature\":1.3", "\"temperature\":-1", "temperature: expected "),
        ("\"max_new\":6", "\"max_new\":0", "expected at least 1 new token, found 0"),
    ] {
        assert!(first.contains(from), "{from}: {first}");
        scratch.file("y.jsonl", &format!("{first}\n{}\n", first.replace(from, to)));
        refused(&scratch.0, &["replay", "y.jsonl", "--model", model], 65, &["y.jsonl:2: ", part]);
    }
    scratch.file("y.jsonl", "\n");
    refused(&scratch.0, &["replay", "y.jsonl", "--model", model], 65, &["y.jsonl: no completions"]);
    refused(&scratch.0, &["replay", "z.jsonl", "--model", model], 66, &["z.jsonl"]);

    // completions of `xtrain rollout`
    scratch.file("p.jsonl", "{\"prompt\": \"12+34=\"}\n{\"prompt_ids\": [49, 50, 51]}\n");
    let args = ["rollout", "r", "--prompts", "p.jsonl", "-n", "3", "--max-new", "7", "--out", "c.jsonl"];
    done(&scratch.0, &[&args[..], &["--top-k", "40", "--seed", "5"]].concat());
    let shown = done(&scratch.0, &["replay", "c.jsonl", "--model", "r"]);
    assert!(shown.starts_with("6 of 6 completions"), "{shown}");
    changed(&scratch.0.join("c.jsonl"), &copy, 3, "processed_logprobs", |value| next(value, 1));
    differs("x.jsonl", "r", &["x.jsonl:4: token 1: expected the log-probability "]);
    refused(&scratch.0, &["replay", "c.jsonl"], 2, &["--model"]);
}

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
    assert!(errors.contains("error: stopped by a signal; checkpoint saved"), "{errors}");
    assert_eq!(errors.lines().last(), Some(hint.as_str()), "{errors}");
}

#[test]
fn ctrl_c_saves_and_the_hint_resumes_to_the_same_bytes() {
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
    resume(&scratch, "r");
    assert_equal(&want, &run, "after SIGINT");
    // while the base model is trained
    let base = ["--set", "train.steps=2000", "--set", "train.save_every=0", "--set", "grpo.eval_every=0"];
    interrupted(&scratch, "b", "base/metrics.jsonl", &base);
    assert!(!scratch.0.join("b/metrics.jsonl").exists());
    resume(&scratch, "b");
    assert_eq!(lines(&scratch.0.join("b/metrics.jsonl")).len(), 5);
    // a finished run has nothing left to do, and cannot be changed
    resume(&scratch, "r");
    assert_equal(&want, &run, "after a resume without steps");
    let more = ["grpo", "--resume", "r", "--set", "grpo.steps=8"];
    refused(&scratch.0, &more, 2, &["--resume", "configuration"]);
}

#[test]
fn a_broken_reward_program_is_a_named_error_and_the_run_resumes_after_it_is_fixed() {
    let scratch = scratch("broken", "");
    let more = [&REWARD[..], &["--set", "grpo.eval_every=0", "--set", "grpo.reward_timeout=2"]].concat();
    finish(&scratch, "whole", &more);
    let want = bytes(&scratch.0.join("whole"));
    let cases: [(&str, &str, &[&str]); 6] = [
        ("hang", "sleep 60", &["prompt 0, completion 2: no reply within 2 s", "6 completions"]),
        ("death", "echo oops >&2; exit 3", &["prompt 0, completion 2: ended with exit status: 3", "oops"]),
        ("garbage", "echo hello", &["waiting for prompt 0, completion 2: ", "\"hello\""]),
        ("nan", "reward=NaN", &["prompt 0, completion 2: ", "NaN"]),
        ("little", "continue", &["prompt 0, completion 2: no reply within 2 s", "1 completions"]),
        ("much", "echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"", &["prompt 0, completion 2: ", "second reply"]),
    ];
    for (name, body, parts) in cases {
        // the third completion of the second step
        write_reward(&scratch, &format!("if [ $n = {} ]; then {body}; fi", COMPLETIONS + 3));
        let output = xtrain(&scratch.0, &[&grpo(&TASK)[..], &["--run", name], &more].concat());
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(65), "{name}: {errors}");
        let hint = format!("hint: to resume: xtrain grpo --resume {name}");
        assert_eq!(errors.lines().last(), Some(hint.as_str()), "{name}: {errors}");
        let error = errors.lines().find(|line| line.starts_with("error: ")).unwrap();
        assert!(error.contains("reward process 0 (\"sh reward.sh\")"), "{name}: {error}");
        parts.iter().for_each(|part| assert!(error.contains(part), "{name}: {part:?}: {error}"));
        assert_eq!(names(&scratch.0.join(name).join("rollouts")), ["step_000001.jsonl"], "{name}");
        write_reward(&scratch, "");
        resume(&scratch, name);
        assert_equal(&want, &scratch.0.join(name), name);
    }
    assert_eq!(fs::read_to_string(scratch.0.join("death/logs/reward-0.log")).unwrap(), "oops\n");
}

#[test]
fn columns_of_the_prompts_reach_the_reward_program() {
    let body =
        "printf '%s\\n' \"$line\" >> seen; reward=0; case \"$line\" in *'\"want\":\"x\"'*) reward=1;; esac";
    let scratch = scratch("columns", body);
    finish(&scratch, "base", &["--set", "grpo.steps=1", "--set", "grpo.eval_every=0"]);
    let prompts = [
        "{\"prompt\": \"ab\", \"want\": \"x\", \"n\": 7}",
        "{\"prompt\": \"c\\\"d\\n\", \"want\": \"y\", \"deep\": {\"a\": [1, null]}}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"want\": \"x\"}",
    ];
    scratch.file("p.jsonl", &prompts.join("\n"));
    let args = ["-c", "c.toml", "--init", "base", "--prompts", "p.jsonl", "--run", "r"];
    let keys = [
        "grpo.prompts_per_step=3",
        "grpo.entropy_coef=0.01",
        "grpo.eval_prompts=p.jsonl",
        "train.context=64",
    ];
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", *key]).collect();
    succeeded(&xtrain(&scratch.0, &[&grpo(&args)[..], &REWARD, &sets].concat()));
    let (seen, mut rows) = (lines(&scratch.0.join("seen")), Vec::new());
    (1..=STEPS)
        .for_each(|step| rows.extend(lines(&scratch.0.join(format!("r/rollouts/step_{step:06}.jsonl")))));
    assert_eq!(rows.len(), 4 * 3 * 4);
    for row in &rows {
        let id = row["prompt_id"].as_u64().unwrap() as usize;
        assert_eq!(row["reward"], [1.0, 0.0, 1.0][id], "{row}");
        let same = |line: &&Value| {
            ["prompt", "completion", "prompt_ids", "completion_ids", "finish_reason", "truncated"]
                .iter()
                .all(|key| line[*key] == row[*key])
        };
        let line = seen.iter().find(same).unwrap_or_else(|| panic!("{row}"));
        for (key, value) in
            parsed(prompts[id]).as_object().unwrap().iter().filter(|(key, _)| *key != "prompt")
        {
            assert_eq!(&line[key], value, "{line}");
        }
    }
    let mut ids: Vec<u64> = seen.iter().map(|line| line["id"].as_u64().unwrap()).collect();
    ids.dedup();
    assert_eq!(ids, (0..seen.len() as u64).collect::<Vec<_>>());
    assert!(seen.len() > rows.len(), "the held-out prompts are scored, too");

    // invalid prompts
    for (line, parts) in [
        ("{\"prompt\": 3}", &["bad.jsonl: line 2", "prompt"][..]),
        ("{\"text\": \"a\"}", &["bad.jsonl: line 2", "prompt"]),
        ("{\"prompt\": \"a\", \"id\": 3}", &["bad.jsonl:2", "\"id\"", "reserved"]),
        ("nonsense", &["bad.jsonl: line 2"]),
    ] {
        scratch.file("bad.jsonl", &format!("{{\"prompt\": \"a\"}}\n{line}\n"));
        let args = ["grpo", "--init", "base", "--prompts", "bad.jsonl", "--run", "bad"];
        refused(&scratch.0, &[&args[..], &REWARD].concat(), 65, parts);
        assert!(!scratch.0.join("bad").exists(), "{line}");
    }
}

#[test]
fn a_prompt_that_is_too_long_is_reported_by_file_and_line() {
    let scratch = scratch("long", "");
    finish(&scratch, "base", &["--set", "grpo.steps=1", "--set", "grpo.eval_every=0"]);
    scratch.file("p.jsonl", &format!("{{\"prompt\": \"ab\"}}\n{{\"prompt\": \"{}\"}}\n", "a".repeat(32)));
    let args = ["grpo", "-c", "c.toml", "--init", "base", "--prompts", "p.jsonl"];
    for (run, set) in [("a", "grpo.max_prompt_length=31"), ("b", "grpo.max_prompt_length=512")] {
        let output = xtrain(&scratch.0, &[&args[..], &REWARD, &["--run", run, "--set", set]].concat());
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(65), "{errors}");
        assert!(errors.contains("p.jsonl:2: expected a prompt of at most 31 tokens, found 32"), "{errors}");
    }
}

#[test]
fn a_wrong_command_line_or_configuration_is_refused_before_anything_is_written() {
    let scratch = scratch("usage", "");
    scratch.file("p.jsonl", "{\"prompt\": \"ab\"}\n");
    let prompts = ["grpo", "--prompts", "p.jsonl"];
    let with = |more: &[&'static str]| [&prompts[..], more].concat();
    let task = |more: &[&'static str]| [&grpo(&TASK)[..], more].concat();
    for (args, code, parts) in [
        (vec!["grpo"], 2, &["[grpo]", "configs/grpo.toml"][..]),
        (vec!["grpo", "-c", "c.toml"], 2, &["no prompts", "--task"]),
        (vec!["grpo", "--task", "sumz"], 2, &["sumz", "did you mean \"sums\""]),
        (vec!["grpo", "--set", "grpo.num_generation=4"], 2, &["`grpo.num_generations`"]),
        (with(&[]), 2, &["no reward", "--reward"]),
        (with(&["--task", "sums"]), 2, &["`grpo.prompts`", "grpo.task"]),
        (with(&["--reward", "sh reward.sh"]), 2, &["no initial weights", "--init"]),
        (with(&["--reward", "sh reward.sh", "--init", "gone"]), 66, &["gone: model not found"]),
        (vec!["grpo", "--prompts", "gone.jsonl", "--reward", "a", "--init", "."], 66, &["gone.jsonl"]),
        (task(&["--reward", "no-such-program"]), 66, &["no-such-program"]),
        (task(&["--reward", "sh 'x"]), 2, &["quotation mark"]),
        (
            task(&["--set", "grpo.reward_weights=[1, 2]"]),
            2,
            &["grpo.reward_weights", "expected 1 weights", "found 2"],
        ),
        (
            task(&["--reward", "a", "--reward", "b", "--set", "grpo.reward_weights=[1]"]),
            2,
            &["grpo.reward_weights", "at least 2", "found 1"],
        ),
        (
            task(&["--set", "grpo.steps=5", "--set", "grpo.num_iterations=2"]),
            2,
            &["`grpo.steps`", "multiple of"],
        ),
        (task(&["--set", "grpo.temperature=0"]), 2, &["`grpo.temperature`"]),
        (task(&["--set", "grpo.loss_type=ppo"]), 2, &["`grpo.loss_type`", "dapo"]),
        (vec!["grpo", "--resume", "gone"], 66, &["gone"]),
        (vec!["grpo", "--resume", "a", "--task", "sums"], 2, &["--resume", "--task"]),
    ] {
        refused(&scratch.0, &args, code, parts);
        let mut files = names(&scratch.0);
        files.retain(|name| name != "runs");
        assert_eq!(files, ["c.toml", "p.jsonl", "reward.sh"], "{args:?}");
        assert_eq!(names(&scratch.0.join("runs")), [""; 0], "{args:?}");
    }
    // a run that exists
    scratch.file("r/note", "");
    refused(&scratch.0, &task(&["--run", "r"]), 2, &["r: the run already exists", "xtrain grpo --resume r"]);
    // reward weights of a program are checked at its first reply
    let args = task(&["--reward", "sh reward.sh", "--run", "w", "--set", "grpo.reward_weights=[1, 2]"]);
    let output = xtrain(&scratch.0, &args);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("expected 1 weights, one for each of reward, found 2"), "{errors}");
}

#[test]
fn train_ignores_the_section_grpo_but_checks_it() {
    let scratch = scratch("train", "");
    scratch.file("t.txt", &"some text to train on\n".repeat(40));
    refused(&scratch.0, &["train", "-c", "c.toml"], 2, &["data.files", "--data"]);
    refused(&scratch.0, &["train", "-c", "c.toml", "--set", "grpo.step=3"], 2, &["`grpo.steps`"]);
    done(&scratch.0, &["train", "-c", "c.toml", "--data", "t.txt", "--run", "r"]);
    assert_eq!(lines(&scratch.0.join("r/metrics.jsonl")).len(), 6);
    assert!(!scratch.0.join("r/rollouts").exists());
    finish(&scratch, "g", &["--set", "grpo.steps=1", "--set", "grpo.eval_every=0"]);
    refused(
        &scratch.0,
        &["train", "--resume", "g"],
        2,
        &["g is a run of xtrain grpo", "xtrain grpo --resume g"],
    );
}
