//! Tests of chat templates against HF's results.
use std::path::Path;

use super::*;
use crate::tokenizer::Tokenizer;

fn cases(name: &str) -> serde_json::Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tokenizers").join(name);
    serde_json::from_slice(&std::fs::read(file.join("chat_cases.json")).unwrap()).unwrap()
}

fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tokenizers").join(name))
        .unwrap()
}

fn ordered(json: &serde_json::Value) -> Json {
    Json::parse(&json.to_string()).unwrap()
}

fn messages(json: &serde_json::Value) -> Vec<Message> {
    Message::list(&ordered(json)).unwrap()
}

#[track_caller]
fn check_against_hf(name: &str) {
    let (tokenizer, cases) = (tokenizer(name), cases(name));
    let usual = ChatTemplate::of(&tokenizer, None, &Options::default()).unwrap();
    assert_eq!(usual.source(), cases["template"].as_str().unwrap());
    for case in cases["cases"].as_array().unwrap() {
        let variables = case["kwargs"].as_object().unwrap();
        let options = Options {
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            variables: variables.iter().map(|(name, value)| (name.clone(), ordered(value))).collect(),
            ..Options::of(&tokenizer)
        };
        let rendered = usual.render(&messages(&case["messages"]), &options).unwrap();
        assert_eq!(rendered.text, case["text"].as_str().unwrap());
        let ids: Vec<u64> = tokenizer.encode(&rendered.text).unwrap().into_iter().map(u64::from).collect();
        let want: Vec<u64> = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
        assert_eq!(ids, want);
    }
    for case in cases["errors"].as_array().unwrap() {
        let error = usual.render(&messages(&case["messages"]), &Options::of(&tokenizer)).unwrap_err();
        let want = case["must_fail_with"].as_str().unwrap().trim_start_matches("TemplateError: ");
        assert_eq!(error, ChatError::Raised { message: want.into() });
    }
}

#[test]
fn a_qwen_template_renders_as_hf_does() {
    check_against_hf("qwen_bpe");
}

#[test]
fn a_llama3_template_renders_as_hf_does() {
    check_against_hf("llama3_bpe");
}

/// Checks the assistant's parts of a conversation with two assistant turns.
#[track_caller]
fn check_assistant(template: &str, want: &[&str]) {
    let messages = [
        Message::new("system", "s"),
        Message::new("user", "é?"),
        Message::new("assistant", "yes"),
        Message::new("user", "b"),
        Message::new("assistant", "nö"),
    ];
    let options = Options { special_tokens: vec![("eos_token".into(), "</s>".into())], ..Options::default() };
    let template = ChatTemplate::parse(template).unwrap();
    let (text, parts) = template.assistant(&messages, &options).unwrap();
    let got: Vec<&str> = parts.into_iter().map(|part| &text[part]).collect();
    assert_eq!(got, want, "{text}");
    assert_eq!(text, template.render(&messages, &options).unwrap().text);
}

#[test]
fn assistant_text_is_found_by_blocks_or_by_turns() {
    check_assistant(BUILT_IN, &["yes</s>", "nö</s>"]);
    let turns = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}\
                 {% if add_generation_prompt %}<assistant>{% endif %}";
    check_assistant(turns, &["yes</>", "nö</>"]);
    let blocks = "{% for m in messages %}\n\
                  {{ m.role }}:\n\
                  {%- if m.role == 'assistant' %}\n    {% generation %}\n {{ m.content }}\n    {% endgeneration %}\n\
                  {% else %}{{ m.content }}{% endif %}\n{% endfor %}";
    check_assistant(blocks, &[" yes\n", " nö\n"]);
    // a conversation may begin with the assistant
    let messages = ["assistant", "user", "assistant"].map(|role| Message::new(role, "x"));
    let (text, parts) =
        ChatTemplate::parse(turns).unwrap().assistant(&messages, &Options::default()).unwrap();
    assert_eq!(parts.len(), 2, "{text}");
    // a mark character in a message is not a mark
    let template =
        ChatTemplate::parse("{{ messages[0].content }}{% generation %}x{% endgeneration %}").unwrap();
    let rendered = template.render(&[Message::new("user", "\u{fdd0}\u{fdd1}")], &Options::default()).unwrap();
    assert_eq!(rendered.text, "\u{fdd0}\u{fdd1}x");
    assert_eq!(rendered.generated.unwrap().first(), Some(&(6..7)));
}

