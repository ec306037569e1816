//! Every flag of a command that completes prompts reaches the engine or the request. A command whose flag is not in the
//! tables below fails.
use std::ffi::OsString;

use super::bench::BenchCommand;
use super::{Command, command, parse};

/// A flag, values for it, with other flags that it needs, and what then is in the engine options or in the request, and
/// is not without the flag.
const EFFECTS: [(&str, &[(&str, &str)]); 26] = [
    ("ageing", &[("7", "ageing: 7,")]),
    ("ignore_eos", &[("", "eos: [],")]),
    (
        "kv",
        &[
            ("off", "kv: Off"),
            ("growing", "kv: Growing"),
            ("contiguous", "kv: Contiguous"),
            ("int8", "kv: Int8 { page: 64 }"),
            ("sinks", "kv: Sinks { sinks: 4, window: 1020 }"),
        ],
    ),
    ("kv_sinks", &[("9 --kv sinks", "kv: Sinks { sinks: 9,")]),
    ("kv_window", &[("77 --kv sinks", "window: 77 }")]),
    ("kv_capacity", &[("192", "kv_capacity: Some(192)"), ("1000000", "kv_capacity: Some(512)")]),
    ("max_batch_size", &[("3", "max_batch: 3,")]),
    ("max_batched_tokens", &[("33", "max_batched_tokens: Some(33)")]),
    ("max_new", &[("9", "max_new: 9,")]),
    ("min_p", &[("0.125", "min_p: Some(0.125)")]),
    ("page_size", &[("8", "kv: Paged { page: 8 }")]),
    ("preempt", &[("offload", "preemption: Offload"), ("auto", "preemption: Auto")]),
    ("prefill_chunk", &[("5", "prefill_chunk: Some(5)")]),
    ("prefix", &[("FILE", "prefix_caching: On")]),
    ("repetition_penalty", &[("1.5", "repetition_penalty: Some(1.5)")]),
    ("sample_id", &[("6", "id: 6,")]),
    ("save_prefix", &[("FILE", "continuation: On")]),
    ("seed", &[("18446744073709551615", "seed: 18446744073709551615")]),
    ("speculate", &[("lookup", "speculation: PromptLookup")]),
    ("stop_token_ids", &[("7,8", "tokens: [7, 8]")]),
    ("sync_every", &[("3", "steps_per_sync: 3")]),
    ("temperature", &[("0.25", "temperature: 0.25")]),
    ("top_k", &[("11", "top_k: Some(11)")]),
    ("top_logprobs", &[("5", "top_logprobs: 5")]),
    ("top_p", &[("0.75", "top_p: Some(0.75)")]),
    ("watermark", &[("48", "watermark: Some(48)")]),
];

/// Flags of these commands that neither the engine options nor the request contain.
const OTHERS: [&str; 38] = [
    "arrivals",
    "burst",
    "config",
    "device",
    "draft",
    "dtype",
    "echo",
    "force",
    "high_priority",
    "json",
    "json_schema",
    "kv_resident",
    "limit_gap",
    "limit_ttft",
    "model",
    "flag",
    "n",
    "offload_dir",
    "offload_limit",
    "out",
    "policy_digest",
    "positional",
    "prompt",
    "prompt_len",
    "prompts",
    "resume",
    "rate",
    "regex",
    "requests",
    "set",
    "stop",
    "system",
    "template",
    "threads",
    "tokens",
    "trace_seed",
    "truncate_prompt",
    "var",
];

/// Flags of `bench trace` that mean something else there: the lengths that it draws, and the weights of its model.
const OF_TRACE: [&str; 2] = ["max_new", "seed"];

/// Sequences that the commands run, and the length of the longest.
const SEQUENCES: (usize, usize) = (4, 100);

/// The engine options and the request of a command line, as text. The model has the end-of-text tokens 5 and 6.
fn effect(line: &[&str]) -> String {
    let (total, longest) = SEQUENCES;
    let parsed = parse(["xtrain"].iter().chain(line).map(OsString::from)).unwrap().unwrap();
    let eos = [5, 6];
    let (engine, request) = match &parsed.command {
        Command::Generate(args) => {
            (args.engine(longest), Some(args.generation.parameters.request(&eos, args.sample_id, vec![1])))
        }
        Command::Rollout(args) => {
            (args.engine(longest, total), Some(args.generation.parameters.request(&eos, 0, vec![1])))
        }
        Command::Chat(args) => (args.engine(), Some(args.request(&eos))),
        Command::Bench(BenchCommand::Trace(args)) => (args.options(longest), None),
        other => panic!("{other:?}"),
    };
    format!("{:?} {request:?}", engine.unwrap())
}

#[test]
fn every_flag_reaches_the_engine_or_the_request() {
    for line in [
        &["generate", "m", "--prompt", "a", "--json"][..],
        &["rollout", "m"],
        &["chat", "m"],
        &["bench", "trace", "--max-batch-size", "4"],
    ] {
        let path = line.iter().take_while(|word| !word.starts_with('-') && **word != "m");
        let mut tree = command();
        let tree = path.fold(&mut tree, |at, name| at.find_subcommand_mut(name).unwrap());
        let plain = effect(line);
        let (mut seen, mut unknown) = (0, Vec::new());
        for argument in tree.get_arguments() {
            let id = argument.get_id().as_str();
            let Some((_, cases)) = EFFECTS.iter().find(|(name, _)| *name == id) else {
                unknown.extend((!OTHERS.contains(&id)).then(|| id.to_string()));
                continue;
            };
            if line[0] == "bench" && OF_TRACE.contains(&id) {
                continue;
            }
            for (value, want) in *cases {
                // chat and rollout keep prefixes in any case
                if id == "prefix" && line[0] != "generate" {
                    continue;
                }
                let flag = format!("--{}", argument.get_long().unwrap());
                let with: Vec<&str> =
                    line.iter().copied().chain([&*flag]).chain(value.split_whitespace()).collect();
                let found = effect(&with);
                assert!(found.contains(want) && !plain.contains(want), "{with:?}: expected {want}: {found}");
                seen += 1;
            }
        }
        assert!(unknown.is_empty(), "{line:?}: in no table of flag_effects.rs: {unknown:?}");
        assert!(seen > 10, "{line:?}: {seen} flags");
    }
}

#[test]
#[cfg(feature = "faults")]
fn a_flag_that_is_ignored_is_found() {
    use crate::tensor::faults::{self, Fault};
    use crate::tensor::testing::failure;
    let failed =
        faults::with(Fault::WatermarkFlagIgnored, || failure(every_flag_reaches_the_engine_or_the_request));
    let text = failed.expect("the fault is missed");
    assert!(text.contains("watermark: Some(48)"), "{text}");
}

#[test]
fn a_run_without_a_name_has_that_of_its_last_configuration() {
    let named = |more: &[&str]| {
        let line = ["xtrain", "train"].iter().chain(more).map(OsString::from);
        let Command::Train(args) = parse(line).unwrap().unwrap().command else { panic!("{more:?}") };
        args.new_run()
    };
    assert_eq!(named(&["-c", "a/one.toml", "-c", "b/two.toml"]), std::path::Path::new("runs/two"));
    assert_eq!(named(&[]), std::path::Path::new("runs/train"));
    assert_eq!(named(&["-c", "one.toml", "--run", "x"]), std::path::Path::new("x"));
}
