//! The commands that generate: finish reasons, signals, flags.
use std::fs;
use std::path::Path;

use serde_json::Value;

#[cfg(unix)]
use crate::cli::in_terminal;
use crate::cli::{Scratch, ok, program, refused, text, xtrain};
use crate::commands::{done, model, parsed};

#[test]
pub(crate) fn a_completion_that_fills_the_context_finishes_by_context() {
    let (scratch, m) = (Scratch::new("context"), model());
    let prompt = vec!["5"; 250].join(",");
    let args = ["generate", &m, "--tokens", &prompt, "--max-new", "1000", "--ignore-eos"];
    let got = parsed(&ok(&scratch.0, &[&args[..], &["--json"]].concat()));
    assert_eq!(
        (&got["finish_reason"], got["completion_ids"].as_array().unwrap().len()),
        (&"context".into(), 6)
    );
    scratch.file("p.jsonl", &format!("{{\"prompt_ids\": [{prompt}]}}\n"));
    let rollout = ["rollout", &m, "--prompts", "p.jsonl", "--ignore-eos", "--max-new"];
    for (max_new, reason) in [("1000", "context"), ("5", "length")] {
        let line = parsed(&done(&scratch.0, &[&rollout[..], &[max_new]].concat()));
        assert_eq!((&line["finish_reason"], &line["truncated"]), (&reason.into(), &true.into()));
    }
    let errors = text(&xtrain(&scratch.0, &args).stderr);
    assert!(errors.starts_with("[6 new tokens, finish reason: context (256 tokens)"), "{errors}");
    for command in ["generate", "rollout"] {
        let help = ok(&scratch.0, &[command, "--help"]);
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in ["context (prompt and completion fill", "[default: 0]", "length"] {
            assert!(help.contains(part), "{command} lacks {part}: {help}");
        }
    }
}

#[test]
fn a_temperature_below_1e_minus_30_is_a_usage_error_and_1e_minus_6_is_greedy() {
    let (scratch, m) = (Scratch::new("cold"), model());
    for cold in ["1e-40", "1e-31", "-1", "inf"] {
        let flag = format!("--temperature={cold}");
        refused(&scratch.0, &["generate", &m, "--prompt", "ab", &flag], 2, &["--temperature", "1e-30"]);
        refused(&scratch.0, &["rollout", &m, &flag], 2, &["--temperature"]);
        let key = format!("sample.temperature={cold}");
        refused(&scratch.0, &["train", "--dry-run", "--set", &key], 2, &["`sample.temperature`"]);
    }
    for valid in ["0", "1e-30", "1e-6"] {
        ok(&scratch.0, &["train", "--dry-run", "--set", &format!("sample.temperature={valid}")]);
    }
    let at = |t| {
        let args = ["generate", &m, "--prompt", "ab", "--max-new", "20", "--json", "--temperature", t];
        parsed(&ok(&scratch.0, &args))
    };
    let greedy = at("0");
    for cold in ["1e-6", "1e-30"] {
        let got = at(cold);
        assert_eq!(
            (&got["completion_ids"], &got["logprobs"]),
            (&greedy["completion_ids"], &greedy["logprobs"]),
            "{cold}"
        );
    }
}

#[test]
fn a_flag_that_a_benchmark_does_not_use_is_refused() {
    let (scratch, m) = (Scratch::new("flags"), model());
    for args in [
        &["bench", "train", "--kv", "off"][..],
        &["bench", "train", "--page-size", "8"],
        &["bench", "train", "--prefill-chunk", "8"],
        &["bench", "kv", "--kv", "off"],
        &["bench", "kv", "--model", &m, "--seed", "1"],
        &["bench", "decode", "--model", &m, "--seed", "1"],
        &["bench", "load", "--model", &m, "--seed", "1"],
    ] {
        refused(&scratch.0, args, 2, &[args[args.len() - 2]]);
    }
    for command in ["train", "decode", "kv", "load"] {
        let help = ok(&scratch.0, &["bench", command, "--help"]);
        assert!(help.contains("warmup") || help.contains("not measured"), "{command}: {help}");
    }
}

