//! `xtrain chat` through a pipe. terminal.rs runs it in a terminal.
use serde_json::Value;

use crate::cli::{Scratch, refused, text};
use crate::commands::{model, parsed};
use crate::commands_tokenize::with_input;
use crate::fixtures::{json, path};

/// The replies to `input`, from the JSON output.
fn replies(scratch: &Scratch, args: &[&str], input: &str) -> Vec<Value> {
    let m = model();
    let args = [&["chat", "--model", &m, "--json", "--max-new", "12"][..], args].concat();
    let done = with_input(&scratch.0, &args, input.as_bytes());
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    text(&done.stdout).lines().map(parsed).collect()
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn each_turn_is_the_completion_of_the_conversation_and_reuses_cached_rows() {
    let (scratch, m) = (Scratch::new("chat"), model());
    let flags = ["--temperature", "0.9", "--seed", "3", "--system", "Be brief."];
    let talk = "Hi\n\nWhat is 2+2?\nand?\n";
    for page in [16, 64] {
        let pages = ["--page-size", &page.to_string()];
        let got = replies(&scratch, &[&flags[..], &pages[..]].concat(), talk);
        for (n, pair) in got.windows(2).enumerate() {
            let seen = ids(&pair[0]["prompt_ids"]).len() + ids(&pair[0]["completion_ids"]).len();
            // all whole pages of what the model computed: all but the reply's last token
            assert_eq!(
                pair[1]["cached_tokens"].as_u64(),
                Some(((seen - 1) / page * page) as u64),
                "turn {n}"
            );
        }
    }
    let got = replies(&scratch, &flags, "Hi\n\nWhat is 2+2?\nand?\n");
    assert_eq!(got.len(), 3);
    let cases = json("tokenizers/qwen_bpe/chat_cases.json");
    let begins = ids(&cases["cases"][4]["ids"]);
    assert_eq!(ids(&got[0]["prompt_ids"])[..13], begins[..13], "the system prompt");
    for (n, pair) in got.windows(2).enumerate() {
        // the tokens of a turn begin with the previous turn and its reply
        let seen = [ids(&pair[0]["prompt_ids"]), ids(&pair[0]["completion_ids"])].concat();
        let next = ids(&pair[1]["prompt_ids"]);
        assert!(next.starts_with(&seen), "turn {n}: {seen:?} {next:?}");
    }
    for (n, turn) in got.iter().enumerate() {
        let prompt: Vec<String> = ids(&turn["prompt_ids"]).iter().map(u64::to_string).collect();
        let (prompt, id) = (prompt.join(","), n.to_string());
        let args = ["generate", &m, "--tokens", &prompt, "--max-new", "12", "--json", "--sample-id", &id];
        let alone = parsed(&crate::commands::done(&scratch.0, &[&args[..], &flags[..4]].concat()));
        assert_eq!(alone["completion_ids"], turn["completion_ids"], "turn {n}");
    }
    let off = replies(&scratch, &[&flags[..], &["--kv", "off"]].concat(), "Hi\n\nWhat is 2+2?\nand?\n");
    for (with, without) in got.iter().zip(&off) {
        assert_eq!(
            (&with["completion_ids"], &without["cached_tokens"]),
            (&without["completion_ids"], &0.into())
        );
    }
}

#[test]
fn a_pipe_gets_one_line_per_reply_and_slash_commands_work() {
    let (scratch, m) = (Scratch::new("chat-pipe"), model());
    let args = ["chat", &m, "--max-new", "40", "--seed", "1"];
    let done = with_input(&scratch.0, &args, b"one\n/help\n/reset\none\r\ntwo");
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let shown = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(shown.matches('\n').count(), 3, "{shown:?}");
    assert!(shown.ends_with('\n') && !shown.contains('>'.to_string().repeat(3).as_str()));
    let stderr = text(&done.stderr);
    assert!(
        stderr.contains("/exit or Ctrl-D exits") && stderr.contains("[conversation cleared]"),
        "{stderr}"
    );
    let got = replies(&scratch, &[], "one\n/reset\none\ntwo\n/exit\nthree\n");
    assert_eq!(got.len(), 3);
    let marked = replies(&scratch, &[], "\u{feff}one\n");
    assert_eq!(marked[0]["prompt_ids"], got[0]["prompt_ids"], "a byte order mark is part of the message");
    assert_eq!(got[0]["prompt_ids"], got[1]["prompt_ids"], "the conversation survived a reset");
    assert!(with_input(&scratch.0, &args, b"").stdout.is_empty());
}

#[test]
fn a_conversation_beyond_the_context_drops_its_oldest_turns_with_a_note() {
    let (scratch, m) = (Scratch::new("chat-long"), model());
    let turn = format!("{}\n", "word ".repeat(12));
    let args =
        ["chat", "--model", &m, "--json", "--max-new", "20", "--temperature", "0", "--system", "Be brief."];
    let done = with_input(&scratch.0, &args, turn.repeat(9).as_bytes());
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let (lines, stderr) = (text(&done.stdout), text(&done.stderr));
    assert!(stderr.contains("exceeds the context of 256 tokens: dropped the 2 oldest messages"), "{stderr}");
    assert_eq!(lines.lines().count(), 9);
    let first = ids(&parsed(lines.lines().next().unwrap())["prompt_ids"]);
    for line in lines.lines().map(parsed) {
        let prompt = ids(&line["prompt_ids"]);
        assert!(prompt.len() + 20 <= 256 && prompt[..13] == first[..13], "the system prompt was dropped");
    }
    let long = format!("hi\n{}\n", "w".repeat(700));
    let done = with_input(&scratch.0, &args, long.as_bytes());
    let stderr = text(&done.stderr);
    assert_eq!(done.status.code(), Some(65), "{stderr}");
    assert!(stderr.contains("error: standard input:2: the message is too long"), "{stderr}");
    assert_eq!(text(&done.stdout).lines().count(), 1, "the reply to the first message");
    let system = "w".repeat(700);
    let done = with_input(&scratch.0, &["chat", "--model", &m, "--system", &system], b"hi\n");
    let stderr = text(&done.stderr);
    assert!(stderr.contains("error: --system: the system prompt is too long"), "{stderr}");
    // without --max-new, a quarter of the context is for the reply
    let done = with_input(&scratch.0, &["chat", "--model", &m], format!("{}\n", "1".repeat(200)).as_bytes());
    let room = "has 216 tokens, expected at most 192 (context 256, of which 64 are reserved for the reply)";
    assert!(text(&done.stderr).contains(room), "{}", text(&done.stderr));
}

#[test]
fn a_chat_that_cannot_start_is_refused_in_one_line() {
    let scratch = Scratch::new("chat-refused");
    let bare = path("models/llama_odd").display().to_string();
    scratch.file("t.jinja", "{{ raise_exception('no ' + messages[0].content) }}");
    refused(&scratch.0, &["chat"], 2, &["MODEL"]);
    refused(&scratch.0, &["chat", "gone"], 66, &["gone"]);
    refused(&scratch.0, &["chat", &bare], 66, &["no tokenizer.json", "xtrain chat"]);
    refused(&scratch.0, &["chat", &model(), "--template", "gone.jinja"], 66, &["gone.jinja"]);
    let done = with_input(&scratch.0, &["chat", &model(), "--template", "t.jinja"], b"way\n");
    let stderr = text(&done.stderr);
    assert_eq!(done.status.code(), Some(65), "{stderr}");
    assert!(stderr.contains("standard input:1: chat template: it rejects the messages: no way"), "{stderr}");
    let done = with_input(&scratch.0, &["chat", &model()], b"\xff\n");
    let stderr = text(&done.stderr);
    let want = "standard input:1: expected UTF-8 text, found byte 0xff at byte 0\nhint: text has to be UTF-8";
    assert!(stderr.contains(want), "{stderr}");
}

#[test]
fn import_training_and_export_keep_the_chat_template_and_all_end_of_text_tokens() {
    let scratch = Scratch::new("kept-template");
    let from = path("models/llama3_rope");
    std::fs::create_dir(scratch.0.join("m")).unwrap();
    for file in std::fs::read_dir(from).unwrap().flatten() {
        std::fs::copy(file.path(), scratch.0.join("m").join(file.file_name())).unwrap();
    }
    let template = "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}";
    scratch.file("m/chat_template.jinja", template);
    scratch.file("t.txt", &"some text to train on, again and again\n".repeat(20));
    let ends = |file: &str| {
        let text = std::fs::read_to_string(scratch.0.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        parsed(&text)["eos_token_id"].clone()
    };
    assert_eq!(ends("m/generation_config.json"), serde_json::json!([1, 4]));
    let done = |args: &[&str]| crate::commands::done(&scratch.0, args);
    done(&["import", "m", "imported"]);
    let keys = ["train.steps=1", "train.context=16", "train.batch=2", "train.save_every=1", "train.keep=9"];
    let set: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    done(&[&["train", "--init", "imported", "--data", "t.txt", "--run", "r"][..], &set].concat());
    done(&["train", "--resume", "r", "--set", "train.steps=2"]);
    for step in ["step_000000", "step_000001", "step_000002"] {
        let at = format!("r/checkpoints/{step}/generation_config.json");
        assert_eq!(ends(&at), serde_json::json!([1, 4]), "{step}");
    }
    done(&["export", "r", "out"]);
    done(&["export", "r", "out.gguf"]);
    assert_eq!(ends("out/generation_config.json"), serde_json::json!([1, 4]));
    assert_eq!(std::fs::read_to_string(scratch.0.join("out/chat_template.jinja")).unwrap(), template);
    for model in ["m", "imported", "r", "out", "out.gguf"] {
        let args = ["tokenize", "--chat", "--json", "--model", model];
        let got = with_input(&scratch.0, &args, br#"[{"role": "user", "content": "x"}]"#);
        assert_eq!(parsed(&text(&got.stdout))["text"], "<|begin_of_text|>[x]", "{model}");
    }
}

#[test]
fn training_from_a_model_without_a_tokenizer_needs_the_tokenizer_setting() {
    let scratch = Scratch::new("no-tokenizer");
    let bare = path("models/llama_odd").display().to_string();
    scratch.file("t.txt", &"some text to train on, again and again\n".repeat(20));
    let args = ["train", "--init", &bare, "--data", "t.txt", "--run", "r", "--set", "train.context=16"];
    refused(&scratch.0, &args, 2, &["has no tokenizer", "data.tokenizer", "bytes"]);
    refused(&scratch.0, &[&args[..], &["--dry-run"]].concat(), 2, &["has no tokenizer"]);
    assert!(!scratch.0.join("r").exists());
    let key = |model: &str| format!("train.init={model}");
    let (without, with) = (key(&bare), key(&path("models/llama3_rope").display().to_string()));
    let args_with_key =
        |key| ["train", "--set", key, "--data", "t.txt", "--run", "k", "--set", "train.context=16"];
    refused(&scratch.0, &args_with_key(&without), 2, &["has no tokenizer", "data.tokenizer"]);
    let short = ["--set", "train.steps=1", "--set", "train.batch=2"];
    crate::commands::done(&scratch.0, &[&args_with_key(&with)[..], &short].concat());
    let named = ["--set", "data.tokenizer=bytes", "--set", "train.steps=1", "--set", "train.batch=2"];
    let done = crate::cli::xtrain(&scratch.0, &[&args[..], &named].concat());
    let stderr = text(&done.stderr);
    assert!(
        done.status.success() && stderr.contains("note: ") && stderr.contains("has no tokenizer"),
        "{stderr}"
    );
}

#[test]
fn a_template_without_text_is_an_error() {
    let scratch = Scratch::new("no-text");
    scratch.file("t.jinja", "");
    let found = with_input(&scratch.0, &["chat", "--model", &model(), "--template", "t.jinja"], b"hi\n");
    let stderr = text(&found.stderr);
    assert_eq!(found.status.code(), Some(65), "{stderr}");
    assert!(stderr.contains("found a chat template that gives no text"), "{stderr}");
}
