//! `xtrain tokenize` as a process.
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::cli::{Scratch, ok, program, refused, text, xtrain};
use crate::commands::{model, parsed};
use crate::fixtures::{json, path};

/// The time limit of a command. A command that takes longer is killed, and its test fails.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs a command with `input` on its standard input.
pub(crate) fn with_input(dir: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut command = program();
    command.args(args).current_dir(dir).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (pid, (ended, end)) = (child.id(), channel::<()>());
    std::thread::spawn(move || {
        if end.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            let _ = Command::new("sh").args(["-c", &format!("kill -9 {pid}")]).status();
        }
    });
    // the child may exit before it has read everything
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    drop(ended);
    output
}

fn tokenizer(name: &str) -> String {
    path(&format!("tokenizers/{name}")).display().to_string()
}

#[test]
fn text_from_a_file_or_a_pipe_has_the_ids_of_the_reference_and_decodes_again() {
    let scratch = Scratch::new("tokenize");
    for name in ["qwen_bpe", "llama3_bpe"] {
        let (at, cases) = (tokenizer(name), json(&format!("tokenizers/{name}/cases.json")));
        for case in cases["encode"].as_array().unwrap().iter().filter(|case| case["text"] != "").step_by(9) {
            // a byte order mark at the beginning of a file is not part of its text
            let text = case["text"].as_str().unwrap();
            if text.starts_with('\u{feff}') {
                continue;
            }
            let file = scratch.file("t.txt", text).display().to_string();
            let got = parsed(&ok(&scratch.0, &["tokenize", "--tokenizer", &at, "--json", "--file", &file]));
            assert_eq!(
                (&got["ids"], &got["tokens"]),
                (&case["ids"], &json!(case["ids"].as_array().unwrap().len()))
            );
            assert_eq!(
                (&got["bytes"], &got["characters"]),
                (&json!(text.len()), &json!(text.chars().count()))
            );
            let piped = with_input(&scratch.0, &["tokenize", "--tokenizer", &at, "--json"], text.as_bytes());
            assert_eq!(parsed(&crate::cli::text(&piped.stdout)), got);
            let ids: Vec<String> = got["ids"].as_array().unwrap().iter().map(Value::to_string).collect();
            let back = ["tokenize", "--tokenizer", &at, "--json", "--ids", &ids.join(",")];
            assert_eq!(parsed(&ok(&scratch.0, &back))["text"], case["decoded"], "{text:?}");
        }
    }
}

#[test]
fn tokenize_prints_a_line_per_token_and_then_the_counts() {
    let scratch = Scratch::new("pieces");
    let shown = ok(&scratch.0, &["tokenize", "aé\n"]);
    let want = "     97  \"a\"\n    195  \"\\xc3\"\n    169  \"\\xa9\"\n     10  \"\\n\"\n4 tokens, 4 bytes, 3 characters\n";
    assert_eq!(shown, want);
    let many = ok(&scratch.0, &["tokenize", "--model", &model(), "<|im_start|>user"]);
    assert!(many.starts_with("      1  \"<|im_start|>\"\n"), "{many}");
    assert_eq!(ok(&scratch.0, &["tokenize", "--ids", "72,105"]), "Hi\n");
}

#[test]
fn conversations_are_rendered_as_hf_renders_them() {
    let scratch = Scratch::new("tokenize-chat");
    for name in ["qwen_bpe", "llama3_bpe"] {
        let (at, cases) = (tokenizer(name), json(&format!("tokenizers/{name}/chat_cases.json")));
        for prompted in [false, true] {
            let fits =
                |case: &&Value| case["add_generation_prompt"] == prompted && case["kwargs"] == json!({});
            let cases: Vec<&Value> = cases["cases"].as_array().unwrap().iter().filter(fits).collect();
            let lines = cases.iter().enumerate().map(|(i, case)| match i % 2 {
                0 => format!("{}\n", json!({"messages": case["messages"]})),
                _ => format!("\n{}\n", case["messages"]),
            });
            scratch.file("m.jsonl", &lines.collect::<String>());
            let mut args = vec!["tokenize", "--tokenizer", &at, "--chat", "--file", "m.jsonl", "--json"];
            args.extend(prompted.then_some("--add-generation-prompt"));
            let got = ok(&scratch.0, &args);
            assert_eq!(got.lines().count(), cases.len());
            for (line, case) in got.lines().map(parsed).zip(cases) {
                assert_eq!((&line["text"], &line["ids"]), (&case["text"], &case["ids"]));
                let mask = line["assistant_mask"].as_array().unwrap();
                assert_eq!(mask.len(), line["ids"].as_array().unwrap().len());
                let has_assistant =
                    case["messages"].as_array().unwrap().iter().any(|m| m["role"] == "assistant");
                assert_eq!(mask.contains(&json!(1)), has_assistant);
            }
        }
    }
    let no_thoughts =
        ["tokenize", "--tokenizer", &tokenizer("qwen_bpe"), "--chat", "--add-generation-prompt"];
    let args = [&no_thoughts[..], &["--json", "--var", "enable_thinking=false"]].concat();
    let got = with_input(&scratch.0, &args, b"[{\"role\":\"user\",\"content\":\"Hi\"}]");
    let want = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_eq!(parsed(&text(&got.stdout))["text"], want);
}

