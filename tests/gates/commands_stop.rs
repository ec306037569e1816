//! `--stop` and `--repetition-penalty` of the commands that generate.
use serde_json::Value;

use crate::cli::{Scratch, ok, refused, text, xtrain};
use crate::commands::{done, model, parsed};
use crate::commands_tokenize::with_input;

const SAMPLED: [&str; 7] = ["--prompt", "ab", "--max-new", "24", "--seed", "2", "--ignore-eos"];

/// The characters `range` of a text.
fn part(text: &str, range: std::ops::Range<usize>) -> String {
    text.chars().skip(range.start).take(range.len()).collect()
}

fn length(line: &Value, key: &str) -> usize {
    line[key].as_array().unwrap().len()
}

#[test]
fn a_completion_ends_before_a_stop_text_and_its_ids_with_the_token_that_completes_it() {
    let (scratch, m) = (Scratch::new("stop"), model());
    let json = |more: &[&str]| {
        parsed(&ok(&scratch.0, &[&["generate", &m][..], &SAMPLED, &["--json"], more].concat()))
    };
    let whole = json(&[]);
    let whole_text = whole["completion"].as_str().unwrap();
    // Parts of two tokens or more, since the vocabulary has few tokens of several characters.
    for (from, to) in [(3, 5), (7, 10), (12, 13)] {
        let stop = part(whole_text, from..to);
        assert!(!stop.contains('\u{fffd}'), "{whole_text:?}");
        let at = whole_text.find(&stop).unwrap();
        let got = json(&["--stop", "not in the text", &format!("--stop={stop}")]);
        assert_eq!(
            (&got["completion"], &got["finish_reason"]),
            (&whole_text[..at].into(), &"stop".into()),
            "{stop:?}"
        );
        let n = length(&got, "completion_ids");
        assert!(n < length(&whole, "completion_ids") && n == length(&got, "logprobs"), "{got}");
        for key in ["completion_ids", "logprobs", "logprob_bits"] {
            assert_eq!(got[key].as_array().unwrap()[..], whole[key].as_array().unwrap()[..n], "{key}");
        }
        let ids = got["completion_ids"].as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>();
        let decoded = |n: usize| {
            let ids = ids[..n].join(",");
            let args = ["tokenize", "--model", &m, "--json", "--ids", &ids];
            if n == 0 {
                String::new()
            } else {
                parsed(&ok(&scratch.0, &args))["text"].as_str().unwrap().to_string()
            }
        };
        assert!(decoded(n).contains(&stop) && !decoded(n - 1).contains(&stop), "{stop:?}: {ids:?}");
        let args = [&["generate", &m][..], &SAMPLED, &["--stop", &stop]].concat();
        let output = xtrain(&scratch.0, &args);
        assert_eq!(text(&output.stdout).trim_end_matches('\n'), whole_text[..at].trim_end_matches('\n'));
        assert!(text(&output.stderr).contains("finish reason: stop (--stop)"), "{output:?}");
    }
    // The end of the text is the beginning of a stop text: it is printed.
    let end = part(whole_text, whole_text.chars().count() - 2..usize::MAX);
    let stop = format!("{end}never");
    let got = json(&["--stop", &stop]);
    assert_eq!((&got["completion"], &got["finish_reason"]), (&whole["completion"], &"length".into()));
    let shown = done(&scratch.0, &[&["generate", &m][..], &SAMPLED, &["--stop", &stop]].concat());
    assert_eq!(shown.trim_end_matches('\n'), whole_text.trim_end_matches('\n'));
}