#[test]
fn an_invalid_prompt_is_reported_by_file_line_and_field() {
    let (scratch, m) = (Scratch::new("places"), model());
    for (name, line, parts) in [
        ("id", "{\"prompt_ids\": [1, 512]}", &["512", "position 1"][..]),
        ("empty", "{\"prompt\": \"\"}", &["empty prompt"]),
        ("none", "{\"prompt_ids\": []}", &["\"prompt_ids\"", "empty list"]),
        ("type", "{\"prompt_ids\": [1, -2]}", &["\"prompt_ids\"", "-2 at index 1"]),
        ("text", "{\"prompt\": 3}", &["\"prompt\"", "string"]),
        ("both", "{\"prompt\": \"a\", \"prompt_ids\": [1]}", &["\"prompt\"", "\"prompt_ids\""]),
        ("json", "{\"prompt\": \"a\"", &["column"]),
        ("list", "[1, 2]", &["object"]),
    ] {
        let file = format!("{name}.jsonl");
        scratch.file(&file, &format!("{{\"prompt_ids\": [1]}}\n{line}\n"));
        let place = format!("{file}:2: ");
        let parts = [&[place.as_str()], parts].concat();
        refused(&scratch.0, &["rollout", &m, "--prompts", &file], 65, &parts);
        refused(&scratch.0, &["verify", &m, "--prompts", &file], 65, &parts);
    }
}

#[test]
fn conversations_are_rendered_and_other_fields_are_copied() {
    let (scratch, m) = (Scratch::new("columns"), model());
    let messages =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"answer\": [3], \"id\": \"q7\"}";
    scratch.file("p.jsonl", &format!("{messages}\n{{\"prompt_ids\": [5, 6], \"id\": 8}}\n"));
    let printed = done(&scratch.0, &["rollout", &m, "--prompts", "p.jsonl", "-n", "2", "--max-new", "3"]);
    let lines: Vec<Value> = printed.lines().map(parsed).collect();
    for (line, id) in lines.iter().zip(["\"q7\"", "\"q7\"", "8", "8"]) {
        assert_eq!(line["id"].to_string(), id, "{line}");
    }
    assert_eq!(lines[1]["answer"].to_string(), "[3]");
    let prompt = lines[0]["prompt"].as_str().unwrap();
    assert!(
        prompt.starts_with("<|im_start|>user\nhi<|im_end|>") && prompt.ends_with("assistant\n"),
        "{prompt}"
    );
    scratch.file("taken.jsonl", "{\"prompt_ids\": [1], \"reward\": 4}\n");
    refused(&scratch.0, &["rollout", &m, "--prompts", "taken.jsonl"], 65, &["taken.jsonl:1", "\"reward\""]);
}

#[test]
fn a_prompt_that_does_not_fit_is_skipped_or_truncated_and_the_others_are_completed() {
    let (scratch, m) = (Scratch::new("long"), model());
    let ids = |n: usize| (0..n).map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    let line = |n: usize| format!("{{\"prompt_ids\": [{}]}}\n", ids(n));
    scratch.file("p.jsonl", &[line(2), line(300), line(255)].concat());
    let args = ["rollout", &m, "--prompts", "p.jsonl", "--max-new", "3", "--out", "c.jsonl"];
    let output = xtrain(&scratch.0, &args);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(65), "{errors}");
    assert!(
        errors.contains("p.jsonl:2: expected a prompt of at most 255 tokens, found 300; skipped"),
        "{errors}"
    );
    assert!(errors.contains("1 of 3 prompts were skipped"), "{errors}");
    let lengths = || {
        let lines = fs::read_to_string(scratch.0.join("c.jsonl")).unwrap();
        let length = |line: &str| parsed(line)["prompt_ids"].as_array().unwrap().len();
        lines.lines().map(length).collect::<Vec<_>>()
    };
    assert_eq!(lengths(), [2, 255]);
    let lines = fs::read_to_string(scratch.0.join("c.jsonl")).unwrap();
    let last = parsed(lines.lines().last().unwrap());
    assert_eq!(
        [&last["prompt_id"], &last["sample_id"]].map(Value::to_string),
        ["2", "2"],
        "numbers of the file"
    );
    fs::remove_file(scratch.0.join("c.jsonl")).unwrap();
    done(&scratch.0, &[&args[..], &["--truncate-prompt", "left"]].concat());
    assert_eq!(lengths(), [2, 253, 255]);
    let truncated = fs::read_to_string(scratch.0.join("c.jsonl")).unwrap();
    assert_eq!(parsed(truncated.lines().nth(1).unwrap())["prompt_ids"][0], 47);
    scratch.file("p.jsonl", &line(300));
    let output = xtrain(&scratch.0, &args[..4]);
    assert_eq!(output.status.code(), Some(65));
    assert!(text(&output.stderr).contains("error: no prompt fits the context"), "{output:?}");
}

