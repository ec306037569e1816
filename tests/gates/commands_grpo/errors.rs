//! Errors of `xtrain grpo`: reward programs, prompts, command line and configuration.
use std::fs;
use std::path::Path;

use super::{
    COMPLETIONS, READ, REPLY, REWARD, TASK, assert_equal, bytes, finish, grpo, names, resume, scratch,
    succeeded, write_reward,
};
use crate::cli::{Scratch, refused, text, xtrain};
use crate::commands::parsed;
use crate::commands_situations::copied;

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
        ("little", "continue", &["prompt 0, completion 2: no reply within 2 s", "(1 completion without"]),
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

/// A copy of a model with a gain of the last norm near the largest value of f32, which makes its logits infinite.
fn model_with_infinite_logits(scratch: &Scratch) -> String {
    let model = copied(scratch, "qwen3_tied");
    let file = Path::new(&model).join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = parsed(str::from_utf8(&bytes[8..data]).unwrap());
    let [first, end] =
        [0, 1].map(|at| header["model.norm.weight"]["data_offsets"][at].as_u64().unwrap() as usize);
    for gain in bytes[data + first..data + end].as_chunks_mut::<4>().0 {
        *gain = 3e38f32.to_le_bytes();
    }
    fs::write(file, bytes).unwrap();
    model
}

#[test]
fn logits_that_are_not_finite_are_reported_with_their_step() {
    let scratch = scratch("infinite", "");
    let model = model_with_infinite_logits(&scratch);
    scratch.file("p.jsonl", "{\"prompt\": \"ab\"}\n");
    let args = ["--init", &model, "--prompts", "p.jsonl", "--run", "r", "--set", "grpo.eval_every=0"];
    let args = [&args[..], &["--set", "grpo.preallocate=false"]].concat();
    let output =
        xtrain(&scratch.0, &[&grpo(&["-c", "c.toml", "--threads", "1"])[..], &args, &REWARD].concat());
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{errors}");
    assert!(errors.contains("error: step 1: ") && errors.contains("sampler: logit of token"), "{errors}");
}

#[test]
fn a_diverged_run_names_a_way_out() {
    let scratch = scratch("diverged", "");
    let keys =
        ["grpo.learning_rate=1e30", "grpo.min_learning_rate=1e30", "grpo.eval_every=0", "grpo.save_every=4"];
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", *key]).collect();
    let output = xtrain(&scratch.0, &[&grpo(&TASK)[..], &["--run", "r"], &REWARD, &sets].concat());
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{errors}");
    assert!(errors.contains("is not finite"), "{errors}");
    let hint = "hint: a resume repeats these steps bit for bit unless it changes the learning rate; if that fails, too, \
                --init an older checkpoint; to resume: xtrain grpo --resume r --set grpo.learning_rate=5e29 --set \
                grpo.min_learning_rate=5e29";
    assert_eq!(errors.lines().last(), Some(hint), "{errors}");
    let session = parsed(&fs::read_to_string(scratch.0.join("r/logs/session.json")).unwrap());
    assert_eq!(session["end"]["outcome"], "failed");
    let rates = ["--set", "grpo.learning_rate=1e-3", "--set", "grpo.min_learning_rate=0"];
    let command = [&["grpo", "--resume", "r", "--threads", "1"][..], &rates].concat();
    assert_eq!(xtrain(&scratch.0, &command).status.code(), Some(0));
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
    scratch.file("ids.jsonl", "{\"prompt_ids\": [1, 257]}\n");
    let ids = ["grpo", "-c", "c.toml", "--init", "base", "--prompts", "ids.jsonl", "--run", "i"];
    let errors = text(&xtrain(&scratch.0, &[&ids[..], &REWARD].concat()).stderr);
    let expected = "ids.jsonl:1: prompt position 1: expected a token id below 257, found 257";
    assert!(errors.contains(expected), "{errors}");
    // the command works with the corrected file
    scratch.file("p.jsonl", "{\"prompt\": \"ab\"}\n");
    succeeded(&xtrain(&scratch.0, &[&args[..], &REWARD, &["--run", "a", "--threads", "1"]].concat()));
    // before the base model of a task is trained
    scratch.file("empty.jsonl", "{\"prompt\": \"\"}\n");
    let task = [&grpo(&TASK)[..], &["--run", "e", "--set", "grpo.eval_prompts=empty.jsonl"]].concat();
    refused(&scratch.0, &task, 65, &["empty.jsonl"]);
    assert!(!scratch.0.join("e").exists());
}

