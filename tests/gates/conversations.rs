//! The gates for conversations as training data: which pieces are kept, and which end-of-text tokens are targets.
use std::path::Path;

use serde_json::json;
use xtrain::config::{Layer, RunConfig};
use xtrain::model::chat::{ChatTemplate, Json, Message, Options};
use xtrain::model::data::{Content, Tokens, prepare};
use xtrain::model::tokenizer::Tokenizer;
use xtrain::training::{DataLoader, Source, WindowSpec};

use crate::cli::Scratch;

/// The seed that failure messages name: the conversations are fixed.
const SEED: u64 = 0;

/// The end-of-text token of the byte tokenizer.
const END: u32 = 256;

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Tokens as text: targets in capitals, end-of-text tokens as `.` or, if they are targets, `!`. The second
/// end-of-text token of [`two_ends`] is `;` or `?`.
fn shown(ids: &[u32], is_target: impl IntoIterator<Item = bool>) -> String {
    let one = |(&id, is_target): (&u32, bool)| match (id, is_target) {
        (END, false) => '.',
        (END, true) => '!',
        (257, false) => ';',
        (257, true) => '?',
        (id, false) => id as u8 as char,
        (id, true) => (id as u8 as char).to_ascii_uppercase(),
    };
    ids.iter().zip(is_target).map(one).collect()
}

/// `task = "lm"` with whole documents in windows of 16 predictions: a part of a conversation without a target is
/// omitted, also after an answer.
pub(crate) fn pieces() -> Result<usize, String> {
    let dir = Scratch::new("conversation-pieces");
    let path = dir.0.join("data.jsonl");
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let (question, after) = ("2".repeat(8), "3".repeat(40));
    let rows = [
        json!({ "messages": [message("user", "2"), message("assistant", "ab"), message("user", &after)] }),
        json!({ "messages": [message("user", &question), message("assistant", "c"), message("user", "4")] }),
    ];
    std::fs::write(&path, rows.map(|row| format!("{row}\n")).concat()).map_err(failed)?;
    // The answer of the first conversation is tokens 17 to 19 of 66, that of the second one tokens 24 and 25 of 33. A
    // part holds 16 inputs.
    let want = ["\nAB!user\n3333333", "sistant\nC!user\n4"];
    let keys = [
        "train.task=lm",
        "train.context=16",
        "train.order=shuffled",
        "data.packing=documents",
        "data.val_fraction=0",
    ];
    let config = RunConfig::load(&keys.map(|key| Layer::Set(key.into()))).map_err(failed)?;
    let tokenizer = Tokenizer::byte();
    let tokens = Tokens::from_files(&[path], &tokenizer, Content::Any).map_err(failed)?;
    let source = Source::new(&config, tokens, tokenizer).map_err(failed)?;
    let loader = DataLoader::new(&config, &source, SEED).map_err(failed)?;
    let mut found = Vec::new();
    for step in 0..loader.per_epoch() {
        for window in loader.batch(&source.tokens, step, 1).map_err(failed)? {
            let starts = [&[0][..], &window.starts, &[window.inputs.len()]].concat();
            for at in starts.windows(2) {
                let before = window.targets[..at[1]].iter().map(Option::is_some);
                let is_target = [false].into_iter().chain(before.skip(at[0]));
                found.push(shown(&window.inputs[at[0]..at[1]], is_target));
            }
        }
    }
    found.sort();
    if found != want {
        return Err(format!(
            "gate pieces of conversations, seed {SEED}: training: got {found:?}, want {want:?}"
        ));
    }
    let all = 0..source.tokens.len();
    let windows = WindowSpec::new(&config).evaluation(&source.tokens, all, 0).map_err(failed)?;
    if windows.len() != want.len() {
        return Err(format!("gate pieces of conversations, seed {SEED}: evaluation: got {windows:?}"));
    }
    Ok(found.len() + windows.len())
}

/// The byte tokenizer with a second end-of-text token and a chat template.
fn two_ends(template: &str) -> Result<Tokenizer, String> {
    let mut vocabulary: serde_json::Value =
        serde_json::from_slice(Tokenizer::byte().files()[0].1).map_err(failed)?;
    let added = vocabulary["added_tokens"].as_array_mut().ok_or("no added tokens")?;
    let mut second = added[0].clone();
    (second["id"], second["content"]) = (json!(257), json!("<|call|>"));
    added.push(second);
    let config = json!({ "eos_token": "<|endoftext|>", "chat_template": template });
    let (vocabulary, config) = (vocabulary.to_string().into_bytes(), config.to_string().into_bytes());
    let tokenizer = Tokenizer::from_parts(vocabulary, Some(config), Path::new("tokenizer.json"));
    Ok(tokenizer.map_err(failed)?.with_eos_ids(&[END, 257]))
}