/// The completions of three prompts, two each, with flags, or with the fields of the second line instead. The third prompt
/// runs first. A resume that keeps the completions of the third prompt must write the same file.
fn completions(flags: &[&str], fields: &str) -> Vec<Value> {
    let (scratch, m) = (Scratch::new("parameters"), model());
    let lines = [
        "{\"prompt\": \"ab\"}",
        &format!("{{\"prompt\": \"cd\"{fields}}}"),
        "{\"prompt\": \"ef\", \"priority\": 3}",
    ];
    scratch.file("p.jsonl", &(lines.join("\n") + "\n"));
    let args = ["rollout", &m, "--prompts", "p.jsonl", "-n", "2", "--max-new", "40", "--stop", "zz"];
    let args = [&args[..], flags].concat();
    done(&scratch.0, &[&args[..], &["--out", "c.jsonl"]].concat());
    done(&scratch.0, &["replay", "c.jsonl", "--model", &m]);
    let whole = fs::read_to_string(scratch.0.join("c.jsonl")).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    scratch.file("r.jsonl.partial", &format!("{}\n{}\n", lines[4], lines[5]));
    done(&scratch.0, &[&args[..], &["--out", "r.jsonl", "--resume"]].concat());
    assert_eq!(fs::read_to_string(scratch.0.join("r.jsonl")).unwrap(), whole, "a resume differs: {fields}");
    lines.into_iter().map(parsed).collect()
}

#[test]
pub(crate) fn fields_of_a_prompt_have_the_effect_of_flags() {
    let plain = completions(&[], "");
    let text = plain[2]["completion"].as_str().unwrap().to_string();
    let ids = plain[2]["completion_ids"].as_array().unwrap();
    let (stop, token) = (text.chars().nth(3).unwrap().to_string(), ids[5].to_string());
    for (flags, fields) in [
        (vec!["--max-new", "3"], "\"max_new\": 3".to_string()),
        (vec!["--temperature", "0.5", "--top-k", "20"], "\"temperature\": 0.5, \"top_k\": 20".into()),
        (vec!["--top-p", "0.5", "--seed", "9"], "\"top_p\": 0.5, \"seed\": 9".into()),
        (vec!["--min-p", "0.5", "--ignore-eos"], "\"min_p\": 0.5, \"ignore_eos\": true".into()),
        (vec!["--repetition-penalty", "1.5"], "\"repetition_penalty\": 1.5".into()),
        (vec!["--stop-token-ids", &token], format!("\"stop_token_ids\": [{token}]")),
    ] {
        let (with_flags, with_fields) = (completions(&flags, ""), completions(&[], &format!(", {fields}")));
        assert_eq!(with_fields[2..4], with_flags[2..4], "{fields}");
        assert_ne!(with_fields[2..4], plain[2..4], "{fields}");
        assert_eq!(
            [&with_fields[..2], &with_fields[4..]],
            [&plain[..2], &plain[4..]],
            "{fields}: other prompts"
        );
    }
    // its own stop texts replace those of the flags
    let of_text = completions(&[], &format!(", \"stop\": {}", Value::from(vec![stop.clone()])));
    let (ended, before) = (&of_text[2], text.split_once(&stop).unwrap().0);
    assert_eq!((&ended["finish_reason"], &ended["completion"]), (&"stop".into(), &before.into()));
    assert_eq!(ended["stop"], Value::from(vec![stop]));
    assert_eq!([&of_text[..2], &of_text[4..]], [&plain[..2], &plain[4..]], "other prompts");
    let of_token = &completions(&["--stop-token-ids", &token], "")[2];
    let found = of_token["completion_ids"].as_array().unwrap();
    let first = ids.iter().position(|id| *id == ids[5]).unwrap();
    assert_eq!((&of_token["finish_reason"], &found[..]), (&"stop".into(), &ids[..=first]));
    assert_eq!(of_token["stop_token_ids"], Value::from(vec![ids[5].clone()]));
}

