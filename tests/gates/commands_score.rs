//! `xtrain score`: the log-probabilities of given tokens are those of rollouts and of evaluations.
use std::path::Path;

use serde_json::{Value, json};

use crate::cli::{Scratch, ok, refused, xtrain};
use crate::commands::{done, model, parsed};

const DATA: &str = r#"{"text": "some text to measure, of no meaning at all", "id": 7}

{"prompt": "12+34=", "completion": "46"}
{"prompt": "a", "completion": ""}
{"text": "one<|endoftext|>two"}
"#;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(parsed).collect()
}

fn f32_bits(values: &Value) -> Vec<u32> {
    let values = values.as_array().unwrap_or_else(|| panic!("a list: {values}"));
    values.iter().map(|value| (value.as_f64().unwrap() as f32).to_bits()).collect()
}

/// Rollouts of `dtype` and their scores, in passes of several lines, with one and with two threads.
fn compare(dir: &Path, m: &str, dtype: &str) {
    let rollout = ["rollout", m, "--prompts", "p.jsonl", "-n", "3", "--max-new", "9", "--dtype", dtype];
    let completions = lines(&done(dir, &rollout));
    assert_eq!(completions.len(), 9);
    let text: String = completions.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(dir.join("c.jsonl"), text).unwrap();
    for threads in ["1", "2"] {
        let args = ["score", m, "--data", "c.jsonl", "--dtype", dtype, "--threads", threads];
        let scored = lines(&done(dir, &args));
        assert_eq!(scored.len(), completions.len());
        for (scored, line) in scored.iter().zip(&completions) {
            let place = format!("{dtype}, {threads} threads, sample_id {}", line["sample_id"]);
            let score = &scored["score"];
            assert_eq!(score["target_ids"], line["completion_ids"], "{place}");
            let [got, want] = [&score["logprobs"], &line["logprobs"]].map(f32_bits);
            let at = got.iter().zip(&want).position(|(got, want)| got != want);
            let hex = |bits: &[u32]| at.map(|at| format!("{:#010x}", bits[at]));
            assert!(
                got == want,
                "logprobs of score and rollout, {place}: token {at:?}, found {:?}, expected {:?}",
                hex(&got),
                hex(&want)
            );
            let sum: f64 = want.iter().map(|&bits| f64::from(f32::from_bits(bits))).sum();
            assert_eq!(score["sum_logprob"].as_f64(), Some(sum), "{place}");
            assert_eq!(score["mean_logprob"].as_f64(), Some(sum / want.len() as f64), "{place}");
            assert_eq!(scored["prompt"], line["prompt"]);
        }
    }
}

#[test]
pub(crate) fn scores_of_completions_have_the_bits_of_the_rollout() {
    let (scratch, m) = (Scratch::new("score-rollout"), model());
    scratch
        .file("p.jsonl", "{\"prompt\": \"Hello\"}\n{\"prompt\": \"The quick brown\"}\n{\"prompt\": \"1\"}\n");
    compare(&scratch.0, &m, "f32");
    compare(&scratch.0, &m, "bf16");
}

#[test]
fn the_scores_of_training_data_add_up_to_its_loss() {
    let (scratch, m) = (Scratch::new("score-data"), model());
    let dir = &scratch.0;
    scratch.file("t.jsonl", DATA);
    let eval = ["eval", &m, "--data", "t.jsonl", "--packing", "documents", "--json"];
    let loss = &parsed(&ok(dir, &eval))["data"];
    done(dir, &["score", &m, "--data", "t.jsonl", "--out", "s.jsonl"]);
    let scored = lines(&std::fs::read_to_string(dir.join("s.jsonl")).unwrap());
    let [tokens, sum] = ["tokens", "sum_logprob"].map(|key| {
        scored.iter().map(|line| line["score"][key].as_f64().unwrap_or_else(|| panic!("{line}"))).sum::<f64>()
    });
    assert_eq!(Some(tokens), loss["tokens"].as_f64());
    let want = loss["loss"].as_f64().unwrap();
    assert!((-sum / tokens / want - 1.0).abs() < 1e-12, "{} {want}", -sum / tokens);
    assert_eq!(scored.len(), 4);
    assert_eq!(
        (&scored[0]["id"], &scored[0]["text"]),
        (&json!(7), &parsed(DATA.lines().next().unwrap())["text"])
    );
    // the token that ends the completion is the only target
    assert_eq!(scored[2]["score"]["tokens"], json!(1));
    // both documents of the text have an end, which is a target, and a first token, which is none
    let ids = scored[3]["score"]["target_ids"].as_array().unwrap();
    let end = scored[2]["score"]["target_ids"][0].clone();
    assert_eq!(ids.iter().filter(|id| **id == end).count(), 2, "{ids:?}");

    let totals = done(dir, &["score", &m, "--data", "t.jsonl", "--totals-only"]);
    for (line, whole) in lines(&totals).iter().zip(&scored) {
        assert_eq!(line["score"]["sum_logprob"], whole["score"]["sum_logprob"]);
        assert_eq!(line["score"].as_object().unwrap().len(), 3, "{line}");
    }
}