/// A template that ends assistant turns with one of two tokens: both are targets, and neither is followed by
/// a separator.
pub(crate) fn ends() -> Result<usize, String> {
    let dir = Scratch::new("two-ends");
    let path = dir.0.join("data.jsonl");
    let row = |last: &str| {
        let messages = json!([
            { "role": "user", "content": "1" },
            { "role": "assistant", "content": "a", "call": "f" },
            { "role": "tool", "content": "2" },
            { "role": "assistant", "content": "b" },
            { "role": "user", "content": "3" },
            { "role": "assistant", "content": "c", last: "f" },
        ]);
        json!({ "messages": messages })
    };
    std::fs::write(&path, format!("{}\n{}\n", row("call"), row("other"))).map_err(failed)?;
    let end = "{{ '<|call|>' if m.call else '<|endoftext|>' }}";
    let block = "{% generation %}{{ m.content }}{% endgeneration %}";
    let body =
        format!("{{% if m.role == 'assistant' %}}{block}{{% else %}}{{{{ m.content }}}}{{% endif %}}{end}");
    let tokenizer = two_ends(&format!("{{% for m in messages %}}{body}{{% endfor %}}"))?;
    let want = "1.A?2.B!3.C?1.A?2.B!3.C!";
    let tokens = Tokens::from_files(std::slice::from_ref(&path), &tokenizer, Content::Conversations);
    let (tokens, out) = (tokens.map_err(failed)?, dir.0.join("data.tok"));
    prepare(&[path], &out, &tokenizer, &mut |_| ()).map_err(failed)?;
    for (which, tokens) in [("in memory", tokens), ("packed", Tokens::open(&out).map_err(failed)?)] {
        let all = 0..tokens.len();
        let is_target = tokens.target_mask(all.clone()).map_err(failed)?;
        let got = shown(&tokens.ids(all).map_err(failed)?, is_target);
        let ends = tokens.ends().map_err(failed)?;
        if got != want || ends != [12, 24] {
            return Err(format!(
                "gate end tokens, seed {SEED}: {which}: got {got:?} with ends {ends:?}, want {want:?}"
            ));
        }
    }
    Ok(2 * want.len())
}

#[test]
fn a_part_of_a_conversation_without_a_target_is_omitted() {
    assert_eq!(pieces(), Ok(4));
}

#[test]
fn both_end_tokens_of_a_template_are_targets() {
    assert_eq!(ends(), Ok(48));
}

/// Tools printed by a chat template with `tojson(indent=2)` have the lines of Python's `json.dumps`. Returns the number
/// of values.
pub(crate) fn indented() -> Result<usize, String> {
    let cases = [
        (r#"{"a": []}"#, "{\n  \"a\": []\n}"),
        (r#"[[], {}]"#, "[\n  [],\n  {}\n]"),
        (r#"[{"b": []}]"#, "[\n  {\n    \"b\": []\n  }\n]"),
        (r#"{"p": {}, "q": 1}"#, "{\n  \"p\": {},\n  \"q\": 1\n}"),
        (r#"{"q": 1, "p": {}}"#, "{\n  \"q\": 1,\n  \"p\": {}\n}"),
    ];
    let template = ChatTemplate::parse("{{ tools | tojson(indent=2) }}").map_err(failed)?;
    for (tools, want) in cases {
        let tools = Some(Json::parse(tools).map_err(failed)?);
        let rendered =
            template.render(&[Message::new("user", "a")], &Options { tools, ..Options::default() });
        let found = rendered.map_err(failed)?.text;
        if found != want {
            return Err(format!("gate indented JSON, seed {SEED}: got {found:?}, want {want:?}"));
        }
    }
    Ok(cases.len())
}

#[test]
fn indented_json_has_the_lines_of_python() {
    let n = indented().unwrap_or_else(|e| panic!("{e}"));
    println!("indented JSON: {n} values, 0 differ");
}