#[test]
fn a_field_that_is_nearly_a_parameter_is_noted_once() {
    let (scratch, m) = (Scratch::new("parameter-notes"), model());
    let line = "{\"prompt\": \"ab\", \"Temperature\": 0.5, \"max_tokens\": 3, \"note\": 1}\n";
    scratch.file("p.jsonl", &line.repeat(2));
    let output = xtrain(&scratch.0, &["rollout", &m, "--prompts", "p.jsonl", "--max-new", "2"]);
    let errors = text(&output.stderr);
    let notes: Vec<&str> = errors.lines().filter(|line| line.starts_with("note: ")).collect();
    let note = |field: &str, own: &str| {
        format!("note: p.jsonl:1: the field \"{field}\" has no effect; did you mean \"{own}\"?")
    };
    assert_eq!(notes, [note("Temperature", "temperature"), note("max_tokens", "max_new")], "{errors}");
}

#[test]
fn fields_of_a_prompt_that_no_flag_accepts_are_refused() {
    let (scratch, m) = (Scratch::new("parameter-errors"), model());
    let rollout = ["rollout", &m, "--prompts", "p.jsonl"];
    for (fields, parts) in [
        ("\"max_new\": 0", [":1: field \"max_new\": expected a whole number of at least 1", "found 0"]),
        ("\"top_p\": 2", [":1: field \"top_p\": expected a number above 0", "found 2"]),
        ("\"stop\": \"a\"", [":1: field \"stop\": expected a list of texts", "found \"a\""]),
        (
            "\"stop_token_ids\": [999999]",
            [":1: field \"stop_token_ids\": expected token ids below", "found 999999"],
        ),
    ] {
        scratch.file("p.jsonl", &format!("{{\"prompt\": \"ab\", {fields}}}\n"));
        refused(&scratch.0, &rollout, 65, &parts);
    }
    scratch.file("p.jsonl", "{\"prompt\": \"ab\"}\n");
    let ids = ["--stop-token-ids", "1,999999"];
    refused(&scratch.0, &[&rollout[..], &ids].concat(), 2, &["--stop-token-ids: expected token ids below"]);
}

