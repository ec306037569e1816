//! `xtrain report`: one well-formed file with every value, no address outside it, and no text of a model as markup.
use std::fs;

use serde_json::{Value, json};

use crate::cli::{Scratch, ok, refused};
use crate::commands::{done, tiny_run};

/// A text that a model could generate to break out of its element.
const HOSTILE: &str =
    "</pre></script><script>alert(1)</script><img src=x onerror=\"alert('2')\"> & ]]> \u{1b}[2J\u{202e}";

/// Checks that every element is closed, in order, and returns the names of all elements.
#[track_caller]
fn elements(html: &str) -> Vec<String> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    let mut rest = html.strip_prefix("<!DOCTYPE html>\n").expect("a document type");
    while let Some(at) = rest.find('<') {
        let tag = &rest[at + 1..];
        let end = tag.find('>').expect("an unfinished tag");
        let inner = &tag[..end];
        assert!(inner.matches('"').count().is_multiple_of(2) && !inner.contains('<'), "<{inner}>");
        match inner.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop().as_deref(), Some(name), "</{name}>"),
            None => {
                let name: String = inner.chars().take_while(char::is_ascii_alphanumeric).collect();
                assert!(!name.is_empty(), "<{inner}>");
                all.push(name.clone());
                if !inner.ends_with('/') {
                    open.push(name);
                }
            }
        }
        rest = &tag[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
    all
}

/// The embedded data of the charts.
fn data(html: &str) -> Vec<Value> {
    let (_, data) = html.split_once("id=\"data\">").unwrap();
    serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
}

/// The number of points of each curve.
fn points(html: &str) -> Vec<(String, usize)> {
    let charts = data(html);
    let curves = charts.iter().flat_map(|chart| chart["curves"].as_array().unwrap());
    let length = |curve: &Value, axis: &str| curve[axis].as_array().unwrap().len();
    curves
        .map(|curve| {
            assert_eq!(length(curve, "x"), length(curve, "y"));
            (curve["name"].as_str().unwrap().to_string(), length(curve, "x"))
        })
        .collect()
}

fn write_run(scratch: &Scratch, name: &str, steps: u32, offset: f64) {
    let mut lines = [String::new(), String::new()];
    for step in 1..=steps {
        let loss = 1.0 + offset + 3.0 / f64::from(step);
        let mut line = json!({"step": step, "loss": loss, "grad_norm": 0.5, "learning_rate": 1e-3});
        if step % 100 == 0 {
            line["val_loss"] = json!(loss + 0.25);
        }
        lines[0] += &format!("{line}\n");
        lines[1] += &format!("{}\n", json!({"step": step, "step_time": 0.01, "tokens_per_second": 1e4}));
    }
    // A running process may have written half a line.
    scratch.file(&format!("{name}/metrics.jsonl"), &format!("{}{{\"step\":", lines[0]));
    scratch.file(&format!("{name}/timings.jsonl"), &lines[1]);
    let sample = json!({"step": 1, "samples": [HOSTILE, "second"]});
    scratch.file(&format!("{name}/samples.jsonl"), &format!("{sample}\n"));
    scratch.file(&format!("{name}/config.toml"), &format!("[train]\nsteps = {steps}\n"));
}

#[track_caller]
fn check(html: &str) {
    let all = elements(html);
    assert_eq!(all.iter().filter(|name| *name == "script").count(), 2, "the data and the page's script");
    assert!(!all.iter().any(|name| ["img", "link", "iframe", "object", "base"].contains(&name.as_str())));
    // The escaped text of a sample may name an address; nothing else may.
    let rest = html.replace("&lt;img src=x", "").replace("\\u003cimg src=x", "");
    for outside in ["http:", "https:", "//cdn", "url(", "@import", "src=", "href=", "fetch(", "import("] {
        assert!(!rest.contains(outside), "{outside}");
    }
    assert!(!html.contains('\u{1b}') && !html.contains("NaN"), "control characters");
}

#[test]
pub(crate) fn a_report_has_every_value_and_no_text_becomes_markup() {
    let scratch = Scratch::new("report");
    write_run(&scratch, "runs/a", 300, 0.0);
    let shown = ok(&scratch.0, &["report", "a"]);
    assert!(shown.starts_with("wrote runs/a/report.html ("), "{shown}");
    let html = fs::read_to_string(scratch.0.join("runs/a/report.html")).unwrap();
    check(&html);
    let want = [
        ("loss", 300),
        ("val_loss", 3),
        ("learning_rate", 300),
        ("grad_norm", 300),
        ("tokens_per_second", 300),
    ];
    assert_eq!(points(&html), want.map(|(name, n)| (name.to_string(), n)));
    let loss = data(&html)[0]["curves"][0]["y"][1].as_f64().unwrap();
    assert_eq!(loss, 2.5);
    for part in [
        "&lt;/script&gt;&lt;script&gt;alert(1)",
        "onerror=&quot;alert(&#39;2&#39;)&quot;",
        "second",
        "steps = 300",
    ] {
        assert!(html.contains(part), "{part}");
    }
    ok(&scratch.0, &["report", "a"]);
    let named = ["report", "a", "--out", "a.html"];
    ok(&scratch.0, &named);
    refused(&scratch.0, &named, 2, &["a.html", "already exists", "--force"]);
    ok(&scratch.0, &[&named[..], &["--force"]].concat());
    ok(&scratch.0, &["report", "a", "--out", "elsewhere.html"]);
    assert_eq!(fs::read_to_string(scratch.0.join("elsewhere.html")).unwrap(), html);
}