#[test]
pub(crate) fn inputs_are_checked_before_a_base_model_is_trained() {
    let scratch = scratch("inputs", "");
    scratch.file("s.json", r#"{"type": "string", "pattern": "a\\bc"}"#);
    for (run, set, code, part) in [
        ("a", r"grpo.regex=a\bc", 2, "expected one without look-around"),
        ("b", "grpo.json_schema=s.json", 2, "grpo.json_schema"),
        ("c", "grpo.max_prompt_length=2", 65, "grpo.max_prompt_length"),
    ] {
        let args = [&grpo(&TASK)[..], &["--run", run, "--set", set]].concat();
        let output = xtrain(&scratch.0, &args);
        let errors = text(&output.stderr);
        assert!(output.status.code() == Some(code) && errors.contains(part), "{set}: {errors}");
        assert!(!scratch.0.join(run).exists(), "{set}: the directory of the run was created");
    }
    // a schema that allows everything
    scratch.file("all.json", "true\n");
    finish(&scratch, "d", &["--set", "grpo.json_schema=all.json", "--set", "grpo.steps=1"]);
    // with the tokenizer of the initial model, wherever the configuration names it
    scratch.file("words.jsonl", "{\"prompt\": \"the thing and the other thing in there\"}\n");
    let init = format!("train.init={}", crate::commands::model());
    let words = ["grpo", "--prompts", "words.jsonl", "--run", "w", "--threads", "1", "--set", &init];
    let sets =
        ["--set", "grpo.max_prompt_length=30", "--set", "grpo.steps=1", "--set", "grpo.num_generations=2"];
    succeeded(&xtrain(&scratch.0, &[&words[..], &REWARD, &sets].concat()));
}

#[test]
fn a_wrong_command_line_or_configuration_is_refused_before_anything_is_written() {
    let scratch = scratch("usage", "");
    scratch.file("p.jsonl", "{\"prompt\": \"ab\"}\n");
    let (prompts, model) = (["grpo", "--prompts", "p.jsonl"], crate::commands::model());
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
        (vec!["grpo", "--prompts", "gone.jsonl", "--reward", "a", "--init", &model], 66, &["gone.jsonl"]),
        (task(&["--reward", "no-such-program"]), 66, &["no-such-program"]),
        (task(&["--reward", "sh 'x"]), 2, &["quotation mark"]),
        (
            task(&["--set", "grpo.reward_weights=[1, 2]"]),
            2,
            &["grpo.reward_weights", "expected 1 weight,", "found 2"],
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
        (task(&["--set", "grpo.num_generations=1"]), 2, &["`grpo.num_generations`", "at least 2"]),
        (
            task(&["--reward", "sh reward.sh", "--reward", "sh reward.sh"]),
            2,
            &["grpo.reward", "\"sh reward.sh\" twice"],
        ),
        (
            task(&["--set", "train.context=6"]),
            65,
            &["task sums, prompt \"", "expected a prompt of at most 5 tokens, found 6", "context"],
        ),
        (task(&["--set", "grpo.max_prompt_length=4"]), 65, &["at most 4 tokens", "grpo.max_prompt_length"]),
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
    // a directory with files that is not a run
    scratch.file("r/note", "");
    refused(
        &scratch.0,
        &task(&["--run", "r"]),
        2,
        &["r: expected no directory, or an empty one", "--run DIR"],
    );
    // a run: its name is one word of the command in the hint, which is that of the run
    scratch.file("a run/config.toml", "[grpo]\ntask = \"sums\"\n");
    let parts = ["a run: the run already exists", "xtrain grpo --resume 'a run'; to use"];
    refused(&scratch.0, &task(&["--run", "a run"]), 2, &parts);
    refused(&scratch.0, &["train", "--data", "c.toml", "--run", "a run"], 2, &parts);
    // two programs with one reward name
    scratch.file("other.sh", &format!("{READ}\n{REPLY}"));
    let programs = ["--reward", "sh reward.sh", "--reward", "sh other.sh", "--run", "two names"];
    let output = xtrain(&scratch.0, &task(&programs));
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(65), "{errors}");
    let both = "reward programs \"sh reward.sh\" and \"sh other.sh\": expected different reward names, found \"reward\"";
    assert!(errors.contains(both), "{errors}");
    assert!(errors.ends_with("hint: to resume: xtrain grpo --resume 'two names'\n"), "{errors}");
    // reward weights of a program are checked at its first reply
    let args = task(&["--reward", "sh reward.sh", "--run", "w", "--set", "grpo.reward_weights=[1, 2]"]);
    let output = xtrain(&scratch.0, &args);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("expected 1 weight, one for each of reward, found 2"), "{errors}");
    assert!(!errors.contains("to resume"), "a resume fails again: {errors}");
    let way_out = "hint: start again with another --run and --init w/base\n";
    assert!(errors.ends_with(way_out), "{errors}");
}