#[cfg(unix)]
pub(crate) mod signals {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// A rollout of more completions than can finish before a signal arrives.
    fn rollout(dir: &Path, more: &[&str]) -> Command {
        let args = ["rollout", &model(), "--prompts", "p.jsonl", "-n", "60000", "--max-batch-size", "7"];
        let mut command = program();
        command.args(args).args(["--max-new", "40", "--threads", "1"]).args(more).current_dir(dir);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(dir: &Path, more: &[&str]) -> Child {
        in_terminal(&mut rollout(dir, more)).spawn().unwrap()
    }

    /// Bytes in the temporary file of a rollout.
    fn written(dir: &Path) -> u64 {
        let files = std::fs::read_dir(dir).unwrap().flatten();
        let of_file = |file: std::fs::DirEntry| file.metadata().map_or(0, |found| found.len());
        files.filter(|f| f.file_name().to_string_lossy().contains(".xtrain-tmp-")).map(of_file).sum()
    }

    /// Waits until a rollout has written completions.
    fn wait_for_lines(dir: &Path) {
        let start = Instant::now();
        while written(dir) == 0 {
            assert!(start.elapsed() < Duration::from_secs(120), "nothing was written");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(child: &Child, name: &str) {
        let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// The child's exit code and its standard error.
    fn end(mut child: Child) -> (Option<i32>, String) {
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (child.wait().unwrap().code(), errors)
    }

    #[track_caller]
    fn each_once(lines: &str) -> usize {
        let place = |line| ["prompt_id", "sample"].map(|key| parsed(line)[key].as_u64().unwrap());
        let mut places: Vec<_> = lines.lines().map(place).collect();
        let n = places.len();
        places.dedup();
        assert!(places.is_sorted() && places.len() == n && n > 0, "{n} lines");
        n
    }

    /// A rollout that `name` stops keeps what it has finished, and ends with `code`.
    fn keeps_completions_after(name: &str, code: i32) {
        let scratch = Scratch::new(&format!("kept{name}"));
        scratch.file("p.jsonl", "{\"prompt\": \"ab\"}\n{\"prompt_ids\": [1, 2, 3]}\n");
        scratch.file("c.jsonl", "complete\n");
        let child = start(&scratch.0, &["--out", "c.jsonl", "--force"]);
        wait_for_lines(&scratch.0);
        signal(&child, name);
        let (ended, errors) = end(child);
        assert_eq!(ended, Some(code), "{errors}");
        let kept = each_once(&std::fs::read_to_string(scratch.0.join("c.jsonl.partial")).unwrap());
        let hint = format!("{kept} of 120000 completions are in {}/c.jsonl.partial", scratch.0.display());
        let stopped = format!("stopped by a signal after {kept} of 120000 completions");
        assert!(errors.contains(&stopped) && errors.contains(&hint), "{errors}");
        assert_eq!(std::fs::read_to_string(scratch.0.join("c.jsonl")).unwrap(), "complete\n");
        assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 3, "a temporary file is left");
    }

    #[test]
    #[cfg(target_os = "linux")]
    pub(crate) fn a_rollout_that_nohup_started_outlives_its_terminal() {
        let scratch = Scratch::new("nohup");
        scratch.file("p.jsonl", "{\"prompt\": \"ab\"}\n");
        let rollout = rollout(&scratch.0, &["--out", "c.jsonl"]);
        let mut command = Command::new("nohup");
        command.arg(rollout.get_program()).args(rollout.get_args()).current_dir(&scratch.0);
        command.envs(rollout.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_lines(&scratch.0);
        signal(&child, "-HUP");
        std::thread::sleep(Duration::from_millis(200));
        signal(&child, "-TERM");
        let (ended, errors) = end(child);
        assert_eq!(ended, Some(143), "{errors}");
    }

    #[test]
    fn a_signal_keeps_the_finished_completions() {
        keeps_completions_after("-INT", 130);
    }

    #[test]
    #[cfg(target_os = "linux")]
    pub(crate) fn the_end_of_the_terminal_keeps_the_finished_completions() {
        keeps_completions_after("-HUP", 129);
    }

    #[test]
    fn completions_are_printed_as_they_finish_and_a_signal_leaves_whole_lines() {
        let scratch = Scratch::new("printed");
        scratch.file("p.jsonl", "{\"prompt\": \"ab\"}\n");
        let mut child = start(&scratch.0, &[]);
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut lines = String::new();
        out.read_line(&mut lines).unwrap();
        signal(&child, "-TERM");
        out.read_to_string(&mut lines).unwrap();
        let (code, errors) = end(child);
        assert_eq!(code, Some(143), "{errors}");
        assert!(lines.ends_with('\n'));
        let printed = each_once(&lines);
        assert!(errors.contains(&format!("{printed} of 60000 completions were printed")), "{errors}");
        assert!(errors.contains(&format!("after {printed} of 60000 completions")), "{errors}");
    }

    #[test]
    fn the_first_completions_have_the_bytes_of_a_longer_rollout() {
        let scratch = Scratch::new("prefix");
        scratch.file("p.jsonl", "{\"prompt\": \"ab\"}\n");
        let args = ["rollout", &model(), "--prompts", "p.jsonl", "--max-new", "40", "-n"];
        let whole = done(&scratch.0, &[&args[..], &["12", "--batch", "5"]].concat());
        let part = done(&scratch.0, &[&args[..], &["5"]].concat());
        assert!(whole.starts_with(&part), "the first five of twelve");
    }
}