#[test]
pub(crate) fn tokens_that_a_program_appended_are_not_scored() {
    let (scratch, m) = (Scratch::new("score-mask"), model());
    let line = |mask: &str| format!("{{\"prompt_ids\": [5], \"completion_ids\": [6, 7, 8]{mask}}}\n");
    scratch.file("c.jsonl", &[line(""), line(", \"mask\": [1, 0, 1]"), line(", \"mask\": null")].concat());
    let scored = lines(&done(&scratch.0, &["score", &m, "--data", "c.jsonl"]));
    let ids = |at: usize| scored[at]["score"]["target_ids"].clone();
    assert_eq!([ids(0), ids(1), ids(2)], [json!([6, 7, 8]), json!([6, 8]), json!([6, 7, 8])], "target_ids");
    let [all, some] = [0, 1].map(|at| f32_bits(&scored[at]["score"]["logprobs"]));
    assert_eq!([all[0], all[2]], some[..], "the appended token is an input");
}

#[test]
fn lines_that_cannot_be_scored_are_named() {
    let (scratch, m) = (Scratch::new("score-refused"), model());
    let dir = &scratch.0;
    let fine = "{\"prompt_ids\": [5], \"completion_ids\": [6]}\n";
    let long = format!("{{\"prompt_ids\": [5], \"completion_ids\": {:?}}}\n", vec![6; 257]);
    for (line, parts) in [
        ("{\"prompt_ids\": [], \"completion_ids\": [6]}", &["prompt_ids", "at least one token"][..]),
        ("{\"prompt_ids\": [5], \"completion_ids\": [512]}", &["512", "a vocabulary of 512"]),
        ("{\"prompt_ids\": [5], \"completion_ids\": [-1]}", &["\"completion_ids\": -1 at index 0"]),
        ("{\"prompt_ids\": [5], \"completion_ids\": \"a\"}", &["\"completion_ids\": a string"]),
        ("{\"prompt_ids\": [5], \"completion_ids\": [6], \"mask\": [1, 1]}", &["mask", "2 for 1"]),
        ("{\"prompt\": \"a\"}", &["\"completion\" with \"prompt\""]),
        ("{\"prompt_ids\": [5]}", &["\"prompt_ids\" with \"completion_ids\""]),
        ("{\"prompt_ids\": [5], \"completion_ids\": [6], \"mask\": [2]}", &["a \"mask\" of 0 and 1"]),
        ("{\"text\": \"a\", \"n\": 18446744073709551617}", &["integers of at most 64 bits"]),
        ("{\"text\": \"a\", \"score\": 1}", &["field \"score\": expected another name"]),
        (&long, &["expected at most 257 tokens", "found 258"]),
    ] {
        scratch.file("c.jsonl", &format!("{fine}{line}\n"));
        let args = ["score", &m, "--data", "c.jsonl", "--out", "s.jsonl"];
        refused(dir, &args, 65, &[&["c.jsonl:2: "], parts].concat());
        assert!(!dir.join("s.jsonl").exists());
    }
    refused(dir, &["score", &m, "--data", "gone.jsonl"], 66, &["gone.jsonl"]);
    scratch.file("s.jsonl", "");
    refused(dir, &["score", &m, "--data", "c.jsonl", "--out", "s.jsonl"], 2, &["s.jsonl: already exists"]);
}

