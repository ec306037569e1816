//! The flags of speculative decoding: the output is that of the same command without them.
use serde_json::Value;

use crate::cli::{Scratch, ok, refused, text};
use crate::commands::{model, parsed};
use crate::commands_tokenize::with_input;
use crate::fixtures::path;

fn fixture(name: &str) -> String {
    path(&format!("models/{name}")).display().to_string()
}

/// The flags under test, each with the expected least number of accepted tokens.
fn flags() -> [(Vec<String>, u64); 2] {
    [(vec!["--speculate".into(), "lookup".into()], 1), (vec!["--draft".into(), model()], 20)]
}

fn with<'a>(args: &[&'a str], flags: &'a [String]) -> Vec<&'a str> {
    args.iter().copied().chain(flags.iter().map(String::as_str)).collect()
}

/// The object without what depends on time or on the drafts.
fn results(mut line: Value) -> Value {
    let object = line.as_object_mut().unwrap();
    object.remove("timings");
    object.remove("speculation");
    line
}

#[test]
fn generate_reports_the_acceptance_rate_and_the_same_completion() {
    let (scratch, m) = (Scratch::new("speculate"), model());
    for temperature in ["0", "0.8"] {
        let args = ["generate", &m, "--prompt", "abcabcabcabc", "--max-new", "60", "--ignore-eos", "--json"];
        let args = [&args[..], &["--temperature", temperature]].concat();
        let want = parsed(&ok(&scratch.0, &args));
        assert_eq!(want.get("speculation"), None);
        for (flags, least) in flags() {
            let got = parsed(&ok(&scratch.0, &with(&args, &flags)));
            let report = got["speculation"].clone();
            assert_eq!(results(got), results(want.clone()), "{flags:?}");
            let [drafted, accepted] =
                ["drafted_tokens", "accepted_tokens"].map(|name| report[name].as_u64().unwrap());
            assert!(accepted <= drafted && (temperature != "0" || accepted >= least), "{flags:?}: {report}");
            let rate = (drafted > 0).then(|| accepted as f64 / drafted as f64);
            assert_eq!(report["acceptance_rate"].as_f64(), rate, "{flags:?}");
        }
    }
}

#[test]
fn rollout_and_chat_print_the_same_with_drafts() {
    let (scratch, m) = (Scratch::new("speculate-rollout"), model());
    let prompts = "{\"prompt\": \"ababab\"}\n{\"prompt\": \"xyzxyz\"}\n";
    let talk = "Hi\nabcabcabc\n";
    let rollout =
        ["rollout", &m, "-n", "3", "--max-new", "24", "--temperature", "0.5", "--max-batch-size", "4"];
    let chat = ["chat", "--model", &m, "--json", "--max-new", "24", "--temperature", "0"];
    for (args, input) in [(&rollout[..], prompts), (&chat[..], talk)] {
        let run = |args: &[&str]| {
            let done = with_input(&scratch.0, args, input.as_bytes());
            assert_eq!(done.status.code(), Some(0), "{args:?}: {done:?}");
            text(&done.stdout)
        };
        let want = run(args);
        for (flags, _) in flags() {
            assert_eq!(run(&with(args, &flags)), want, "{flags:?}");
        }
    }
}

#[test]
fn drafts_need_a_cache_and_the_vocabulary_of_the_model() {
    let (scratch, m) = (Scratch::new("speculate-refused"), model());
    let args = ["generate", &m, "--prompt", "ab", "--kv", "off"];
    refused(&scratch.0, &[&args[..], &["--speculate", "lookup"]].concat(), 2, &["--speculate", "--kv off"]);
    refused(&scratch.0, &[&args[..], &["--draft", &m]].concat(), 2, &["--draft", "--kv off"]);
    let other = fixture("llama_odd");
    let args = ["generate", &m, "--prompt", "ab", "--draft", &other];
    refused(&scratch.0, &args, 2, &["--draft", "vocabulary of 512 tokens, found 331"]);
    let other = fixture("llama3_rope");
    let args = ["generate", &m, "--prompt", "ab", "--draft", &other];
    refused(&scratch.0, &args, 2, &["--draft", "token 0: expected", "<|begin_of_text|>"]);
    for command in [["bench", "decode"], ["bench", "trace"]] {
        let args = [&command[..], &["--model", &m, "--draft", &other]].concat();
        refused(&scratch.0, &args, 2, &["--draft", "token 0: expected", "<|begin_of_text|>"]);
    }
    let both = ["generate", &m, "--prompt", "ab", "--draft", &m, "--speculate", "lookup"];
    refused(&scratch.0, &both, 2, &["--draft", "--speculate"]);
}

#[test]
fn bench_decode_compares_with_a_rollout_without_drafts() {
    let (scratch, m) = (Scratch::new("speculate-bench"), model());
    let args = [
        "bench",
        "decode",
        "--model",
        &m,
        "--prompt-len",
        "8",
        "--max-new",
        "40",
        "--repeats",
        "2",
        "--json",
    ];
    let plain = parsed(&ok(&scratch.0, &args));
    assert!(plain.get("speculation").is_none() && plain.get("speedup").is_none(), "{plain}");
    let report = parsed(&ok(&scratch.0, &[&args[..], &["--draft", &m]].concat()));
    assert_eq!(report["speculation"]["acceptance_rate"].as_f64(), Some(1.0), "{report}");
    assert!(report["speedup"].as_f64().unwrap() > 0.0, "{report}");
}
