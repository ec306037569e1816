//! Every variant of [`ChatError`], each from a template or messages with one defect.
use std::path::Path;

use super::*;
use crate::tokenizer::Tokenizer;
use xtrain_tensor::testing::named_cases::{check, variants};

fn parsed(template: &str) -> ChatError {
    ChatTemplate::parse(template).unwrap_err()
}

/// The error of rendering one message.
fn rendered(template: &str) -> ChatError {
    let template = ChatTemplate::parse(template).unwrap();
    template.render(&[Message::new("user", "a")], &Options::default()).unwrap_err()
}

fn messages(json: &str) -> ChatError {
    Json::parse(json).and_then(|json| Message::list(&json)).unwrap_err()
}

fn turn_that_changes() -> ChatError {
    let template = "{% for m in messages %}{{ m.content if loop.last else '-' }}{% endfor %}";
    let talk =
        [("user", "a"), ("assistant", "b"), ("user", "c")].map(|(role, text)| Message::new(role, text));
    ChatTemplate::parse(template).unwrap().assistant(&talk, &Options::default()).unwrap_err()
}

/// The error of the template `name` of a tokenizer with the chat templates `templates`.
fn of_tokenizer(templates: &str, name: Option<&str>) -> ChatError {
    let config = format!("{{\"chat_template\": {templates}}}").into_bytes();
    let json = Tokenizer::byte().files()[0].1.to_vec();
    let tokenizer = Tokenizer::from_parts(json, Some(config), Path::new("some/tokenizer.json")).unwrap();
    let options = Options::default();
    let rendered = |template: ChatTemplate| template.render(&[Message::new("user", "a")], &options);
    ChatTemplate::of(&tokenizer, name, &options).and_then(rendered).unwrap_err()
}

#[test]
fn every_variant_is_reached_by_a_named_case() {
    let named = r#"[{"name": "default", "template": "d"}, {"name": "rag", "template": "r"}]"#;
    let variants = variants!(ChatError: Syntax Raised Render Limit Message Turn File Missing);
    let endless = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}";
    check(
        &variants,
        &[
            ("an unclosed block", parsed("a\n{% if %}"), &["chat template: syntax error: ", "line 2"]),
            (
                "raise_exception",
                rendered("{{ raise_exception('no system') }}"),
                &["rejects the messages: no system"],
            ),
            ("an unknown name", rendered("\n{{ nobody.name }}"), &["cannot be rendered: ", "line 2"]),
            (
                "a long template",
                parsed(&" ".repeat((1 << 20) + 1)),
                &["length: expected at most 1048576 bytes"],
            ),
            ("a long loop", rendered(endless), &["chat template: instructions: expected at most "]),
            ("a list of numbers", messages("[1]"), &["messages: expected ", "found a number"]),
            ("no role", messages("[{}]"), &["messages: expected ", "no role"]),
            (
                "a turn that depends on later turns",
                turn_that_changes(),
                &["the text of message 1 depends on the messages after it"],
            ),
            (
                "a syntax error in a file",
                of_tokenizer("\"{{\"", None),
                &["some/tokenizer_config.json: chat template: syntax error: "],
            ),
            (
                "an unknown function in a file",
                of_tokenizer("\"{{ f() }}\"", None),
                &["some/tokenizer_config.json: chat template: cannot be rendered: "],
            ),
            (
                "an unknown template",
                of_tokenizer(named, Some("tools")),
                &["chat template \"tools\" not found", "templates: default, rag"],
            ),
        ],
    );
}
