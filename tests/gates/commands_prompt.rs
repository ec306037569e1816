//! The prompt of `xtrain generate`: standard input, `--echo`, and the BOS token.
use crate::cli::{Scratch, ok, refused, text};
use crate::commands::{done, model, parsed};
use crate::commands_tokenize::with_input;
use crate::sentencepiece;

#[test]
fn a_prompt_on_standard_input_is_the_same_prompt() {
    let (scratch, m) = (Scratch::new("stdin-prompt"), model());
    let args = |prompt| ["generate", &m, "--max-new", "6", "--json", "--prompt", prompt];
    let want = parsed(&ok(&scratch.0, &args("ab\ncd")));
    for input in ["ab\ncd", "ab\ncd\n", "ab\ncd\r\n"] {
        let output = with_input(&scratch.0, &args("-"), input.as_bytes());
        let got = parsed(&text(&output.stdout));
        assert_eq!(
            (&got["prompt_ids"], &got["completion_ids"]),
            (&want["prompt_ids"], &want["completion_ids"])
        );
        assert_eq!(got["prompt"], "ab\ncd");
        assert_eq!(text(&output.stderr), "");
    }
    for (input, code, part) in [
        (&b"a\xff"[..], 65, "standard input: expected UTF-8 text, found byte 0xff at byte 1"),
        (b"", 2, "standard input: the prompt is empty"),
        (&[b'a'; 17 << 20], 65, "standard input: expected a prompt of at most 16 MiB"),
    ] {
        let output = with_input(&scratch.0, &args("-"), input);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
}

#[test]
fn echo_prints_the_prompt_before_the_completion() {
    let (scratch, m) = (Scratch::new("echo"), model());
    let args = ["generate", &m, "--max-new", "6", "--seed", "4"];
    for prompt in [["--prompt", "ab\n"], ["--tokens", "65,66"]] {
        let plain = done(&scratch.0, &[&args[..], &prompt].concat());
        let echoed = done(&scratch.0, &[&args[..], &prompt, &["--echo"]].concat());
        let shown = parsed(&ok(&scratch.0, &[&args[..], &prompt, &["--json"]].concat()))["prompt"].clone();
        assert_eq!(echoed, format!("{}{plain}", shown.as_str().unwrap()));
    }
    refused(
        &scratch.0,
        &[&args[..], &["--prompt", "a", "--echo", "--json"]].concat(),
        2,
        &["--echo", "--json"],
    );
}

#[test]
fn an_empty_prompt_starts_from_the_beginning_of_text_token() {
    let (scratch, m) = (Scratch::new("empty-prompt"), model());
    let empty = |model| ["generate", model, "--prompt", "", "--max-new", "4", "--json"];
    refused(&scratch.0, &empty(&m), 2, &["--prompt: the prompt is empty", "no BOS token", "--tokens 2"]);
    sentencepiece::model(&scratch, "llama_spm");
    let from_bos = parsed(&ok(&scratch.0, &empty("base")));
    let args = ["generate", "base", "--tokens", "1", "--max-new", "4", "--json"];
    let from_ids = parsed(&ok(&scratch.0, &args));
    assert_eq!(from_bos["prompt_ids"], serde_json::json!([1]));
    assert_eq!(from_bos["completion_ids"], from_ids["completion_ids"]);
}
