//! `--regex` and `--json-schema` of the commands that generate.
use serde_json::{Value, json};

use crate::cli::{Scratch, ok, refused, text, xtrain};
use crate::commands::{done, model, parsed};
use crate::commands_tokenize::with_input;

const SCHEMA: &str = r#"{"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99},
    "ok": {"type": "boolean"}}, "required": ["n", "ok"], "additionalProperties": false}"#;

#[test]
fn a_completion_matches_its_regular_expression() {
    let (scratch, m) = (Scratch::new("regex"), model());
    let args = ["generate", &m, "--prompt", "ab", "--max-new", "60", "--regex", "(yes|no), [0-9]{2}"];
    for seed in ["1", "2", "3", "4"] {
        let got = parsed(&ok(&scratch.0, &[&args[..], &["--seed", seed, "--json"]].concat()));
        let text = got["completion"].as_str().unwrap();
        let (word, number) = text.split_once(", ").unwrap();
        assert!(
            ["yes", "no"].contains(&word) && number.len() == 2 && number.parse::<u32>().is_ok(),
            "{text:?}"
        );
        assert_eq!(got["finish_reason"], "stop");
    }
    let output = xtrain(&scratch.0, &args);
    assert!(text(&output.stderr).contains("finish reason: stop (nothing can follow)"), "{output:?}");
    // too few tokens: the beginning of a match
    let short = parsed(&ok(
        &scratch.0,
        &["generate", &m, "--prompt", "ab", "--max-new", "1", "--regex", "a{40}", "--json"],
    ));
    assert_eq!(
        (&short["finish_reason"], &short["completion"].as_str().unwrap()[..1]),
        (&json!("length"), "a")
    );
    // a stop text ends it before it is a match
    let stopped = [&args[..4], &["--max-new", "60", "--regex", "x{3}y+", "--stop", "y", "--json"]].concat();
    let stopped = parsed(&ok(&scratch.0, &stopped));
    assert_eq!((&stopped["finish_reason"], &stopped["completion"]), (&json!("stop"), &json!("xxx")));
}

