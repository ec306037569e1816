//! The flag --top-logprobs: the most probable tokens at the position of each new token.
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value;

use crate::cli::{Scratch, ok, refused, text, xtrain};
use crate::commands::{done, model, parsed};
use crate::fixtures::f32s;

/// The values of the field `top_logprobs`: an id and a log-probability for each token.
fn top(line: &Value) -> Vec<Vec<(usize, f64)>> {
    let pair = |pair: &Value| (pair[0].as_u64().unwrap() as usize, pair[1].as_f64().unwrap());
    let list = |list: &Value| list.as_array().unwrap().iter().map(pair).collect();
    line["top_logprobs"].as_array().unwrap().iter().map(list).collect()
}

fn ids(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as usize).collect()
}

/// Compares the `n` most probable tokens of a line with the logits that `xtrain logits` writes.
fn compare_with_logits(dir: &Path, m: &str, line: &Value, n: usize) {
    let [prompt, new] = ["prompt_ids", "completion_ids"].map(|name| ids(&line[name]));
    let all: Vec<String> = prompt.iter().chain(&new).map(usize::to_string).collect();
    ok(dir, &["logits", m, "--tokens", &all.join(","), "--out", "l.safetensors", "--force"]);
    let bytes = fs::read(dir.join("l.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let values = f32s(file.tensor("logits").unwrap().data());
    let rows: Vec<&[f32]> = values.chunks_exact(values.len() / all.len()).collect();
    let top = top(line);
    assert_eq!(top.len(), new.len());
    for (at, (found, row)) in top.iter().zip(&rows[prompt.len() - 1..]).enumerate() {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        let lse = row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        assert!(found.iter().map(|(id, _)| id).eq(&order[..n]), "token {at}: {found:?}");
        for &(id, logprob) in found {
            // three roundings of f32 and those of its sum of exponentials
            assert!((f64::from(row[id]) - lse - logprob).abs() < 1e-5, "token {at}: {found:?}, {lse}");
        }
        if let Some((_, logprob)) = found.iter().find(|(id, _)| *id == new[at]) {
            assert_eq!(Value::from(*logprob), line["logprobs"][at], "token {at}");
        }
    }
}

#[test]
pub(crate) fn the_most_probable_tokens_are_those_of_the_logits() {
    let (scratch, m) = (Scratch::new("top-logprobs"), model());
    let prompts = [
        "{\"prompt_ids\": [1, 2, 3]}",
        "{\"prompt_ids\": [9], \"top_logprobs\": 0}",
        "{\"prompt_ids\": [4, 5], \"top_logprobs\": 2, \"priority\": 1}",
    ];
    scratch.file("p.jsonl", &(prompts.join("\n") + "\n"));
    let args = ["rollout", &m, "--prompts", "p.jsonl", "-n", "2", "--max-new", "6", "--top-logprobs", "5"];
    done(&scratch.0, &[&args[..], &["--out", "c.jsonl"]].concat());
    let file = fs::read_to_string(scratch.0.join("c.jsonl")).unwrap();
    let lines: Vec<Value> = file.lines().map(parsed).collect();
    for (line, n) in lines.iter().zip([5, 5, 0, 0, 2, 2]) {
        match n {
            0 => assert_eq!(line.get("top_logprobs"), None),
            n => compare_with_logits(&scratch.0, &m, line, n),
        }
    }
    done(&scratch.0, &["replay", "c.jsonl", "--model", &m]);

    // a resume and drafts write the same file
    let kept = file.lines().skip(4).map(|line| format!("{line}\n")).collect::<String>();
    scratch.file("r.jsonl.partial", &kept);
    let others =
        [["--resume", "--out", "r.jsonl"].as_slice(), &["--speculate", "lookup", "--out", "s.jsonl"]];
    for more in others {
        done(&scratch.0, &[&args[..], more].concat());
        let found = fs::read_to_string(scratch.0.join(more.last().unwrap())).unwrap();
        assert_eq!(found, file, "{more:?}");
    }
    let generate = ["generate", &m, "--tokens", "1,2,3", "--max-new", "6", "--sample-id", "1"];
    let generate = [&generate[..], &["--top-logprobs", "5"]].concat();
    let one = parsed(&ok(&scratch.0, &[&generate[..], &["--json"]].concat()));
    assert_eq!(one["top_logprobs"], lines[1]["top_logprobs"]);
    refused(&scratch.0, &generate, 2, &["--json"]);

    // the second line again, with another value, and with a list too few
    let mut changed = lines.clone();
    changed[1]["top_logprobs"][1][0][1] = Value::from(-0.25);
    let write = |name: &str, lines: &[Value]| {
        scratch.file(name, &lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    };
    write("d.jsonl", &changed);
    changed[1]["top_logprobs"].as_array_mut().unwrap().truncate(5);
    write("t.jsonl", &changed);
    for (name, want) in [
        ("d.jsonl", "d.jsonl:2: token 1: expected the most probable tokens [["),
        ("t.jsonl", "t.jsonl:2: top_logprobs: expected 6 lists, one for each token, found 5"),
    ] {
        let output = xtrain(&scratch.0, &["replay", name, "--model", &m]);
        let errors = text(&output.stderr);
        assert!(output.status.code() == Some(1) && errors.contains(want), "{name}: {errors}");
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_gpu_writes_the_most_probable_tokens_of_the_cpu_in_f32() {
    let (scratch, m) = (Scratch::new("top-gpu"), model());
    scratch.file("p.jsonl", "{\"prompt_ids\": [1, 2, 3]}\n{\"prompt_ids\": [9], \"top_logprobs\": 0}\n");
    let args = ["rollout", &m, "--prompts", "p.jsonl", "-n", "2", "--max-new", "6", "--top-logprobs", "5"];
    let of = |device: &str| done(&scratch.0, &[&args[..], &["--device", device]].concat());
    let cpu = of("cpu");
    assert_eq!(of("emulated"), cpu);
    assert_eq!(cpu.matches("\"top_logprobs\":[[[").count(), 2);
}

/// A resume of a rollout refuses completions with another number of most probable tokens, also of prompts that it does
/// not generate again.
#[test]
pub(crate) fn kept_completions_have_the_requested_number_of_tokens() {
    let (scratch, m) = (Scratch::new("top-kept"), model());
    let rollout = ["rollout", &m, "--prompts", "p.jsonl", "--max-new", "3"];
    let prompts = |n: usize| {
        let lines = format!("{{\"prompt_ids\": [1]}}\n{{\"prompt_ids\": [2], \"top_logprobs\": {n}}}\n");
        scratch.file("p.jsonl", &lines);
    };
    for (first, then) in [(2, 4), (2, 0), (0, 1)] {
        prompts(first);
        let lines = done(&scratch.0, &rollout);
        scratch.file("c.jsonl.partial", &lines);
        prompts(then);
        let want = format!("c.jsonl.partial:2: field \"top_logprobs\": expected {then} tokens in each list");
        let resume = [&rollout[..], &["--out", "c.jsonl", "--resume"]].concat();
        refused(&scratch.0, &resume, 65, &[&want, &format!("found {first}")]);
    }
}