#[test]
fn rollouts_with_stop_texts_and_a_penalty_are_those_of_generate_and_can_be_replayed() {
    let (scratch, m) = (Scratch::new("stop-rollout"), model());
    scratch.file("p.jsonl", "{\"prompt\": \"ab\"}\n{\"prompt_ids\": [492, 341, 282]}\n");
    let common = ["--max-new", "20", "--seed", "7", "--temperature", "0.8", "--top-k", "20"];
    let rollout = ["rollout", &m, "--prompts", "p.jsonl", "-n", "6"];
    let plain = done(&scratch.0, &[&rollout[..], &common].concat());
    let texts: Vec<String> =
        plain.lines().map(|line| parsed(line)["completion"].as_str().unwrap().to_string()).collect();
    let stops = [part(&texts[0], 2..4), part(&texts[8], 4..5)];
    let more = ["--stop", &stops[0], "--stop", &stops[1], "--repetition-penalty", "1.2"];
    let printed = done(&scratch.0, &[&rollout[..], &common, &more, &["--max-batch-size", "5"]].concat());
    let mut reasons = Vec::new();
    for (at, line) in printed.lines().map(parsed).enumerate() {
        assert_eq!(line["stop"], serde_json::json!(stops));
        assert_eq!(line["repetition_penalty"].as_f64().unwrap() as f32, 1.2);
        let ids = line["prompt_ids"].as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>();
        let (ids, at) = (ids.join(","), at.to_string());
        let alone = ["generate", &m, "--tokens", &ids, "--json", "--sample-id", &at];
        let alone = parsed(&ok(&scratch.0, &[&alone[..], &common, &more].concat()));
        for key in ["prompt", "completion", "prompt_ids", "completion_ids", "logprobs", "finish_reason"] {
            assert_eq!(alone[key], line[key], "{at}: {key}");
        }
        reasons.push(line["finish_reason"].as_str().unwrap().to_string());
    }
    assert!(reasons.iter().any(|reason| reason == "stop"), "{reasons:?}");
    scratch.file("c.jsonl", &printed);
    let replayed = done(&scratch.0, &["replay", "c.jsonl", "-m", &m]);
    assert!(replayed.starts_with("12 of 12 completions regenerated"), "{replayed}");
    let stop = reasons.iter().position(|reason| reason == "stop").unwrap();
    let mut changed: Vec<Value> = printed.lines().map(parsed).collect();
    changed[stop]["stop"] = serde_json::json!([]);
    scratch.file("changed.jsonl", &changed.iter().map(|line| format!("{line}\n")).collect::<String>());
    let output = xtrain(&scratch.0, &["replay", "changed.jsonl", "--model", &m]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    changed[stop]["stop"] = serde_json::json!(stops);
    changed[stop]["repetition_penalty"] = 5.0.into();
    scratch.file("changed.jsonl", &changed.iter().map(|line| format!("{line}\n")).collect::<String>());
    let output = xtrain(&scratch.0, &["replay", "changed.jsonl", "--model", &m]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn a_repetition_penalty_makes_greedy_text_repeat_fewer_tokens() {
    let (scratch, m) = (Scratch::new("penalty"), model());
    let distinct = |penalty: &str| {
        let args =
            ["generate", &m, "--prompt", "ab", "--max-new", "60", "--temperature", "0", "--ignore-eos"];
        let args = [&args[..], &["--json", "--repetition-penalty", penalty]].concat();
        let mut ids = parsed(&ok(&scratch.0, &args))["completion_ids"].as_array().unwrap().clone();
        ids.sort_by_key(|id| id.as_u64());
        ids.dedup();
        ids.len()
    };
    let [none, some] = ["1", "1.5"].map(distinct);
    assert!(some > none, "{none} distinct tokens without a penalty, {some} with 1.5");
}

#[test]
fn a_chat_reply_ends_before_a_stop_text_and_the_next_turn_reads_the_text_before_it() {
    let (scratch, m) = (Scratch::new("stop-chat"), model());
    let args = ["chat", "--model", &m, "--json", "--max-new", "16", "--seed", "3", "--temperature", "0.9"];
    let replies = |more: &[&str]| {
        let done = with_input(&scratch.0, &[&args[..], more].concat(), b"Hi\nand?\n");
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        text(&done.stdout).lines().map(parsed).collect::<Vec<_>>()
    };
    let plain = replies(&[])[0]["completion"].as_str().unwrap().to_string();
    let stop = part(&plain, 3..5);
    let got = replies(&["--stop", &stop]);
    let before = plain.split(&stop).next().unwrap();
    assert_eq!((&got[0]["completion"], &got[0]["finish_reason"]), (&before.into(), &"stop".into()));
    let ids =
        got[1]["prompt_ids"].as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>().join(",");
    let decoded = parsed(&ok(&scratch.0, &["tokenize", "--model", &m, "--json", "--ids", &ids]));
    let decoded = decoded["text"].as_str().unwrap();
    assert!(decoded.contains(&format!("assistant\n{before}<|im_end|>\n<|im_start|>user\nand?")), "{decoded}");
}

#[test]
fn stop_texts_need_a_tokenizer() {
    let scratch = Scratch::new("stop-ids");
    let from = crate::fixtures::path("models/qwen3_tied");
    for name in ["config.json", "model.safetensors"] {
        scratch.file(&format!("m/{name}"), "");
        std::fs::copy(from.join(name), scratch.0.join("m").join(name)).unwrap();
    }
    let args = ["generate", "m", "--tokens", "1,2", "--max-new", "3"];
    done(&scratch.0, &args);
    refused(&scratch.0, &[&args[..], &["--stop", "a"]].concat(), 66, &["no tokenizer.json", "--stop"]);
}