#[test]
fn a_turn_that_depends_on_later_messages_is_refused() {
    let template = "{% for m in messages %}{{ m.content if loop.last else '-' }}{% endfor %}";
    let template = ChatTemplate::parse(template).unwrap();
    let [a, b] = [Message::new("user", "a"), Message::new("assistant", "b")];
    let talk = [a.clone(), b.clone(), a.clone()];
    assert_eq!(template.assistant(&talk, &Options::default()), Err(ChatError::Turn { at: 1, source: None }));
    // the text before the turn continues in another way, and the turn is the last one
    let prompted = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '!' if add_generation_prompt }}";
    let prompted = ChatTemplate::parse(prompted).unwrap();
    assert_eq!(
        prompted.assistant(&talk[..2], &Options::default()),
        Err(ChatError::Turn { at: 1, source: None })
    );
    let error = ChatTemplate::parse(BUILT_IN).unwrap().render(&[a], &Options::default()).unwrap_err();
    assert!(error.to_string().contains("no token that ends a text"), "{error}");
}

#[test]
fn a_template_that_rejects_the_messages_before_a_turn_is_refused_with_its_reason() {
    let template = "{% for m in messages %}{{ m.content }}{% if loop.last and m.role == 'user' and not tools %}\
                    {{ raise_exception('no answer') }}{% endif %}{% endfor %}";
    let template = ChatTemplate::parse(template).unwrap();
    let talk = [Message::new("user", "a"), Message::new("assistant", "b")];
    let error = template.assistant(&talk, &Options::default()).unwrap_err();
    let source = Some(Box::new(ChatError::Raised { message: "no answer".into() }));
    assert_eq!(error, ChatError::Turn { at: 1, source });
    assert_eq!(
        error.to_string(),
        "chat template: the messages up to message 1 cannot be rendered without those after it, so its tokens cannot \
         be identified; the template needs {% generation %} blocks: chat template: it rejects the messages: no answer"
    );
    assert!(
        std::error::Error::source(&error).is_some_and(|source| source.to_string().ends_with("no answer"))
    );
}

#[test]
fn a_template_is_selected_by_name_or_by_tools_or_is_the_built_in_one() {
    let config =
        r#"{"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}"#;
    let json = Tokenizer::byte().files()[0].1.to_vec();
    let named = Tokenizer::from_parts(json, Some(config.into()), Path::new("t")).unwrap();
    let source =
        |name, options: &Options| ChatTemplate::of(&named, name, options).map(|t| t.source().to_string());
    let tools = Options { tools: Some(Json::parse("[]").unwrap()), ..Options::default() };
    assert_eq!(source(None, &Options::default()).unwrap(), "d");
    assert_eq!(source(None, &tools).unwrap(), "t");
    assert_eq!(source(Some("default"), &tools).unwrap(), "d");
    let error = source(Some("rag"), &tools).unwrap_err().to_string();
    assert_eq!(error, "chat template \"rag\" not found; templates: default, tool_use");
    let error = ChatTemplate::of(&Tokenizer::byte(), Some("rag"), &tools).unwrap_err().to_string();
    assert!(error.starts_with("chat template \"rag\" not found"), "{error}");
    let config = r#"{"chat_template": [{"name": "rag", "template": "r"}]}"#;
    let json = Tokenizer::byte().files()[0].1.to_vec();
    let without_default = Tokenizer::from_parts(json, Some(config.into()), Path::new("t")).unwrap();
    let error = ChatTemplate::of(&without_default, None, &tools).unwrap_err().to_string();
    assert_eq!(error, "chat template \"default\" not found; templates: rag");
    let built_in = ChatTemplate::of(&Tokenizer::byte(), None, &Options::default()).unwrap();
    let marked = built_in.render(&[], &Options::of(&Tokenizer::byte())).unwrap().generated.is_some();
    assert!(built_in.source() == BUILT_IN && marked);
}