/// Texts are split as for an evaluation, completions are truncated as for training, and both are counted.
#[test]
pub(crate) fn lines_that_are_longer_than_the_context_are_split_or_truncated() {
    let (scratch, m) = (Scratch::new("score-long"), model());
    let dir = &scratch.0;
    let text = "words of a text that does not fit the context of the model ".repeat(40);
    scratch.file("text.jsonl", &format!("{}\n", json!({"text": text})));
    scratch.file("pair.jsonl", &format!("{}\n", json!({"prompt": "a", "completion": text})));
    let output = xtrain(dir, &["score", &m, "--data", "text.jsonl", "pair.jsonl", "--out", "s.jsonl"]);
    let errors = crate::cli::text(&output.stderr);
    for note in ["1 line longer than the context: split", "1 line longer than the context: truncated"] {
        assert!(errors.contains(note), "no line that is longer than the context: {errors}");
    }
    let scored = lines(&std::fs::read_to_string(dir.join("s.jsonl")).unwrap());
    let eval = ["eval", &m, "--data", "text.jsonl", "--packing", "documents", "--json"];
    let loss = &parsed(&ok(dir, &eval))["data"];
    assert_eq!(scored[0]["score"]["tokens"].as_f64(), loss["tokens"].as_f64());
    let mean = scored[0]["score"]["mean_logprob"].as_f64().unwrap();
    assert!((mean / loss["loss"].as_f64().unwrap() + 1.0).abs() < 1e-12, "{mean} {loss}");
    assert_eq!(scored[0]["score"].get("truncated"), None);
    let truncated = &scored[1]["score"];
    assert_eq!(truncated["truncated"], json!(true), "{truncated}");
    // 256 inputs, of which the last token of the prompt and those after it have targets
    assert_eq!(truncated["tokens"], json!(256), "{truncated}");
}

#[test]
pub(crate) fn completions_of_another_dtype_or_cache_are_noted() {
    let (scratch, m) = (Scratch::new("score-other"), model());
    let dir = &scratch.0;
    scratch.file("p.jsonl", "{\"prompt\": \"Hello\"}\n");
    done(
        dir,
        &["rollout", &m, "--prompts", "p.jsonl", "--dtype", "bf16", "--out", "half.jsonl", "--max-new", "3"],
    );
    done(
        dir,
        &["rollout", &m, "--prompts", "p.jsonl", "--kv", "int8", "--out", "int8.jsonl", "--max-new", "3"],
    );
    let errors = |args: &[&str]| crate::cli::text(&xtrain(dir, args).stderr);
    let half = errors(&["score", &m, "--data", "half.jsonl"]);
    assert!(
        half.contains("warning: half.jsonl:1: ") && half.contains("--dtype bf16 gives"),
        "no warning: {half}"
    );
    let int8 = errors(&["score", &m, "--data", "int8.jsonl"]);
    assert!(int8.contains("warning: int8.jsonl:1: ") && int8.contains("lossy cache int8"), "{int8}");
    let same = errors(&["score", &m, "--data", "half.jsonl", "--dtype", "bf16"]);
    assert!(!same.contains("warning"), "{same}");
    let none = errors(&["score", &m, "--data", "empty.jsonl"]);
    assert!(none.contains("empty.jsonl"), "{none}");
    scratch.file("empty.jsonl", "{\"text\": \"\"}\n");
    let output = xtrain(dir, &["score", &m, "--data", "empty.jsonl"]);
    assert!(crate::cli::text(&output.stderr).ends_with("1 line, no target token\n"), "{output:?}");
    assert!(crate::cli::text(&output.stdout).contains("\"sum_logprob\":0.0,\"mean_logprob\":null"));
}

/// A signal keeps whole lines, and the message has their number.
#[cfg(unix)]
#[test]
fn a_signal_keeps_the_scores_so_far() {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    let (scratch, m) = (Scratch::new("score-signal"), model());
    let line =
        format!("{}\n", json!({"text": "words of a text that fills a window of the model ".repeat(8)}));
    scratch.file("t.jsonl", &line.repeat(20_000));
    let mut command = crate::cli::program();
    command.current_dir(&scratch.0).args(["score", &m, "--data", "t.jsonl", "--out", "s.jsonl"]);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let temporary = scratch.0.join(format!("s.jsonl.xtrain-tmp-{}", child.id()));
    let since = Instant::now();
    while std::fs::metadata(&temporary).map_or(0, |found| found.len()) == 0 {
        assert!(since.elapsed() < Duration::from_secs(60), "no line was scored");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let errors = crate::cli::text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    let kept = lines(&std::fs::read_to_string(scratch.0.join("s.jsonl.partial")).unwrap());
    assert!(!kept.is_empty() && kept.len() < 20_000, "{} lines", kept.len());
    assert!(kept.iter().all(|line| line["score"]["tokens"].as_u64() > Some(9)));
    let stopped = format!("stopped by a signal after {} of 20000 lines", kept.len());
    assert!(errors.contains(&stopped) && errors.contains("are in s.jsonl.partial"), "{errors}");
    assert!(!scratch.0.join("s.jsonl").exists() && !temporary.exists());
}
