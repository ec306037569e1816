//! `xtrain eval --task` with answers that a model completes, and answers that it does not.
use serde_json::{Value, json};

use crate::cli::{Scratch, ok};
use crate::commands::parsed;
use crate::fixtures::path;

#[test]
fn correct_and_wrong_answers_are_counted() {
    let scratch = Scratch::new("eval-task");
    let pairs = [
        ("1+9=", "\"]}"),
        ("1+1=", "002"),
        ("2+9=", "\"]}"),
        ("1+2=", "003"),
        ("1+3=", "004"),
        ("1+5=", "006"),
        ("1+6=", "007"),
        ("1+7=", "008"),
        ("1+8=", "009"),
    ];
    let lines = pairs.map(|(prompt, answer)| json!({"prompt": prompt, "answer": answer}).to_string());
    scratch.file("t.jsonl", &lines.join("\n"));
    let model = path("models/llama3_rope").display().to_string();
    let args = ["eval", &model, "--task", "t.jsonl"];
    let shown = ok(&scratch.0, &args);
    let row: Vec<&str> = shown.lines().nth(2).unwrap().split_whitespace().collect();
    assert_eq!(row, ["t", "22.2", "%", "2", "9"], "{shown}");
    assert_eq!(shown.lines().filter(|line| line.starts_with("wrong: ")).count(), 5, "{shown}");
    let last = "and 2 more (use --json to list all)\n\
                7 of 7 wrong completions ended at the maximum length (--max-new) or the context\n";
    assert!(shown.ends_with(last), "{shown}");
    let report = parsed(&ok(&scratch.0, &[&args[..], &["--json"]].concat()));
    let task = &report["task"];
    assert_eq!(
        (&task["accuracy"], &task["correct"], &task["prompts"]),
        (&json!(2.0 / 9.0), &json!(2), &json!(9))
    );
    assert_eq!(task["wrong"].as_array().unwrap().len(), 7);
    // the default leaves room for 8 tokens more than the answer
    let lengths = |report: &Value| -> Vec<usize> {
        let wrong = report["task"]["wrong"].as_array().unwrap();
        wrong.iter().map(|one| one["completion"].as_str().unwrap().len()).collect()
    };
    let short = parsed(&ok(&scratch.0, &[&args[..], &["--json", "--max-new", "1"]].concat()));
    assert_eq!(short["task"]["truncated"], 7, "{short}");
    assert!(lengths(&short).iter().zip(lengths(&report)).all(|(short, long)| *short < long), "{short}");
}
