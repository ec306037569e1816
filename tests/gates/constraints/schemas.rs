//! Completions of a random model under JSON schemas: each is valid, by a validator of its own.
use serde_json::{Value, json};
use xtrain::decode::{Completion, Engine, EngineOptions, FinishReason, Request};
use xtrain::grammar::{Grammars, Language};
use xtrain::model::{Config, Model};
use xtrain::tensor::testing::times;
use xtrain::tensor::{Device, Dtype};

use super::validator::validate;
use super::{PADDING, config, tokenizer};

/// Nested objects, optional properties, enumerations, arrays, numbers with bounds, strings with escapes and characters of
/// several bytes, unions, definitions, recursion.
fn schemas() -> Vec<Value> {
    let name = json!({"type": "string", "minLength": 1, "maxLength": 8});
    vec![
        json!({
            "type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
            "properties": {
                "name": name, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                "tags": {"type": "array", "items": {"enum": ["neu", "alt", "größer", "日本"]}, "maxItems": 3},
                "address": {
                    "type": "object", "additionalProperties": false, "required": ["city"],
                    "properties": {"city": name, "zip": {"type": ["string", "null"], "maxLength": 5}}
                }
            }
        }),
        json!({"type": "array", "minItems": 1, "maxItems": 4, "items": {"type": "number", "minimum": -5, "maximum": 12.5}}),
        json!({"enum": ["a \"quoted\" word", "tab\tand\nline", "ünïcödé 🙂", 12, -0.5, null, true, ["x", {"y": 1}]]}),
        json!({
            "type": "object", "additionalProperties": false, "required": ["kind", "value"],
            "properties": {
                "kind": {"const": "measure \\ é"},
                "value": {"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": -300, "maximum": 300},
                    {"type": "string", "maxLength": 6}]},
                "\"odd\" né": {"type": "boolean"}
            }
        }),
        json!({
            "$ref": "#/$defs/tree",
            "$defs": {"tree": {
                "type": "object", "additionalProperties": false, "required": ["n", "below"],
                "properties": {
                    "n": {"type": "integer", "minimum": 1, "maximum": 9},
                    "below": {"type": "array", "maxItems": 1, "items": {"$ref": "#/$defs/tree"}}
                }
            }}
        }),
        json!({"type": "array", "prefixItems": [{"type": "string", "maxLength": 4}, {"type": "boolean"}],
            "items": {"type": "null"}, "minItems": 2, "maxItems": 4}),
        json!({"type": "string", "maxLength": 20}),
        json!({"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9},
            "properties": {"first": {"type": "integer", "minimum": 3, "maximum": 14}}, "required": ["first"]}),
    ]
}

/// Completions of each schema until there are `n`. Returns their number, and that of their tokens.
fn over(n: usize) -> Result<[usize; 2], String> {
    let tokenizer = tokenizer();
    let vocab = tokenizer.vocab_size() + PADDING;
    let cfg = Config { max_positions: 4096, ..config(vocab) };
    let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 47).unwrap();
    let mut grammars = Grammars::new(&tokenizer, vocab).unwrap();
    let schemas = schemas();
    let each = n.div_ceil(schemas.len());
    let options = EngineOptions { max_batch: 64, ..EngineOptions::default() };
    let mut engine = Engine::new(&model, options).unwrap();
    for (at, schema) in schemas.iter().enumerate() {
        let constraint = grammars.constraint(&Language::JsonSchema(schema.clone()));
        let constraint = Some(constraint.map_err(|e| format!("gate constraints, schema {schema}: {e}"))?);
        let mut request =
            Request { id: (at * each) as u64, constraint, ..Request::sampled(&[300, 301], 4000, 1.0, 3) };
        request.stop.eos = tokenizer.eos_ids().to_vec();
        engine.submit_group(request, each).unwrap();
    }
    let mut all = engine.run().map_err(|e| format!("gate constraints, schemas, seed 3: {e}"))?;
    all.truncate(n);
    for done in &all {
        let schema = &schemas[done.index / each];
        check(done, &done.text(&tokenizer), schema)
            .map_err(|e| format!("gate constraints, seed 3, schema {schema}, sequence {}: {e}", done.id))?;
    }
    Ok([all.len(), all.iter().map(|done| done.tokens.len()).sum()])
}

