//! What a run of `xtrain grpo` prints, writes and passes to a reward program.
use serde_json::Value;

use super::{
    COMPLETIONS, REWARD, STEPS, TASK, assert_equal, bytes, finish, grpo, lines, names, scratch, succeeded,
};
use crate::cli::{ok, refused, text, xtrain};
use crate::commands::{done, parsed};
use crate::commands_early::{are_times_between, events, now, repeated_if_the_clock_is_set};

#[test]
fn a_run_prints_and_writes_what_the_guide_lists() {
    repeated_if_the_clock_is_set(a_complete_run);
}

pub(crate) fn a_complete_run() {
    let scratch = scratch("files", "");
    let before = now();
    let errors = finish(&scratch, "r", &["--set", "grpo.entropy_coef=0.01"]);
    let after = now();
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
    let times: Vec<f64> = events(&run).into_iter().map(|(time, _)| time).collect();
    assert_eq!(times.len(), 6, "the version, the evaluation of step 0, and four steps");
    assert!(are_times_between(&times[1..], before, after), "{before}, {times:?}, {after}");
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
    for (step, line) in (1..).zip(&timings) {
        let rows = lines(&run.join(format!("rollouts/step_{step:06}.jsonl")));
        let sampled: usize = rows.iter().map(|row| row["completion_ids"].as_array().unwrap().len()).sum();
        let time = |key: &str| line[key].as_f64().unwrap();
        let found = time("tokens_per_second") * time("rollout_time");
        assert!((found - sampled as f64).abs() < 1e-6, "step {step}: {found} tokens, expected {sampled}");
        let phases = line.as_object().unwrap().keys().filter(|key| key.ends_with("_time"));
        let phases = phases.filter(|key| *key != "step_time");
        let sum: f64 = phases.map(|key| time(key)).sum();
        assert!((time("step_time") - sum).abs() < 1e-9, "{line}");
        // every second step is evaluated and verified; the line of the first step has the evaluation before it
        let found = ["eval_time", "verify_time", "preallocate_time"].map(|key| line.get(key).is_some());
        let is_second = step % 2 == 0;
        assert_eq!(found, [is_second || step == 1, is_second, step == 1], "times of step {step}: {line}");
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
pub(crate) fn a_complete_run_is_not_changed_by_a_resume() {
    let scratch = scratch("complete", "");
    finish(&scratch, "r", &["--reward", "sh reward.sh", "--set", "grpo.eval_every=0"]);
    // the start of a reward program creates its log
    let log = scratch.0.join("r/logs/reward-0.log");
    std::fs::remove_file(&log).unwrap();
    let files = ["config.toml", "logs/session.json", "metrics.jsonl", "checkpoints/step_000004/run.toml"];
    let read = || files.map(|file| std::fs::read(scratch.0.join("r").join(file)).unwrap());
    let before = read();
    let resume = ["grpo", "--resume", "r", "--threads", "1", "--set", "grpo.learning_rate=0.5"];
    let output = xtrain(&scratch.0, &resume);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let [shown, errors] = [&output.stdout, &output.stderr].map(|bytes| text(bytes));
    assert!(
        shown.starts_with(
            "r is complete at step 4; to continue, increase the number of steps: xtrain grpo --resume r --steps 8"
        ),
        "is complete: {shown}{errors}"
    );
    assert!(errors.contains("note: not stored, because no step is left: grpo.learning_rate"), "{errors}");
    assert!(!log.exists(), "a complete run starts no reward program");
    for ((file, before), after) in files.iter().zip(&before).zip(&read()) {
        assert!(before == after, "{file}: {}", text(after));
    }
}

#[test]
fn an_extended_run_has_the_bytes_of_a_longer_one() {
    let scratch = scratch("extended", "");
    let keys = ["schedule=constant", "eval_every=0", "beta=0.05", "ref_model_sync_steps=1"];
    let keys = keys.map(|key| format!("grpo.{key}"));
    let sets = keys.iter().flat_map(|key| ["--set", key.as_str()]);
    let settings: Vec<&str> = REWARD.into_iter().chain(["--lr", "0.01"]).chain(sets).collect();
    finish(&scratch, "long", &settings);
    let weights = |step| {
        std::fs::read(scratch.0.join(format!("long/checkpoints/step_00000{step}/model.safetensors"))).unwrap()
    };
    assert!(weights(2) != weights(4), "the rewards change the weights");
    finish(&scratch, "r", &[&settings[..], &["--steps", "2"]].concat());
    let errors = succeeded(&xtrain(&scratch.0, &grpo(&["--resume", "r", "--steps", "4", "--threads", "1"])));
    assert!(errors.contains("grpo.steps: 2 -> 4\n") && errors.contains("at step 2 of 4"), "{errors}");
    assert_equal(&bytes(&scratch.0.join("long")), &scratch.0.join("r"), "a run of 2 and 2 more steps");
}

/// The keys of which a note says that they have no effect change no bit of a run.
#[test]
fn keys_that_are_noted_as_without_effect_have_none() {
    let scratch = scratch("no-effect", "");
    // rewards that differ, so that the weights change
    let base = [&REWARD[..], &["--set", "grpo.schedule=constant"]].concat();
    finish(&scratch, "plain", &base);
    let keys = [
        "grpo.epsilon=0.3",
        "grpo.epsilon_high=0.4",
        "grpo.ref_dtype=bf16",
        "grpo.ref_model_mixup_alpha=0.5",
        "grpo.use_bias_correction_kl=false",
        "grpo.min_learning_rate=1e-5",
    ];
    let sets: Vec<&str> = base.iter().copied().chain(keys.iter().flat_map(|key| ["--set", *key])).collect();
    let errors = finish(&scratch, "r", &sets);
    for key in keys {
        let name = key.split('=').next().unwrap();
        assert!(errors.contains(&format!("note: `{name}` = ")), "{name}: {errors}");
    }
    // the manifest has the checksum of the recorded configuration, which differs
    let results = |run: &str| {
        let all = bytes(&scratch.0.join(run)).into_iter();
        all.filter(|(name, _)| !name.ends_with("manifest.json")).collect::<Vec<_>>()
    };
    if let Some(difference) = crate::difference::first_file(&results("r"), &results("plain")) {
        panic!("a key has an effect: {difference}");
    }
    // a key that has one changes the run
    finish(&scratch, "other", &[&base[..], &["--set", "grpo.clip=0.001"]].concat());
    assert!(crate::difference::first_file(&results("other"), &results("plain")).is_some());
}

/// The steps after the last checkpoint of a run are lost; it ends where it is with the number of steps that it has done.
#[test]
fn a_resume_ends_a_run_at_the_step_that_it_has_reached() {
    let scratch = scratch("ended", "");
    finish(&scratch, "r", &["--set", "grpo.eval_every=0", "--set", "grpo.save_every=2"]);
    std::fs::remove_dir_all(scratch.0.join("r/checkpoints/step_000004")).unwrap();
    let resume = |steps: &'static str| grpo(&["--resume", "r", "--threads", "1", "--steps", steps]);
    refused(&scratch.0, &resume("1"), 2, &["expected at least 2 steps", "found 1"]);
    done(&scratch.0, &resume("2"));
    assert_eq!(names(&scratch.0.join("r/rollouts")), ["step_000001.jsonl", "step_000002.jsonl"]);
    assert_eq!(lines(&scratch.0.join("r/metrics.jsonl")).last().unwrap()["step"], 2);
    let config = std::fs::read_to_string(scratch.0.join("r/config.toml")).unwrap();
    assert!(config.contains("\nsteps = 2\n"), "{config}");
    let shown = ok(&scratch.0, &grpo(&["--resume", "r", "--threads", "1"]));
    assert!(shown.starts_with("r is complete at step 2; "), "{shown}");
}

#[test]
fn only_steps_with_a_rollout_have_tokens_per_second() {
    let scratch = scratch("rates", "");
    finish(&scratch, "r", &["--set", "grpo.num_iterations=2", "--set", "grpo.eval_every=0"]);
    let timings = lines(&scratch.0.join("r/timings.jsonl"));
    for key in ["tokens_per_second", "rollout_time"] {
        let found: Vec<bool> = timings.iter().map(|line| line.get(key).is_some()).collect();
        assert_eq!(found, [true, false, true, false], "{key}");
    }
}

#[test]
fn the_time_of_a_reward_program_is_reward_time() {
    // The last completion is sent at the end of the rollout.
    let scratch = scratch("reward-time", &format!("[ $n = {COMPLETIONS} ] && sleep 0.5"));
    let keys = ["grpo.steps=1", "grpo.eval_every=0", "grpo.score_duplicates=true"];
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    finish(&scratch, "r", &[&REWARD[..], &sets].concat());
    let timings = lines(&scratch.0.join("r/timings.jsonl"));
    let [reward, rollout] = ["reward_time", "rollout_time"].map(|key| timings[0][key].as_f64().unwrap());
    assert!(reward > 0.4 && rollout < reward, "{timings:?}");
}

#[test]
fn no_completions_are_shown_without_an_interval_and_a_batch_may_have_no_reward() {
    let scratch = scratch("quiet", "reward=null");
    let keys = ["grpo.show_every=0", "grpo.eval_every=0", "grpo.steps=2"];
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    let errors = finish(&scratch, "r", &[&REWARD[..], &sets].concat());
    assert!(!errors.contains("completions of step"), "{errors}");
    assert!(errors.contains("reward none, length "), "{errors}");
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

#[test]
pub(crate) fn a_run_computes_in_its_dtype_from_the_first_step_on() {
    let scratch = scratch("dtype", "");
    let sets = ["--set", "grpo.steps=1", "--set", "grpo.eval_every=0"];
    finish(&scratch, "base", &sets);
    let log_probs = |run: &str, dtype: &str| {
        finish(&scratch, run, &[&["--init", "base", "--set", dtype], &sets[..]].concat());
        let rows = lines(&scratch.0.join(run).join("rollouts/step_000001.jsonl"));
        rows.iter().map(|row| row["processed_logprobs"].to_string()).collect::<Vec<_>>()
    };
    let in_f32 = log_probs("a", "train.dtype=f32");
    assert!(!in_f32.is_empty() && in_f32 == log_probs("b", "train.dtype=f32"));
    assert_ne!(in_f32, log_probs("c", "train.dtype=bf16"), "bf16 has the values of f32");
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
        ("{\"prompt\": 3}", &["bad.jsonl:2", "prompt"][..]),
        ("{\"text\": \"a\"}", &["bad.jsonl:2", "prompt"]),
        ("{\"prompt\": \"a\", \"id\": 3}", &["bad.jsonl:2", "\"id\"", "reserved"]),
        ("nonsense", &["bad.jsonl:2"]),
    ] {
        scratch.file("bad.jsonl", &format!("{{\"prompt\": \"a\"}}\n{line}\n"));
        let args = ["grpo", "--init", "base", "--prompts", "bad.jsonl", "--run", "bad"];
        refused(&scratch.0, &[&args[..], &REWARD].concat(), 65, parts);
        assert!(!scratch.0.join("bad").exists(), "{line}");
    }
    scratch.file("bad.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"id\": 3}\n");
    let args = ["grpo", "--init", "base", "--prompts", "p.jsonl", "--run", "bad"];
    let held_out = ["--set", "grpo.eval_prompts=bad.jsonl"];
    refused(
        &scratch.0,
        &[&args[..], &held_out, &REWARD].concat(),
        65,
        &["bad.jsonl:2", "\"id\"", "reserved"],
    );
    assert!(!scratch.0.join("bad").exists(), "the held-out prompts are checked first");
}

#[test]
fn a_task_can_be_evaluated_on_the_prompts_of_a_file() {
    let scratch = scratch("eval-prompts", "printf '%s\\n' \"$line\" >> seen");
    scratch.file("held.jsonl", "{\"prompt\": \"1+1=\"}\n");
    finish(&scratch, "r", &[&REWARD[..], &["--set", "grpo.eval_prompts=held.jsonl"]].concat());
    let seen = lines(&scratch.0.join("seen"));
    // the sums of the task have numbers of two digits
    assert!(seen.iter().any(|line| line["prompt"] == "1+1="), "{seen:?}");
}

#[test]
fn equal_completions_are_scored_once_unless_all_are_asked_for() {
    let scratch = scratch("duplicates", "printf '%s\\n' \"$line\" >> seen");
    let keys = ["grpo.steps=1", "grpo.eval_every=0", "grpo.top_k=1"];
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", *key]).collect();
    let first = [&REWARD[..], &sets].concat();
    for (run, key, want) in
        [("one", "grpo.score_duplicates=false", 2), ("all", "grpo.score_duplicates=true", COMPLETIONS)]
    {
        finish(&scratch, run, &[&first[..], &["--set", key]].concat());
        assert_eq!(lines(&scratch.0.join("seen")).len(), want, "{key}");
        std::fs::remove_file(scratch.0.join("seen")).unwrap();
    }
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
