//! `--kv int8` and `xtrain bench cache-kinds`.
use crate::cli::{Scratch, ok, refused, text};
use crate::commands::{done, model, parsed};
use crate::commands_tokenize::with_input;

#[test]
fn rollouts_with_an_int8_cache_are_replayed_with_one() {
    let (scratch, m) = (Scratch::new("int8"), model());
    let rollout =
        ["rollout", &m, "-n", "3", "--max-new", "20", "--kv", "int8", "--page-size", "4", "--out", "r.jsonl"];
    let rolled_out = with_input(&scratch.0, &rollout, b"{\"prompt\": \"abcdefgh\"}\n{\"prompt\": \"xyz\"}\n");
    assert_eq!(rolled_out.status.code(), Some(0), "{}", text(&rolled_out.stderr));
    let shown = done(&scratch.0, &["replay", "r.jsonl", "--model", &m, "--kv", "int8"]);
    assert!(shown.starts_with("6 of 6 completions regenerated"), "{shown}");
    let exact = ["replay", "r.jsonl", "--model", &m];
    refused(&scratch.0, &exact, 65, &["r.jsonl:1: expected int8, found an exact cache", "hint: --kv int8"]);
    let generate = ["generate", &m, "--prompt", "abcdefgh", "--max-new", "20", "--json", "--kv", "int8"];
    let one = parsed(&ok(&scratch.0, &generate));
    let drafted = parsed(&ok(&scratch.0, &[&generate[..], &["--speculate", "lookup"]].concat()));
    assert_eq!(one["completion_ids"], drafted["completion_ids"]);
}

#[test]
fn commands_that_need_exact_results_refuse_an_int8_cache() {
    let (scratch, m) = (Scratch::new("int8-refused"), model());
    let int8 = ["--kv", "int8"];
    let parts = |command| ["--kv int8 is lossy", command, "hint: use --kv paged"];
    let (data, eval) = (["train", "--data", "t.txt"], ["eval", &m, "--data", "t.txt"]);
    for args in [&["verify", &m][..], &["grpo", "--init", &m], &data, &["quickstart"], &eval] {
        refused(&scratch.0, &[args, &int8].concat(), 2, &parts(args[0]));
    }
}

#[test]
fn bench_cache_kinds_compares_the_kinds_under_one_budget() {
    let (scratch, m) = (Scratch::new("cache-kinds"), model());
    let args = ["bench", "cache-kinds", "--model", &m, "--budget-mib", "1", "--batch", "2", "--repeats", "1"];
    let args = [&args[..], &["--prompt-len", "9", "--max-new", "7", "--page-size", "16"]].concat();
    let got = parsed(&ok(&scratch.0, &[&args[..], &["--json"]].concat()));
    let kinds = got["kinds"].as_array().unwrap();
    let names = ["growing", "contiguous", "paged:16", "int8:16"];
    assert_eq!(kinds.iter().map(|kind| kind["kv"].as_str().unwrap()).collect::<Vec<_>>(), names);
    for kind in kinds {
        let int8 = kind["kv"] == "int8:16";
        let bytes = if int8 { 2 * 2 * 2 * (16 + 4) } else { 2 * 2 * 2 * 16 * 4 };
        assert_eq!(kind["bytes_per_token"], bytes, "{kind}");
        assert_eq!(kind["allocated_bytes_per_token"].as_f64(), Some(f64::from(bytes)), "{kind}");
        assert_eq!(kind["exact"], !int8, "{kind}");
        let positions = (1 << 20) / bytes as u64;
        let whole = if kind["kv"].as_str().unwrap().contains(':') { positions / 16 * 16 } else { positions };
        assert_eq!(kind["positions_in_budget"], whole, "{kind}");
        assert_eq!(kind["samples"].as_array().unwrap().len(), 1);
        let same = kind["perplexity"] == kinds[0]["perplexity"];
        assert_eq!(same, !int8, "exact kinds have the same bits: {kind}");
    }
    let shown = ok(&scratch.0, &args);
    assert!(shown.contains("lossy") && shown.contains("int8: perplexity increase"), "{shown}");
    let small = ["--prompt-len", "200", "--max-new", "50", "--batch", "30"];
    let small = [&args[..4], &["--budget-mib", "1"], &small].concat();
    refused(&scratch.0, &small, 2, &["--budget-mib 1", "room for 7500 tokens", "hint: "]);
    scratch.file("t.txt", "a short text");
    refused(&scratch.0, &[&args[..], &["--text", "t.txt"]].concat(), 65, &["t.txt", "at least", "tokens"]);
}
