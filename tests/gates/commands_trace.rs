//! `xtrain bench trace`, and the scheduler flags of `xtrain rollout`.
use serde_json::{Value, json};

use crate::cli::{Scratch, ok, refused, text};
use crate::commands::{model, parsed};
use crate::commands_situations::{copied, edit};
use crate::commands_tokenize::with_input;

#[test]
fn bench_trace_reports_latencies_and_goodput_of_both_patterns() {
    let (scratch, m) = (Scratch::new("trace"), model());
    let args = ["bench", "trace", "--model", &m, "--requests", "40", "--rate", "400", "--prompt-len", "12"];
    let args = [&args[..], &["--max-new", "10", "--max-batch-size", "4", "--high-priority", "0.3"]].concat();
    for pattern in ["poisson", "bursty"] {
        let flags = ["--arrivals", pattern, "--limit-ttft", "1e6", "--limit-gap", "1e6", "--json"];
        let report = parsed(&ok(&scratch.0, &[&args[..], &flags].concat()));
        let number = |path: &str| report.pointer(path).and_then(|value| value.as_f64());
        for metric in ["ttft_ms", "inter_token_ms", "ttft_ms_high_priority"] {
            let at = |name: &str| number(&format!("/{metric}/{name}")).unwrap();
            let rising = ["p50", "p95", "p99", "max"].map(at);
            assert!(rising.is_sorted() && rising[0] >= 0.0, "{metric}: {rising:?}");
        }
        for (metric, n) in [("ttft_ms", 40.0), ("ttft_ms_high_priority", 9.0), ("inter_token_ms", 355.0)] {
            assert_eq!(number(&format!("/{metric}/n")), Some(n), "{pattern}: {metric}");
        }
        // a first token of each request, and those after it
        for (rate, n) in [("/tokens_per_second", 40.0 + 355.0), ("/requests_per_second", 40.0)] {
            let found = number(rate).unwrap() * number("/total_ms").unwrap() / 1e3;
            assert!((found / n - 1.0).abs() < 1e-6, "{pattern}: {rate}: {found} in total, expected {n}");
        }
        assert_eq!(number("/goodput"), number("/requests_per_second"), "{pattern}");
        assert_eq!(report["trace"]["pattern"], pattern);
        assert_eq!([&report["kv"], &report["speculate"]], ["paged:64", "off"], "{pattern}");
        assert!(report["draft"].is_null(), "{pattern}");
        let strict = ["--arrivals", pattern, "--limit-ttft", "1e-9", "--json"];
        assert_eq!(parsed(&ok(&scratch.0, &[&args[..], &strict].concat()))["goodput"], 0.0, "{pattern}");
    }
    let table = ok(&scratch.0, &args);
    for part in
        ["40 requests in", "goodput:", "time to first token, priority 1", "time between tokens", "p99"]
    {
        assert!(table.contains(part), "{part}: {table}");
    }
    let long = ["--max-new", "400"];
    refused(&scratch.0, &[&args[..], &long].concat(), 2, &["a request can have", "at most 256"]);
}

#[test]
fn the_default_lengths_of_bench_trace_fit_the_context() {
    let scratch = Scratch::new("trace-context");
    let m = copied(&scratch, "qwen3_tied");
    edit(&m, "config.json", "max_position_embeddings", json!(64));
    let trace =
        ["bench", "trace", "--model", &m, "--requests", "8", "--rate", "1000", "--threads", "1", "--json"];
    let report = parsed(&ok(&scratch.0, &trace));
    assert_eq!((&report["trace"]["prompt_len"], &report["trace"]["max_new"]), (&json!(21), &json!(21)));
    let report = parsed(&ok(&scratch.0, &[&trace[..], &["--prompt-len", "30"]].concat()));
    assert_eq!(
        report["trace"]["max_new"],
        json!(12),
        "64 tokens without 45 of the prompt, of which 1.5 times 12"
    );
}

#[test]
fn bench_trace_reports_its_flags_and_counts_preemptions_and_drafts() {
    let (scratch, m) = (Scratch::new("trace-counters"), model());
    // all requests have arrived after the first step
    let args = ["bench", "trace", "--model", &m, "--json", "--rate", "1e9", "--prompt-len", "12"];
    let run =
        |flags: &[&str]| parsed(&ok(&scratch.0, &[&args[..], &["--max-batch-size", "4"], flags].concat()));
    let count = |report: &Value, key: &str| report[key].as_u64().unwrap_or_else(|| panic!("{key}: {report}"));

    let wide = run(&["--requests", "20", "--max-new", "10", "--arrivals", "bursty", "--burst", "3"]);
    for key in ["preemptions", "offloaded_tokens", "restored_tokens", "drafted_tokens", "accepted_tokens"] {
        assert_eq!(count(&wide, key), 0, "{key}");
    }
    assert_eq!((count(&wide["trace"], "burst"), count(&wide["trace"], "seed")), (3, 0));

    // four sequences of up to 33 tokens do not fit
    let full = ["--requests", "20", "--max-new", "10", "--kv-capacity", "64", "--watermark", "0"];
    let full = [&full[..], &["--page-size", "8", "--trace-seed", "5"]].concat();
    let recomputed = run(&full);
    assert!(count(&recomputed, "preemptions") > 0, "{recomputed}");
    assert_eq!((count(&recomputed, "offloaded_tokens"), count(&recomputed, "kv_capacity")), (0, 64));
    assert_eq!(count(&recomputed["trace"], "seed"), 5);
    let moved = run(&[&full[..], &["--preempt", "offload"]].concat());
    let (to, back) = (count(&moved, "offloaded_tokens"), count(&moved, "restored_tokens"));
    assert!((1..=to).contains(&back), "{moved}");

    let drafts = run(&["--requests", "10", "--max-new", "60", "--speculate", "lookup"]);
    let (drafted, accepted) = (count(&drafts, "drafted_tokens"), count(&drafts, "accepted_tokens"));
    assert!((1..=drafted).contains(&accepted), "{drafts}");
}

#[test]
fn the_scheduler_flags_change_no_completion_and_name_their_limits() {
    let (scratch, m) = (Scratch::new("budgets"), model());
    let prompts = "{\"prompt\": \"one two\"}\n{\"prompt\": \"three\"}\n{\"prompt\": \"four five six\"}\n";
    let args = ["rollout", &m, "-n", "3", "--max-new", "20", "--page-size", "8"];
    let run = |flags: &[&str]| {
        let done = with_input(&scratch.0, &[&args[..], flags].concat(), prompts.as_bytes());
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    };
    let want = run(&[]);
    assert_eq!(want.0, Some(0), "{want:?}");
    for flags in [
        &["--kv-capacity", "64"][..],
        &["--kv-capacity", "64", "--watermark", "24"],
        &["--max-batched-tokens", "4"],
        &["--kv-capacity", "1e15"],
        &["--kv-capacity", "64", "--speculate", "lookup", "--watermark", "8"],
    ] {
        let got = run(flags);
        assert_eq!((got.0, got.1), (Some(0), want.1.clone()), "{flags:?}");
    }
    let (code, _, errors) = run(&["--kv-capacity", "9"]);
    assert!(code == Some(2) && errors.contains("--kv-capacity 9: expected at least "), "{errors}");
}