#[test]
fn assistant_tokens_are_marked_and_a_file_can_replace_the_template() {
    let scratch = Scratch::new("marked");
    let line = br#"[{"role":"user","content":"ab"},{"role":"assistant","content":"cd"}]"#;
    let shown = with_input(&scratch.0, &["tokenize", "--chat"], line);
    let shown = text(&shown.stdout);
    let marked: Vec<&str> = shown.lines().filter(|line| line.ends_with('*')).collect();
    assert_eq!(marked, ["     99  \"c\" *", "    100  \"d\" *", "    256  \"<|endoftext|>\" *"], "{shown}");
    assert!(shown.starts_with("user\nab<|endoftext|>assistant\ncd<|endoftext|>\n"), "{shown}");
    assert!(shown.ends_with("21 tokens (3 of the assistant), 45 bytes, 45 characters\n"), "{shown}");
    scratch.file("t.jinja", "{% for m in messages %}{{ m.content | upper }}{{ sep }}{% endfor %}");
    let args = ["tokenize", "--chat", "--template", "t.jinja", "--var", "sep=/", "--json"];
    let got = with_input(&scratch.0, &args, line);
    assert_eq!(parsed(&text(&got.stdout))["text"], "AB/CD/");
    scratch.file(
        "tools.jinja",
        "{% if tools %}[{{ tools[0] }}]{% endif %}{% for m in messages %}{{ m.content }};{% endfor %}",
    );
    let tools = br#"{"messages": [{"role": "user", "content": "hi"}], "tools": ["f"]}"#;
    let got = with_input(&scratch.0, &["tokenize", "--chat", "--template", "tools.jinja", "--json"], tools);
    assert_eq!(parsed(&text(&got.stdout))["text"], "[f]hi;");
    // answers of the prompt are context
    let pair = br#"{"prompt": [{"role":"user","content":"a"},{"role":"assistant","content":"b"},
        {"role":"user","content":"c"}], "completion": [{"role":"assistant","content":"d"}]}"#;
    let pair: Vec<u8> = pair.iter().copied().filter(|&byte| byte != b'\n').collect();
    let shown = text(&with_input(&scratch.0, &["tokenize", "--chat"], &pair).stdout);
    assert!(shown.ends_with("38 tokens (2 of the assistant), 86 bytes, 86 characters\n"), "{shown}");
}

#[test]
fn a_template_gets_the_date() {
    let scratch = Scratch::new("template-date");
    scratch.file("t.jinja", "{{ strftime_now('%Y') }}");
    let year = || 1970.0 + SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() / 31_556_952.0;
    let before = year();
    let line = br#"[{"role":"user","content":"ab"}]"#;
    let got = with_input(&scratch.0, &["tokenize", "--chat", "--template", "t.jinja", "--json"], line);
    let shown: f64 = parsed(&text(&got.stdout))["text"].as_str().unwrap().parse().unwrap();
    // near the turn of a year, the estimate and the time zone are off by a few days at most
    assert!((before - 0.02).floor() <= shown && shown <= (year() + 0.02).floor(), "{shown}");
}

/// The template is read once for any number of conversations, with tools and without. A pipe can be read only once.
#[cfg(unix)]
#[test]
fn a_template_is_read_once() {
    let scratch = Scratch::new("template-once");
    let plain = json!({"messages": [{"role": "user", "content": "ab"}]});
    let mut tools = plain.clone();
    tools["tools"] = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    scratch.file("m.jsonl", &format!("{plain}\n{tools}\n{plain}\n"));
    let args = ["tokenize", "--chat", "--template", "/dev/stdin", "--file", "m.jsonl", "--json"];
    let got = with_input(&scratch.0, &args, b"{% for m in messages %}{{ m.content | upper }}{% endfor %}");
    assert_eq!(got.status.code(), Some(0), "{}", text(&got.stderr));
    let texts: Vec<Value> = text(&got.stdout).lines().map(|line| parsed(line)["text"].clone()).collect();
    assert_eq!(texts, ["AB", "AB", "AB"]);
}

