//! `--kv int8`, `--kv sinks` and `xtrain bench cache-kinds`.
use crate::cli::{Scratch, ok, refused, text};
use crate::commands::{done, model, parsed};
use crate::commands_tokenize::with_input;
use crate::fixtures::path;

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
pub(crate) fn a_replay_in_another_dtype_names_the_dtype() {
    let (scratch, m) = (Scratch::new("replay-dtype"), model());
    for policy in [&[][..], &["--policy-digest"]] {
        let rollout = ["rollout", &m, "--max-new", "4", "--dtype", "bf16", "--out", "r.jsonl", "--force"];
        let rolled_out = with_input(&scratch.0, &[&rollout[..], policy].concat(), b"{\"prompt\": \"abc\"}\n");
        assert_eq!(rolled_out.status.code(), Some(0), "{}", text(&rolled_out.stderr));
        let replay = ["replay", "r.jsonl", "--model", &m];
        refused(&scratch.0, &replay, 65, &["r.jsonl:1: expected bf16, found f32", "hint: use --dtype bf16"]);
        done(&scratch.0, &[&replay[..], &["--dtype", "bf16"]].concat());
    }
    let rollout = ["rollout", &m, "--max-new", "4", "--out", "f.jsonl"];
    with_input(&scratch.0, &rollout, b"{\"prompt\": \"abc\"}\n");
    let replay = ["replay", "f.jsonl", "--model", &m, "--dtype", "bf16"];
    refused(&scratch.0, &replay, 65, &["f.jsonl:1: expected f32, found bf16", "hint: use --dtype f32"]);
}

#[test]
fn rollouts_beyond_the_context_are_replayed_with_the_same_sinks_and_window() {
    let (scratch, m) = (Scratch::new("sinks"), model());
    let sinks = ["--kv", "sinks", "--kv-sinks", "2", "--kv-window", "10"];
    let rollout = ["rollout", &m, "-n", "2", "--max-new", "300", "--ignore-eos", "--out", "r.jsonl"];
    let prompts = b"{\"prompt\": \"abcdefgh\"}\n{\"prompt\": \"xyz\"}\n";
    let rolled_out = with_input(&scratch.0, &[&rollout[..], &sinks].concat(), prompts);
    assert_eq!(rolled_out.status.code(), Some(0), "{}", text(&rolled_out.stderr));
    let replay = ["replay", "r.jsonl", "--model", &m];
    let shown = done(&scratch.0, &[&replay[..], &sinks].concat());
    assert!(shown.starts_with("4 of 4 completions regenerated, 1200 tokens"), "{shown}");
    let hint =
        "hint: --kv int8 regenerates completions of an int8 cache, --kv sinks --kv-sinks S --kv-window W";
    let other = [&replay[..], &sinks[..4], &["--kv-window", "11"]].concat();
    refused(&scratch.0, &other, 65, &["r.jsonl:1: expected sinks:2+10, found sinks:2+11", hint]);
    refused(&scratch.0, &replay, 65, &["r.jsonl:1: expected sinks:2+10, found an exact cache", hint]);
    let generate = ["generate", &m, "--prompt", "abcdefgh", "--max-new", "300", "--ignore-eos", "--json"];
    let one = parsed(&ok(&scratch.0, &[&generate[..], &sinks].concat()));
    assert_eq!(one["completion_ids"].as_array().unwrap().len(), 300);
    assert_eq!(one["finish_reason"], "length");
}

#[test]
fn what_a_sinks_cache_cannot_do_is_refused_with_the_flag() {
    let (scratch, m) = (Scratch::new("sinks-refused"), model());
    let generate = ["generate", &m, "--prompt", "abc"];
    let sinks = [&generate[..], &["--kv", "sinks"]].concat();
    let rollout = ["rollout", &m, "--prompts", "p.jsonl"];
    let large = "number of positions together, found sinks:4+1020 and a model of 256 positions";
    for (args, flags, parts) in [
        (
            &generate[..],
            &["--kv-window", "9"][..],
            ["--kv-window requires --kv sinks, found --kv paged", "add --kv sinks"],
        ),
        (
            &generate,
            &["--kv-sinks", "9", "--kv", "int8"],
            ["--kv-sinks requires --kv sinks", "found --kv int8"],
        ),
        (&sinks, &["--page-size", "8"], ["--page-size requires --kv paged or int8", "found --kv sinks"]),
        (
            &sinks,
            &["--speculate", "lookup"],
            ["--speculate requires a cache that can drop tokens", "--kv sinks"],
        ),
        (
            &rollout,
            &["--kv", "sinks", "--preempt", "offload"],
            ["--preempt requires --kv growing, paged or int8", "found --kv sinks"],
        ),
        (
            &rollout,
            &["--kv", "contiguous", "--watermark", "8"],
            ["--watermark requires --kv paged or int8", "found --kv contiguous"],
        ),
        (
            &sinks,
            &["--save-prefix", "p"],
            ["--save-prefix requires --kv growing, contiguous or paged", "found --kv sinks"],
        ),
        (&sinks, &["--kv-window", "0"], ["--kv-window", "at least 1"]),
        (&sinks, &[], ["hint: reduce --kv-window or --kv-sinks", large]),
        (
            &generate,
            &["--kv", "off", "--prefill-chunk", "3"],
            ["--prefill-chunk requires --kv growing", "--kv off"],
        ),
        (
            &rollout,
            &["--kv", "off", "--kv-capacity", "9"],
            ["--kv-capacity requires --kv growing", "--kv off"],
        ),
        (
            &["verify", &m],
            &["--kv-window", "9"],
            [
                "unexpected argument '--kv-window'",
                "hint: this command needs an exact cache; --kv sinks is lossy",
            ],
        ),
        (&rollout, &["--kv", "off", "--preempt", "offload"], ["--preempt requires --kv growing", "--kv off"]),
    ] {
        refused(&scratch.0, &[args, flags].concat(), 2, &parts);
    }
}