#[test]
fn values_are_printed_as_in_python() {
    let tools = r#"[{"z": 1, "a": [true, null, 1.0, 1e20, "é<&'\u0001"], "e": {}, "f": []}]"#;
    let options =
        Options { tools: Some(Json::parse(tools).unwrap()), now: Some(86_400), ..Options::default() };
    let render = |template: &str| {
        let template = ChatTemplate::parse(template).unwrap();
        template.render(&[Message::new("user", "a")], &options).map(|r| r.text)
    };
    for (template, want) in [
        (
            "{{ tools | tojson }}",
            r#"[{"z": 1, "a": [true, null, 1.0, 1e+20, "é<&'\u0001"], "e": {}, "f": []}]"#,
        ),
        ("{{ tools[0].e | tojson(indent=2) }}{{ tools[0].f | tojson(indent=2) }}", "{}[]"),
        ("{{ [{'e': []}, {}] | tojson(indent=1) }}", "[\n {\n  \"e\": []\n },\n {}\n]"),
        ("{{ [1, {'b': 2}] | tojson(indent=1) }}", "[\n 1,\n {\n  \"b\": 2\n }\n]"),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", "{\"a\":2,\"b\":1}"),
        ("{{ [1] | tojson(2) }}{{ [1] | tojson(none) }}{{ [1] | tojson(indent=none) }}", "[\n  1\n][1][1]"),
        ("{{ [1] | tojson(indent='~') }}", "[\n~1\n]"),
        ("{{ [1] | tojson(64) | length }} {{ [1] | tojson(indent='~' * 64) | length }}", "69 69"),
        ("{{ 'é🙂' | tojson(ensure_ascii=true) }}", "\"\\u00e9\\ud83d\\ude42\""),
        ("{{ none }} {{ true }} {{ 1.0 }} {{ nobody }}|", "None True 1.0 |"),
        (
            "{{ 1e-05 }} {{ 1e20 }} {{ 0.0001 }} {{ -1e16 }} {{ 1e15 }}",
            "1e-05 1e+20 0.0001 -1e+16 1000000000000000.0",
        ),
        ("{{ 1e-05 | string }} {{ tools[0].a[3] }} {{ 1e308 * 10 }} {{ 2 | string }}", "1e-05 1e+20 inf 2"),
        ("{{ strftime_now('%d %b %Y') }}", "02 Jan 1970"),
        ("{{ none is iterable }} {{ 'a' is sequence }} {{ {} is sequence }}", "False True True"),
        ("{{ 'a-b-c'.rpartition('-')[0] }} {{ 'abc'.removeprefix('a') }} {{ 'a b'.split()[1] }}", "a-b bc b"),
        ("{{ 'a'.partition('-') | join('/') }} {{ 'a'.rpartition('-') | join('/') }}", "a// //a"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("a\r\nb{% if true %}\n  c{% endif %}\n", "a\nb  c"),
    ] {
        assert_eq!(render(template).as_deref(), Ok(want), "{template}");
    }
    for template in ["{{ [1] | tojson(65) }}", "{{ [1] | tojson(indent='~' * 65) }}"] {
        let refused = render(template).unwrap_err().to_string();
        assert!(refused.contains("more than 64 spaces"), "{refused}");
    }
    let refused = render("{{ undefined_name | tojson }}").unwrap_err().to_string();
    assert!(refused.contains("undefined"), "{refused}");
    let without = Options { now: None, ..options.clone() };
    let fixed = ChatTemplate::parse("{{ strftime_now is defined }}").unwrap();
    assert_eq!(fixed.render(&[Message::new("user", "a")], &without).unwrap().text, "False");
}

#[test]
fn invalid_messages_are_refused() {
    for (json, want) in [
        ("{}", "a list of messages, found an object"),
        ("[]", "an empty list"),
        ("[1]", "found a number"),
        ("[{}]", "no role"),
        ("[{\"role\": 1}]", "a number as role"),
        ("[", "expected JSON"),
        ("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "64 deep"),
    ] {
        let error = Json::parse(json).and_then(|json| Message::list(&json)).unwrap_err().to_string();
        assert!(error.contains(want), "{json}: {error}");
    }
    let long = ChatTemplate::parse(&" ".repeat(MAX_TEMPLATE + 1)).unwrap_err().to_string();
    assert!(long.contains("length: expected at most 1048576 bytes, found 1048577"), "{long}");
    ChatTemplate::parse(&" ".repeat(MAX_TEMPLATE)).unwrap();
    let code = |length: usize| ChatTemplate::parse(&format!("{{{{1{}}}}}", " ".repeat(length - 5)));
    code(8 << 10).unwrap();
    let long = code((8 << 10) + 1).unwrap_err().to_string();
    assert!(long.contains("bytes of code in one tag: expected at most 8192, found 8193"), "{long}");
}

/// A template that reads every byte of a long conversation needs more instructions than one for a short conversation.
#[test]
fn the_limit_of_instructions_grows_with_the_input() {
    let template = "{% set ns = namespace(n=0) %}{% for c in messages[0].content %}{% for i in range(2) %}\
                    {% set ns.n = ns.n + 1 %}{% endfor %}{% endfor %}{{ ns.n }}";
    let template = ChatTemplate::parse(template).unwrap();
    let rendered =
        template.render(&[Message::new("user", &"a".repeat(20_000))], &Options::default()).unwrap();
    assert_eq!(rendered.text, "40000");
}

#[test]
fn blocks_of_assistant_text_that_are_nested_or_cross_others_are_refused() {
    for template in [
        "{% generation %}a{% generation %}b{% endgeneration %}c{% endgeneration %}",
        "{% if true %}{% with %}a{% endgeneration %}b",
    ] {
        let error = ChatTemplate::parse(template).unwrap().render(&[], &Options::default()).unwrap_err();
        assert!(error.to_string().contains("a nested or unclosed {% generation %} block"), "{error}");
    }
}

#[test]
fn a_token_that_ends_a_text_is_passed_to_the_template_once() {
    let json = Tokenizer::byte().files()[0].1.to_vec();
    let named =
        |config: &str| Tokenizer::from_parts(json.clone(), Some(config.into()), Path::new("t")).unwrap();
    let count = |tokenizer: &Tokenizer| {
        let tokens = Options::of(tokenizer).special_tokens;
        tokens.iter().filter(|(name, _)| name == "eos_token").count()
    };
    for config in [r#"{"eos_token": "<|endoftext|>"}"#, r#"{"pad_token": "<|endoftext|>"}"#] {
        assert_eq!(count(&named(config)), 1, "{config}");
    }
}

#[test]
fn a_message_has_its_text_and_its_fields_in_order() {
    let json = Json::parse(r#"{"role": "tool", "content": "4", "b": 1, "a": [true, null]}"#).unwrap();
    assert_eq!(format!("{json:?}"), "{'role': 'tool', 'content': '4', 'b': 1, 'a': [True, None]}");
    assert_eq!(Message::from_json(json).unwrap().content().as_deref(), Some("4"));
    assert_eq!(Message::new("user", "").content().as_deref(), Some(""));
    for without_text in [r#"{"role": "user"}"#, r#"{"role": "user", "content": [1]}"#] {
        assert_eq!(Message::from_json(Json::parse(without_text).unwrap()).unwrap().content(), None);
    }
}
