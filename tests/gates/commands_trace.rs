//! `xtrain bench trace`, and the scheduler flags of `xtrain rollout`.
use crate::cli::{Scratch, ok, refused, text};
use crate::commands::{model, parsed};
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
        assert_eq!(number("/ttft_ms/n"), Some(40.0), "{pattern}");
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