#[test]
fn commands_that_need_exact_results_refuse_a_lossy_cache() {
    let (scratch, m) = (Scratch::new("int8-refused"), model());
    let (data, eval) = (["train", "--data", "t.txt"], ["eval", &m, "--task", "sums"]);
    for args in [&["verify", &m][..], &["grpo", "--init", &m], &data, &["quickstart"], &eval] {
        for kv in ["int8", "sinks"] {
            let lossy = format!("--kv {kv} is lossy");
            refused(
                &scratch.0,
                &[args, &["--kv", kv]].concat(),
                2,
                &[&lossy, args[0], "hint: use --kv paged"],
            );
        }
        let pages = [args, &["--kv", "growing", "--page-size", "8"]].concat();
        refused(&scratch.0, &pages, 2, &["--page-size requires --kv paged, found --kv growing"]);
        let other = [args, &["--kv", "page"]].concat();
        refused(&scratch.0, &other, 2, &["[possible values: off, growing, contiguous, paged]"]);
    }
}

#[test]
fn bench_cache_kinds_compares_the_kinds_under_one_budget() {
    let (scratch, m) = (Scratch::new("cache-kinds"), model());
    let args = ["bench", "cache-kinds", "--model", &m, "--budget-mib", "1", "--batch", "2", "--repeats", "1"];
    let args = [&args[..], &["--prompt-len", "9", "--max-new", "7", "--page-size", "16"]].concat();
    let got = parsed(&ok(&scratch.0, &[&args[..], &["--json"]].concat()));
    let kinds = got["kinds"].as_array().unwrap();
    let names = ["growing", "contiguous", "paged:16", "int8:16", "sinks:4+4", "paged:16"];
    assert_eq!(kinds.iter().map(|kind| kind["kv"].as_str().unwrap()).collect::<Vec<_>>(), names);
    for kind in kinds {
        let (int8, sinks) = (kind["kv"] == "int8:16", kind["kv"] == "sinks:4+4");
        let bytes = if int8 { 2 * 2 * 2 * (16 + 4) } else { 2 * 2 * 2 * 16 * 4 };
        assert_eq!(kind["bytes_per_token"], bytes, "{kind}");
        assert_eq!(kind["allocated_bytes_per_token"].as_f64(), Some(f64::from(bytes)), "{kind}");
        assert_eq!(kind["exact"], !int8 && !sinks, "{kind}");
        let positions = (1 << 20) / bytes as u64;
        let whole = if kind["kv"].as_str().unwrap().contains(':') { positions / 16 * 16 } else { positions };
        let want = (!sinks).then_some(whole);
        assert_eq!(kind["positions_in_budget"].as_u64(), want, "{kind}");
        assert_eq!(kind["samples"].as_array().unwrap().len(), 1);
        let same = kind["perplexity"] == kinds[0]["perplexity"];
        assert_eq!(same, !int8 && !sinks, "exact kinds have the same bits: {kind}");
    }
    // two layers are all of this model
    assert_eq!(kinds[5]["layers_offloaded"], false);
    let three = path("models/qwen3_untied_hd").display().to_string();
    let of_three = [&args[..3], &[&three], &args[4..], &["--json"]].concat();
    let kind = parsed(&ok(&scratch.0, &of_three))["kinds"][5].take();
    assert_eq!(kind["layers_offloaded"], true);
    let [stored, in_memory] =
        ["bytes_per_token", "allocated_bytes_per_token"].map(|key| kind[key].as_f64().unwrap());
    assert!((in_memory / stored - 2.0 / 3.0).abs() < 0.01, "two layers of three are in memory: {kind}");
    // a prompt of 9 tokens has no whole page, and shares its slots until it is written
    let saved = got["prefix_sharing_saves"].as_f64().unwrap();
    assert!((0.0..1.0).contains(&saved), "{saved}");
    let shown = ok(&scratch.0, &args);
    assert!(shown.contains("lossy") && shown.contains("int8: perplexity increase"), "{shown}");
    let small = ["--prompt-len", "200", "--max-new", "50", "--batch", "30"];
    let small = [&args[..4], &["--budget-mib", "1"], &small].concat();
    refused(&scratch.0, &small, 2, &["--budget-mib 1", "room for 7500 tokens", "hint: "]);
    scratch.file("t.txt", "a short text");
    refused(&scratch.0, &[&args[..], &["--text", "t.txt"]].concat(), 65, &["t.txt", "at least", "tokens"]);
}