#[test]
fn invalid_input_is_refused_in_one_line() {
    let scratch = Scratch::new("tokenize-refused");
    scratch.file(
        "m.jsonl",
        "[{\"role\":\"user\",\"content\":\"a\"}]\n[{\"role\":\"robot\",\"content\":\"a\"}]\n",
    );
    scratch.file("bad.jsonl", "\n{\"messages\": []}\n");
    scratch.file("t.jinja", "{% for %}");
    scratch.file("not.json", "[]");
    std::fs::write(scratch.0.join("bytes"), b"a\xff").unwrap();
    let qwen = tokenizer("qwen_bpe");
    let chat = |more: &[&'static str]| [&["tokenize", "--chat"][..], more].concat();
    refused(&scratch.0, &["tokenize", "--ids", "72,257"], 2, &["257", "index 1", "vocabulary of 257"]);
    refused(&scratch.0, &["tokenize", "a", "--file", "m.jsonl"], 2, &["--file"]);
    refused(&scratch.0, &["tokenize", "a", "--var", "x=1"], 2, &["--chat"]);
    refused(&scratch.0, &["tokenize", "--file", "gone"], 66, &["gone"]);
    let parts = ["bytes", "found byte 0xff at byte 1", "iconv"];
    refused(&scratch.0, &["tokenize", "--file", "bytes"], 65, &parts);
    refused(&scratch.0, &["tokenize", "a", "--tokenizer", "not.json"], 65, &["not.json"]);
    refused(&scratch.0, &["tokenize", "a", "--tokenizer", "gone"], 66, &["gone"]);
    refused(&scratch.0, &chat(&["--file", "bad.jsonl"]), 65, &["bad.jsonl:2", "empty", "messages"]);
    let template = chat(&["--file", "m.jsonl", "--template", "t.jinja"]);
    refused(&scratch.0, &template, 65, &["t.jinja", "line 1"]);
    let robot = xtrain(&scratch.0, &[&chat(&["--file", "m.jsonl", "--tokenizer"])[..], &[&qwen]].concat());
    let stderr = text(&robot.stderr);
    assert_eq!(robot.status.code(), Some(65), "{stderr}");
    assert!(stderr.contains("m.jsonl:2") && stderr.contains("Unknown role: robot"), "{stderr}");
}

/// A panic ends the program with exit code 70, and says that it is a bug of xtrain.
#[cfg(feature = "faults")]
#[test]
fn a_panic_is_reported_as_a_bug() {
    use xtrain::tensor::faults::{self, Fault};

    let scratch = Scratch::new("panic");
    let output = faults::with(Fault::CommandPanics, || xtrain(&scratch.0, &["tokenize", "a"]));
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(70), ""));
    let errors = text(&output.stderr);
    let lines: Vec<&str> = errors.lines().collect();
    assert!(lines[0].starts_with("error: bug in xtrain: a planted fault (src/cli/tokenize.rs:"), "{errors}");
    let hint = "hint: please report it with the command line and the output of xtrain --version";
    assert_eq!(lines[1..], [hint], "{errors}");
    ok(&scratch.0, &["tokenize", "a"]);
}

#[test]
fn a_tokenizer_is_trained_on_the_text_parts_of_messages_and_on_some_text() {
    let scratch = Scratch::new("tokenizer-texts");
    scratch.file("empty.jsonl", "{\"text\": \"\"}\n");
    let args = ["tokenizer", "train", "empty.jsonl", "--out", "e.json"];
    refused(&scratch.0, &args, 65, &["empty.jsonl: expected text"]);
    refused(&scratch.0, &["prepare", "empty.jsonl", "--out", "e.tok"], 65, &["one document with text"]);
    let parts = r#"{"messages": [{"role": "assistant", "content": [{"type": "text", "text": "hello"}]}]}"#;
    scratch.file("parts.jsonl", parts);
    let shown = text(&xtrain(&scratch.0, &["tokenizer", "train", "parts.jsonl", "--out", "p.json"]).stderr);
    assert!(shown.contains("training on 5 bytes"), "{shown}");
}