fn check(done: &Completion, text: &str, schema: &Value) -> Result<(), String> {
    if !matches!(done.finish_reason, FinishReason::Eos | FinishReason::Stop) {
        return Err(format!("finish reason {}, expected eos or stop: {text}", done.finish_reason));
    }
    let value: Value = serde_json::from_str(text).map_err(|e| format!("{e}: {text}"))?;
    validate(&value, schema, schema)?;
    if text.trim() == text { Ok(()) } else { Err(format!("whitespace around the value: {text:?}")) }
}

#[test]
fn completions_are_valid_under_their_schema() {
    let n = times(320, 10_000);
    let [completions, tokens] = over(n as usize).unwrap_or_else(|e| panic!("{e}"));
    println!("constraints: {completions} of {n} completions are valid under their schema, {tokens} tokens");
    assert_eq!(completions as u64, n);
}

/// Schemas whose texts a regular expression describes: on each beginning of a random text, the same tokens are allowed.
#[test]
fn a_schema_allows_the_tokens_that_its_regular_expression_allows() {
    use super::naive::Automaton;
    use crate::rng::CaseRng;
    const SPACE: &str = r"( |\n {0,16})?";
    let space = |regex: &str| regex.replace('~', SPACE);
    let string = r#""([^"\\\x00-\x1f\x7f]|\\["\\bfnrt]|\\u[0-9a-fA-F]{4}){0,3}""#;
    let pairs = [
        (json!({"type": "boolean"}), "true|false".to_string()),
        (json!({"enum": ["é", 12, null]}), r#""é"|12|null"#.to_string()),
        (json!({"type": "integer", "minimum": 0, "maximum": 12}), "[0-9]|1[0-2]".to_string()),
        (
            json!({"type": "array", "items": {"type": "boolean"}, "maxItems": 2, "minItems": 1}),
            space(r"\[~(true|false)(~,~(true|false))?~\]"),
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "null"}, "é": {"const": "x"}}, "required": ["a"],
            "additionalProperties": false}),
            space(r#"\{~"a"~:~null(~,~"é"~:~"x")?~\}"#),
        ),
        (json!({"type": "string", "maxLength": 3}), string.to_string()),
    ];
    let tokenizer = tokenizer();
    let mut grammars = Grammars::new(&tokenizer, tokenizer.vocab_size()).unwrap();
    let mut compared = 0;
    for (schema, regex) in pairs {
        let constraint = grammars.constraint(&Language::JsonSchema(schema.clone())).unwrap();
        let mut automaton = Automaton::new(&regex);
        for number in 0..40 {
            let (mut rng, mut text) = (CaseRng::new(6, number), Vec::new());
            let (mut state, mut allowed) = constraint.0.start().unwrap();
            loop {
                let (want, may_end) = automaton.allowed(&tokenizer, &text, tokenizer.eos_ids());
                let shown = String::from_utf8_lossy(&text);
                for (id, &want) in want.iter().enumerate() {
                    let token = String::from_utf8_lossy(tokenizer.token_bytes(id as u32));
                    assert_eq!(allowed.text.allows(id as u32), want, "{schema}: {token:?} after {shown:?}");
                }
                assert_eq!(allowed.may_end, may_end, "{schema}: the end after {shown:?}");
                compared += want.len();
                let ids: Vec<u32> = allowed.text.ids().collect();
                if ids.is_empty() {
                    break;
                }
                let token = rng.choose(&ids);
                text.extend(tokenizer.token_bytes(token));
                allowed = state.advance(token).unwrap();
            }
        }
    }
    println!("constraints: {compared} tokens of schemas compared with regular expressions");
}