#[test]
fn a_report_compares_two_runs() {
    let scratch = Scratch::new("report2");
    write_run(&scratch, "runs/a", 20, 0.0);
    write_run(&scratch, "runs/b", 10, 0.5);
    ok(&scratch.0, &["report", "a", "--compare", "b", "--out", "ab.html"]);
    let html = fs::read_to_string(scratch.0.join("ab.html")).unwrap();
    check(&html);
    let of_loss: Vec<_> = points(&html).into_iter().take(2).collect();
    assert_eq!(of_loss, [("a: loss".to_string(), 20), ("b: loss".to_string(), 10)]);
    assert!(html.contains("<td>train.steps</td><td>20</td><td>10</td>"), "{html}");
    assert!(html.contains("dashed"));
}

#[test]
fn a_report_of_a_run_has_its_samples_and_its_machine() {
    let scratch = Scratch::new("report3");
    scratch.file("t.txt", &"the cat sat on the mat\n".repeat(40));
    let run = tiny_run("r", "t.txt", &["train.steps=4", "train.sample_every=2", "sample.max_new=4"]);
    done(&scratch.0, &[&run[..], &["--threads", "2"]].concat());
    let session: Value =
        serde_json::from_slice(&fs::read(scratch.0.join("r/logs/session.json")).unwrap()).unwrap();
    assert_eq!(session["end"]["outcome"], "done");
    assert_eq!(fs::read_to_string(scratch.0.join("r/samples.jsonl")).unwrap().lines().count(), 2);
    ok(&scratch.0, &["report", "r"]);
    let html = fs::read_to_string(scratch.0.join("r/report.html")).unwrap();
    check(&html);
    assert!(
        points(&html).iter().all(|(name, n)| *n == if name == "val_loss" { 1 } else { 4 }),
        "{:?}",
        points(&html)
    );
    for part in ["finished", "step 4", "samples of 1 earlier step", "2 threads", env!("CARGO_PKG_VERSION")] {
        assert!(html.contains(part), "{part}");
    }
}

#[test]
fn a_report_of_reinforcement_learning_has_completions_and_rewards() {
    let scratch = Scratch::new("report4");
    let metrics: String = (1..)
        .zip([0.2, 0.4, 1.0, 0.6, 0.8])
        .map(|(step, reward): (u32, f64)| {
            let mut line = json!({"step": step, "entropy": 1.0, "completions/mean_length": 7.5});
            // Reward programs choose the names of their rewards.
            for key in ["reward", &format!("rewards/{HOSTILE}/mean"), "rewards/other/mean"] {
                line[key] = json!(reward);
            }
            format!("{line}\n")
        })
        .collect();
    scratch.file("g/metrics.jsonl", &metrics);
    let times = json!({"step": 1, "step_time": 3.0, "rollout_time": 2.0, "update_time": 1.0});
    scratch.file("g/timings.jsonl", &format!("{times}\n"));
    let line = |reward: f64, text: &str| {
        json!({
            "step": 5, "prompt_id": 0, "group": 0, "sample": 0, "sample_id": 0, "seed": 0, "prompt": "1+1=",
            "completion": text, "prompt_ids": [1], "completion_ids": [2], "processed_logprobs": [0.0],
            "reward": reward, "finish_reason": "eos", "truncated": false, "temperature": 1.0, "top_p": 1.0,
            "top_k": 0, "min_p": 0.0,
        })
    };
    let rows = format!("{}\n{}\n", line(0.0, HOSTILE), line(1.0, "2"));
    scratch.file("g/rollouts/step_000005.jsonl", &rows);
    ok(&scratch.0, &["report", "g"]);
    let html = fs::read_to_string(scratch.0.join("g/report.html")).unwrap();
    check(&html);
    let names: Vec<String> = points(&html).into_iter().map(|(name, _)| name).collect();
    for name in ["reward", "entropy", "completions/mean_length", "rollout_time"] {
        assert!(names.contains(&name.to_string()), "{name}: {names:?}");
    }
    for part in [
        "step 5, best, reward 1.000",
        "step 5, worst, reward 0.000",
        "66.7 %",
        "1+1=\u{25b8}2",
        "best 1.000 at step 3",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
}

#[test]
fn a_report_names_the_step_of_the_lowest_validation_loss() {
    let scratch = Scratch::new("report6");
    let lines = |losses: [f64; 3]| -> String {
        let line =
            |(step, loss): (u32, f64)| format!("{}\n", json!({"step": step, "loss": 5.0, "val_loss": loss}));
        (1..).zip(losses).map(line).collect()
    };
    for (losses, note) in [([4.0, 3.0, 3.5], "best 3.000 at step 2"), ([4.0, 3.5, 3.0], "the best so far")] {
        scratch.file("a/metrics.jsonl", &lines(losses));
        ok(&scratch.0, &["report", "a"]);
        let html = fs::read_to_string(scratch.0.join("a/report.html")).unwrap();
        assert!(html.contains(note), "{note}: {html}");
        assert_eq!(html.contains("at step"), note.contains("at step"), "{html}");
    }
}

#[test]
fn a_report_of_something_else_is_refused() {
    let scratch = Scratch::new("report5");
    scratch.file("bad/metrics.jsonl", "nonsense\n");
    scratch.file("empty/metrics.jsonl", "");
    fs::create_dir_all(scratch.0.join("bare")).unwrap();
    refused(&scratch.0, &["report", "gone"], 66, &["gone"]);
    refused(&scratch.0, &["report", "bare"], 66, &["metrics.jsonl", "xtrain train or xtrain grpo"]);
    refused(&scratch.0, &["report", "bad"], 65, &["metrics.jsonl:1: "]);
    refused(&scratch.0, &["report", "empty"], 65, &["metrics.jsonl", "xtrain watch empty"]);
    write_run(&scratch, "a", 3, 0.0);
    refused(&scratch.0, &["report", "a", "--out", "no/such.html"], 66, &["no/such.html"]);
}