#[test]
fn rewards_of_null_and_a_run_without_evaluation_are_reported() {
    let scratch = scratch("null", "reward=null");
    finish(&scratch, "base", &["--set", "grpo.steps=1", "--set", "grpo.eval_every=0"]);
    scratch.file("p.jsonl", "{\"prompt\": \"ab\"}\n{\"prompt\": \"cd\"}\n");
    let args = ["grpo", "-c", "c.toml", "--init", "base", "--prompts", "p.jsonl", "--run", "r"];
    let output = xtrain(&scratch.0, &[&args[..], &REWARD, &["--set", "grpo.steps=2"]].concat());
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(
        errors.matches("no completion of step 1 has a reward: every reply was null").count(),
        1,
        "{errors}"
    );
    assert!(!errors.contains("no completion of step 2"), "{errors}");
    assert!(errors.contains("note: grpo.eval_prompts names no held-out prompts"), "{errors}");
}

#[test]
fn a_run_with_initial_weights_does_not_use_the_sections_of_a_base_model() {
    let scratch = scratch("initial", "");
    finish(&scratch, "base", &["--set", "grpo.steps=1", "--set", "grpo.eval_every=0"]);
    let args = [&grpo(&TASK)[..], &["--init", "base", "--run", "r"]].concat();
    for (key, parts) in [
        ("model.dim=32", &["`model.dim` = 32", "the sizes in [model] differ from those of base: 16"][..]),
        ("model.preset=small-10m", &["`model.preset` = ", "the sizes in [model] differ"]),
        ("train.steps=9", &["`train.steps` = 9", "initial weights", "[grpo]"]),
    ] {
        refused(&scratch.0, &[&args[..], &["--set", key]].concat(), 2, parts);
        assert!(!scratch.0.join("r").exists(), "{key}");
    }
    let keys = ["model.dim=16", "train.dtype=bf16", "train.seed=4", "grpo.steps=1", "grpo.eval_every=0"];
    let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", *key]).collect();
    let output = xtrain(&scratch.0, &[&args[..], &sets].concat());
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let notes: Vec<&str> = errors.lines().filter(|line| line.starts_with("note: ")).collect();
    let want =
        "note: [model] and [train] of c.toml describe a base model and are not used: the model is base";
    assert_eq!(notes, [want], "{errors}");
}