#[test]
fn look_around_and_integers_beyond_64_bits_are_refused_in_plain_words() {
    let (scratch, m) = (Scratch::new("look"), model());
    for regex in [r"a\bc", r"a\B", "a^b", "a$b"] {
        let args = ["generate", &m, "--prompt", "ab", "--regex", regex];
        refused(&scratch.0, &args, 2, &["expected one without look-around, found a word boundary"]);
    }
    let schema = ["--json-schema", r#"{"const": 18446744073709551617}"#];
    let parts = ["expected integers of at most 64 bits, found 18446744073709551617"];
    let args = ["generate", &m, "--prompt", "ab"];
    refused(&scratch.0, &[&args[..], &schema].concat(), 2, &parts);
    let schema = ["--json-schema", r#"{"minimum": -Infinity}"#];
    refused(&scratch.0, &[&args[..], &schema].concat(), 2, &["expected JSON, found"]);
    let schema = ["--json-schema", r#"{"type": "integer", "maximum": 100000000000000000000}"#];
    ok(&scratch.0, &[&args[..], &schema, &["--max-new", "9", "--json"]].concat());
    let schema = ["--json-schema", r#"{"type": "string", "pattern": "a\\bc"}"#];
    refused(&scratch.0, &[&args[..], &schema].concat(), 2, &["JSON schema: ", r"a\bc"]);
}

#[test]
fn a_schema_of_a_prompt_line_keeps_the_order_of_its_properties() {
    let (scratch, m) = (Scratch::new("constraint-order"), model());
    let schema = r#"{"type": "object", "properties": {"z": {"type": "null"}, "a": {"type": "null"}},
        "required": ["z", "a"], "additionalProperties": false}"#
        .replace('\n', " ");
    scratch.file("p.jsonl", &format!("{{\"prompt\": \"ab\", \"json_schema\": {schema}}}\n"));
    let printed = done(&scratch.0, &["rollout", &m, "--prompts", "p.jsonl", "--max-new", "120"]);
    let completion = parsed(&printed)["completion"].as_str().unwrap().to_string();
    let [z, a] = ["\"z\"", "\"a\""].map(|name| completion.find(name));
    assert!(z.is_some() && z < a, "{completion}");
    let alone = ["generate", &m, "--prompt", "ab", "--max-new", "120", "--json", "--json-schema", &schema];
    assert_eq!(parsed(&ok(&scratch.0, &alone))["completion"], completion.as_str());
}

#[test]
fn rollouts_under_constraints_are_those_of_generate_and_can_be_replayed() {
    let (scratch, m) = (Scratch::new("constraint-rollout"), model());
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    scratch.file("schema.json", SCHEMA);
    let own = json!({"prompt": "ab", "regex": "[a-f]{3,5}", "id": 7});
    scratch.file("p.jsonl", &format!("{{\"prompt\": \"ab\"}}\n{own}\n"));
    let common = ["--max-new", "90", "--seed", "7", "--top-p", "0.9", "--json-schema"];
    let rollout = ["rollout", &m, "--prompts", "p.jsonl", "-n", "4"];
    let printed = done(&scratch.0, &[&rollout[..], &common, &["schema.json"]].concat());
    for (at, line) in printed.lines().map(parsed).enumerate() {
        let completion = line["completion"].as_str().unwrap();
        let (flag, value) = if at < 4 {
            assert_eq!((&line["json_schema"], line.get("regex")), (&schema, None));
            let value: Value =
                serde_json::from_str(completion).unwrap_or_else(|e| panic!("{e}: {completion}"));
            assert!(value["n"].as_u64().is_some_and(|n| n < 100) && value["ok"].is_boolean(), "{value}");
            ("--json-schema", SCHEMA)
        } else {
            assert_eq!(
                (&line["regex"], line.get("json_schema"), &line["id"]),
                (&own["regex"], None, &json!(7))
            );
            assert!(
                (3..=5).contains(&completion.len()) && completion.chars().all(|c| ('a'..='f').contains(&c))
            );
            ("--regex", "[a-f]{3,5}")
        };
        let at = at.to_string();
        let alone = ["generate", &m, "--prompt", "ab", "--json", "--sample-id", &at, flag, value];
        let alone = parsed(&ok(&scratch.0, &[&alone[..], &common[..6]].concat()));
        for key in ["completion", "completion_ids", "logprobs", "finish_reason"] {
            assert_eq!(alone[key], line[key], "{at}: {key}");
        }
    }
    scratch.file("c.jsonl", &printed);
    let replayed = done(&scratch.0, &["replay", "c.jsonl", "-m", &m]);
    assert!(replayed.starts_with("8 of 8 completions regenerated"), "{replayed}");
    let changed: String =
        printed.lines().map(|line| line.replace("[a-f]{3,5}", "[a-e]{3,5}") + "\n").collect();
    scratch.file("changed.jsonl", &changed);
    let output = xtrain(&scratch.0, &["replay", "changed.jsonl", "--model", &m]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn a_chat_reply_matches_the_schema() {
    let (scratch, m) = (Scratch::new("constraint-chat"), model());
    let args = ["chat", "--model", &m, "--json", "--max-new", "90", "--json-schema", SCHEMA];
    let done = with_input(&scratch.0, &args, b"Hi\nand?\n");
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    for line in text(&done.stdout).lines().map(parsed) {
        let value: Value = serde_json::from_str(line["completion"].as_str().unwrap()).unwrap();
        assert!(value["n"].is_u64() && value["ok"].is_boolean(), "{value}");
    }
}

#[test]
fn what_is_no_constraint_is_refused() {
    let (scratch, m) = (Scratch::new("constraint-errors"), model());
    let generate = |flag, value, exit, parts: &[&str]| {
        refused(&scratch.0, &["generate", &m, "--prompt", "ab", "--max-new", "9", flag, value], exit, parts);
    };
    generate("--regex", "a(b", 2, &["--regex", "regular expression", "unclosed group", "character 2"]);
    generate("--regex", "[a&&b]", 2, &["--regex", "without a match"]);
    generate("--regex", "(a{0})", 2, &["--regex", "the empty text"]);
    generate("--regex", r"a\bc", 2, &["--regex", "look"]);
    generate(
        "--json-schema",
        "{\"type\": ",
        2,
        &["--json-schema", "expected JSON, found JSON that ends too early", "line 1, column 9"],
    );
    generate("--json-schema", r#"{"type": "objekt"}"#, 2, &["--json-schema", "objekt"]);
    generate("--json-schema", r#"{"not": {"type": "null"}}"#, 2, &["--json-schema", "not"]);
    generate("--json-schema", "none.json", 66, &["none.json"]);
    scratch.file("bad.json", "{\n  \"type\": objekt\n}");
    generate("--json-schema", "bad.json", 65, &["bad.json", "expected JSON, found invalid JSON", "line 2"]);
    refused(
        &scratch.0,
        &["generate", &m, "--prompt", "a", "--regex", "a", "--json-schema", "{}"],
        2,
        &["--json-schema"],
    );
    scratch.file("p.jsonl", "{\"prompt\": \"ab\"}\n{\"prompt\": \"ab\", \"regex\": 7}\n");
    refused(
        &scratch.0,
        &["rollout", &m, "--prompts", "p.jsonl"],
        65,
        &["p.jsonl:2", "\"regex\"", "a string", "7"],
    );
    scratch.file("r.jsonl", "{\"prompt\": \"ab\", \"regex\": \"a\"}\n");
    refused(&scratch.0, &["verify", &m, "--prompts", "r.jsonl"], 65, &["r.jsonl:1", "no field \"regex\""]);
    let grpo = ["grpo", "--init", &m, "--prompts", "r.jsonl", "--reward", "true", "--run", "g"];
    refused(&scratch.0, &grpo, 65, &["r.jsonl:1: expected no field \"regex\"", "set grpo.regex"]);
    scratch.file("q.jsonl", "{\"prompt\": \"ab\", \"regex\": \"a(\"}\n");
    refused(&scratch.0, &["rollout", &m, "--prompts", "q.jsonl"], 65, &["q.jsonl:1", "unclosed group"]);
    let from = crate::fixtures::path("models/qwen3_tied");
    for name in ["config.json", "model.safetensors"] {
        scratch.file(&format!("m/{name}"), "");
        std::fs::copy(from.join(name), scratch.0.join("m").join(name)).unwrap();
    }
    let args = ["generate", "m", "--tokens", "1,2", "--max-new", "3", "--regex", "a"];
    refused(&scratch.0, &args, 66, &["no tokenizer.json", "--regex"]);
}

/// Four constraints, of which the second needs a character that no token has. The third ends in the step in which the
/// second fails.
#[test]
pub(crate) fn completions_of_a_failing_step_are_kept() {
    let scratch = Scratch::new("constraint-dead-end");
    std::fs::create_dir(scratch.0.join("m")).unwrap();
    for file in std::fs::read_dir(model()).unwrap().flatten() {
        std::fs::copy(file.path(), scratch.0.join("m").join(file.file_name())).unwrap();
    }
    let path = scratch.0.join("m/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let id = tokenizer["model"]["vocab"].as_object_mut().unwrap().shift_remove("Z").unwrap();
    tokenizer["model"]["vocab"]["QQ"] = id;
    tokenizer["model"]["merges"].as_array_mut().unwrap().push(json!(["Q", "Q"]));
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let prompts = ["[0-9]{8}", "[0-9]{3}Z", "[0-9]{4}", "[0-9]{3}"]
        .map(|regex| json!({"prompt": "1+1=", "regex": regex}));
    scratch.file("p.jsonl", &prompts.map(|line| format!("{line}\n")).concat());
    let output =
        xtrain(&scratch.0, &["rollout", "m", "--prompts", "p.jsonl", "--max-new", "9", "--out", "c.jsonl"]);
    let errors = text(&output.stderr);
    assert!(errors.contains("the constraint allows no token"), "{errors}");
    let kept = std::fs::read_to_string(scratch.0.join("c.jsonl.partial")).unwrap();
    let mut kept: Vec<usize> =
        kept.lines().map(|line| parsed(line)["completion"].as_str().unwrap().len()).collect();
    kept.sort_unstable();
    assert_eq!(kept, [3, 4], "the completions that ended: {errors}");
}
