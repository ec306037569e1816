//! `xtrain eval --choices`: the log-probabilities of choices are those of `xtrain score`.
use serde_json::{Value, json};

use crate::cli::{Scratch, refused};
use crate::commands::{done, model, parsed};

/// Prompts, choices and right answers. Choices of a question begin with the same text, or have different lengths.
fn questions() -> Vec<(&'static str, Vec<&'static str>, Value)> {
    vec![
        ("12+34=", vec!["46", "47 is wrong", "4"], json!(0)),
        ("The quick brown", vec![" fox", " fox jumps", " dog", " fox"], json!(" dog")),
        ("a", vec!["bb", "bbbb bbbb bbbb"], json!(1)),
    ]
}

#[test]
pub(crate) fn log_probabilities_of_choices_are_those_of_scores() {
    let (scratch, m) = (Scratch::new("choices"), model());
    let dir = &scratch.0;
    let questions = questions();
    let mut file = String::new();
    let mut data = String::new();
    for (prompt, choices, answer) in &questions {
        file += &format!("{}\n", json!({"prompt": prompt, "choices": choices, "answer": answer}));
        for choice in choices {
            data += &format!("{}\n", json!({"prompt": prompt, "completion": choice}));
        }
    }
    scratch.file("q.jsonl", &file);
    scratch.file("s.jsonl", &data);
    let scores = done(dir, &["score", &m, "--data", "s.jsonl"]);
    let mut scores = scores.lines().map(|line| {
        let logprobs = parsed(line)["score"]["logprobs"].clone();
        let logprobs = logprobs.as_array().unwrap();
        // the last target is the token that ends the text
        let values = logprobs[..logprobs.len() - 1].iter();
        values.map(|value| f64::from(value.as_f64().unwrap() as f32)).sum::<f64>()
    });
    let shown = done(dir, &["eval", &m, "--choices", "q.jsonl", "--json"]);
    let found = parsed(&shown)["choices"].clone();
    let (mut correct, mut per_byte) = (0, 0);
    for (at, (_, choices, answer)) in questions.iter().enumerate() {
        let want: Vec<f64> = scores.by_ref().take(choices.len()).collect();
        let line = &found["answers"][at];
        assert_eq!(line["logprobs"], json!(want), "logprobs of question {at}");
        let best = |values: &[f64]| (0..values.len()).rev().max_by(|&a, &b| values[a].total_cmp(&values[b]));
        let of_bytes: Vec<f64> =
            want.iter().zip(choices).map(|(sum, text)| sum / text.len() as f64).collect();
        let chosen = [best(&want).unwrap(), best(&of_bytes).unwrap()];
        assert_eq!([&line["chosen"], &line["chosen_per_byte"]], [&json!(chosen[0]), &json!(chosen[1])]);
        let right = match answer.as_str() {
            Some(text) => choices.iter().position(|choice| *choice == text).unwrap(),
            None => answer.as_u64().unwrap() as usize,
        };
        assert_eq!(line["answer"], json!(right));
        correct += usize::from(chosen[0] == right);
        per_byte += usize::from(chosen[1] == right);
    }
    assert_eq!(found["questions"], json!(questions.len()));
    assert_eq!([&found["correct"], &found["correct_per_byte"]], [&json!(correct), &json!(per_byte)]);
    for threads in ["1", "2"] {
        let again = done(dir, &["eval", &m, "--choices", "q.jsonl", "--json", "--threads", threads]);
        assert_eq!(parsed(&again)["choices"]["answers"], found["answers"], "{threads} threads");
    }
    let table = done(dir, &["eval", &m, "--choices", "q.jsonl"]);
    assert!(table.contains("per byte") && table.contains(&format!("{:.1} %", 100.0 * correct as f64 / 3.0)));
}

#[test]
fn questions_that_cannot_be_answered_are_named() {
    let (scratch, m) = (Scratch::new("choices-refused"), model());
    let long = "long text ".repeat(200);
    for (line, parts) in [
        (json!({"prompt": "a", "answer": 0}), &["no \"choices\""][..]),
        (json!({"prompt": "a", "choices": ["b", "c"]}), &["no \"answer\""]),
        (json!({"prompt": "a", "choices": ["b", "c"], "answer": 2}), &["\"answer\": 2 for 2 choices"]),
        (json!({"prompt": "a", "choices": ["b", "c"], "answer": "d"}), &["\"answer\": \"d\" for 2 choices"]),
        (json!({"prompt": "a", "choices": ["b", ""], "answer": 0}), &["an empty string at index 1"]),
        (json!({"prompt": "a", "choices": ["b", 3], "answer": 0}), &["\"choices\" with 3 at index 1"]),
        (json!({"prompt": "a", "choices": ["b"], "answer": 0}), &["\"choices\" of length 1"]),
        (json!({"prompt": "a", "choices": "bc", "answer": 0}), &["\"choices\" that is no list"]),
        (json!({"prompt": "a", "choices": ["b", long], "answer": 0}), &["expected at most 257 tokens"]),
        (json!({"choices": ["b", "c"], "answer": 0}), &["\"prompt\""]),
    ] {
        let fine = json!({"prompt": "a", "choices": ["b", "c"], "answer": 0});
        scratch.file("q.jsonl", &format!("{fine}\n{line}\n"));
        refused(&scratch.0, &["eval", &m, "--choices", "q.jsonl"], 65, &[&["q.jsonl:2: "], parts].concat());
    }
    refused(&scratch.0, &["eval", &m, "--choices", "gone.jsonl"], 66, &["gone.jsonl"]);
    scratch.file("q.jsonl", &format!("{}\n", json!({"prompt": "a", "choices": ["b", "c"], "answer": 0})));
    scratch.file("t.jsonl", "{\"prompt\": \"a\", \"answer\": \"b\"}\n");
    let both = done(&scratch.0, &["eval", &m, "--choices", "q.jsonl", "--task", "t.jsonl", "--max-new", "1"]);
    assert!(both.contains("per byte") && both.contains("prompts"), "{both}");
}
