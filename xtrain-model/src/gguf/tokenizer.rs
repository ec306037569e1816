//! Conversion of a byte-level BPE between the metadata of a GGUF file and the files of a Hugging Face tokenizer.
use std::fmt::Display;
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::metadata::{Metadata, Value};
use crate::checkpoint::CheckpointError;
use crate::error::Error;
use crate::kept_fields::KeptFields;
use crate::store_error::StoreError;
use crate::tokenizer::{MAX_VOCABULARY, Tokenizer, TokenizerError};

struct PreTokenizer {
    name: &'static str,
    /// The split pattern. `None`: the pattern of GPT-2.
    pattern: Option<&'static str>,
    /// Whether text is normalized to NFC first.
    nfc: bool,
    /// Whether whole words of the vocabulary take precedence over merges.
    ignore_merges: bool,
}

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The supported pre-tokenizers. The first is the default.
const PRE_TOKENIZERS: [PreTokenizer; 3] = [
    PreTokenizer { name: "gpt-2", pattern: None, nfc: false, ignore_merges: false },
    PreTokenizer { name: "qwen2", pattern: Some(QWEN2), nfc: true, ignore_merges: false },
    PreTokenizer { name: "llama-bpe", pattern: Some(LLAMA3), nfc: false, ignore_merges: true },
];

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const TEMPLATE: &str = "tokenizer.chat_template";
/// The names of all chat templates except the default.
const TEMPLATES: &str = "tokenizer.chat_templates";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
/// The keys of end-of-text ids. The first is the id of `eos_token`.
const EOS_KEYS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
const BOS: &str = "tokenizer.ggml.bos_token_id";
const PAD: &str = "tokenizer.ggml.padding_token_id";

const NORMAL: i64 = 1;
const CONTROL: i64 = 3;
const USER: i64 = 4;
const UNUSED: i64 = 5;

pub(super) fn eos_ids(meta: &Metadata) -> Result<Vec<u32>, CheckpointError> {
    let mut ids: Vec<u32> = Vec::new();
    for key in EOS_KEYS {
        if let Some(id) = meta.size(key)? {
            let id = u32::try_from(id).map_err(|_| meta.bad(key, "an id", id))?;
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
    Ok(ids)
}

/// The ids of the tokens that begin and pad a text.
pub(super) fn kept_fields(meta: &Metadata) -> Result<KeptFields, CheckpointError> {
    Ok(KeptFields::of_ids(meta.size(BOS)?, meta.size(PAD)?))
}

/// The tokenizer in the metadata. `None`: the file contains none. Rejects unsupported kinds, by name, and lists that
/// contradict each other.
pub(super) fn read(meta: &Metadata) -> Result<Option<Tokenizer>, StoreError> {
    let Some(model) = meta.text(MODEL)? else { return Ok(None) };
    if model != "gpt2" {
        return Err(meta.bad(MODEL, "gpt2 (a byte-level BPE)", format!("{model:?}")).into());
    }
    let name = meta.text(PRE)?.filter(|name| *name != "default").unwrap_or(PRE_TOKENIZERS[0].name);
    let Some(pre) = PRE_TOKENIZERS.iter().find(|pre| pre.name == name) else {
        return Err(meta.bad(PRE, "gpt-2, qwen2 or llama-bpe", format!("{name:?}")).into());
    };
    let (tokens, types) = (meta.texts(TOKENS)?, meta.ints(TYPES)?);
    if tokens.len() > MAX_VOCABULARY as usize {
        return Err(meta.bad(TOKENS, &format!("at most {MAX_VOCABULARY} tokens"), tokens.len()).into());
    }
    if !types.is_empty() && types.len() != tokens.len() {
        return Err(meta.bad(TYPES, &format!("{} types, one per token", tokens.len()), types.len()).into());
    }
    let (mut vocabulary, mut added) = (Map::new(), Vec::new());
    for (id, token) in tokens.iter().enumerate() {
        let kind = types.get(id).copied().unwrap_or(NORMAL);
        if kind == UNUSED {
            continue;
        }
        if vocabulary.insert(token.clone(), json!(id)).is_some() {
            return Err(meta.bad(TOKENS, "unique tokens", format!("{token:?} twice")).into());
        }
        if kind == CONTROL || kind == USER {
            added.push(json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": kind == CONTROL,
            }));
        }
    }
    let mut merges = Vec::with_capacity(meta.texts(MERGES)?.len());
    for merge in meta.texts(MERGES)? {
        let Some(pair) = merge.split_once(' ') else {
            return Err(meta.bad(MERGES, "two tokens separated by a space", format!("{merge:?}")).into());
        };
        merges.push(json!([pair.0, pair.1]));
    }
    let name = |key: &str| -> Result<Option<&String>, CheckpointError> {
        let Some(id) = meta.size(key)? else { return Ok(None) };
        let none = || meta.bad(key, &format!("an id below {}", tokens.len()), id);
        tokens.get(id).map(Some).ok_or_else(none)
    };
    let add_bos = meta.get(ADD_BOS) == Some(&Value::Bool(true));
    let post = match (name(BOS)?, meta.size(BOS)?) {
        (Some(token), Some(id)) if add_bos => begins_with(token, id),
        _ => Json::Null,
    };
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added,
        "normalizer": if pre.nfc { json!({"type": "NFC"}) } else { Json::Null },
        "pre_tokenizer": pre_tokenizer(pre),
        "post_processor": post,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": pre.ignore_merges,
            "vocab": vocabulary,
            "merges": merges,
        },
    });
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false,
        "add_bos_token": add_bos,
    });
    for (field, key) in [("eos_token", EOS_KEYS[0]), ("bos_token", BOS), ("pad_token", PAD)] {
        if let Some(token) = name(key)? {
            config[field] = json!(token);
        }
    }
    match &templates(meta)?[..] {
        [] => {}
        [(name, text)] if name == "default" => config["chat_template"] = json!(text),
        many => {
            let each = many.iter().map(|(name, text)| json!({"name": name, "template": text}));
            config["chat_template"] = each.collect();
        }
    }
    let text = |json: &Json| format!("{json:#}\n").into_bytes();
    Ok(Some(Tokenizer::from_parts(text(&json), Some(text(&config)), &meta.file)?))
}

/// The chat templates of a file by name: `tokenizer.chat_template` and `tokenizer.chat_template.NAME`.
fn templates(meta: &Metadata) -> Result<Vec<(String, String)>, CheckpointError> {
    let mut templates = Vec::new();
    for (key, _) in &meta.values {
        let name = match key.strip_prefix(TEMPLATE) {
            Some("") => "default",
            Some(name) if name.starts_with('.') => &name[1..],
            _ => continue,
        };
        if let Some(text) = meta.text(key)? {
            templates.push((name.to_string(), text.to_string()));
        }
    }
    Ok(templates)
}

fn byte_level(use_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn pre_tokenizer(pre: &PreTokenizer) -> Json {
    let Some(pattern) = pre.pattern else { return byte_level(true) };
    let split =
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]})
}

/// The post-processor that prepends the beginning-of-text token if special tokens are added.
fn begins_with(token: &str, id: usize) -> Json {
    let special = |kind: u8| json!({"SpecialToken": {"id": token, "type_id": kind}});
    let sequence = |id: &str, kind: u8| json!({"Sequence": {"id": id, "type_id": kind}});
    json!({
        "type": "TemplateProcessing",
        "single": [special(0), sequence("A", 0)],
        "pair": [special(0), sequence("A", 0), special(1), sequence("B", 1)],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
    })
}

/// The metadata of the end-of-text ids. Fails for more ids than GGUF has keys.
pub(super) fn write_eos_ids(eos: &[u32]) -> Result<Vec<(String, Value)>, Error> {
    if eos.len() > EOS_KEYS.len() {
        let (field, want) = ("eos_token_id", "at most three ids in a GGUF file");
        return Err(Error::Config { field, want, got: format!("{eos:?}") });
    }
    let pairs = EOS_KEYS.into_iter().zip(eos);
    Ok(pairs.map(|(key, &id)| (key.to_string(), Value::Int(id.into()))).collect())
}

/// The metadata of a tokenizer for a model of `vocab` ids. Fails for a tokenizer that GGUF cannot represent, or one
/// with more ids than the model.
pub(super) fn write(tokenizer: &Tokenizer, vocab: usize) -> Result<Vec<(String, Value)>, StoreError> {
    let files = tokenizer.files();
    let [(name, text), (config_name, config)] = [files[0], files[1]];
    let parse = |name: &str, bytes: &[u8]| -> Result<Json, StoreError> {
        serde_json::from_slice(bytes).map_err(|e| unnamed(name, "JSON", e))
    };
    let (json, config) = (parse(name, text)?, parse(config_name, config)?);
    let refuse = |want: &str, got: String| Err(unnamed(name, want, got));
    let mut tokens: Vec<Option<String>> = vec![None; vocab];
    let mut types = vec![UNUSED; vocab];
    let mut place = |token: &str, id: &Json, kind: i64| match id.as_u64().map(|id| id as usize) {
        Some(id) if id < vocab => {
            (tokens[id], types[id]) = (Some(token.to_string()), kind);
            Ok(())
        }
        _ => Err(unnamed(name, &format!("ids below {vocab}, the vocabulary of the model"), id)),
    };
    for (token, id) in json["model"]["vocab"].as_object().into_iter().flatten() {
        place(token, id, NORMAL)?;
    }
    for token in json["added_tokens"].as_array().into_iter().flatten() {
        let kind = if token["special"] == true { CONTROL } else { USER };
        place(token["content"].as_str().unwrap_or_default(), &token["id"], kind)?;
    }
    let mut merges = Vec::new();
    for merge in json["model"]["merges"].as_array().into_iter().flatten() {
        merges.push(match merge {
            Json::String(pair) => pair.clone(),
            pair => match (pair[0].as_str(), pair[1].as_str()) {
                (Some(a), Some(b)) if !a.contains(' ') && !b.contains(' ') => format!("{a} {b}"),
                _ => return refuse("merges of two tokens without spaces", pair.to_string()),
            },
        });
    }
    let Some(pre) = find_pre_tokenizer(&json["pre_tokenizer"], merges.is_empty()) else {
        return refuse("the pre-tokenizer of GPT-2, Qwen2 or Llama 3", json["pre_tokenizer"].to_string());
    };
    let padded = tokens.into_iter().enumerate();
    let padded: Vec<_> = padded.map(|(id, token)| token.unwrap_or_else(|| format!("[PAD{id}]"))).collect();
    let id_of = |field: &str| {
        let token = &config[field];
        let token = token.as_str().or(token["content"].as_str())?;
        padded.iter().position(|t| t == token)
    };
    let (bos, padding) = (id_of("bos_token"), id_of("pad_token"));
    let add_bos = bos.is_some() && adds_bos(&json["post_processor"], &config);
    let mut values = vec![
        (MODEL, Value::String("gpt2".into())),
        (PRE, Value::String(pre.name.into())),
        (TOKENS, Value::Strings(padded)),
        (TYPES, Value::Ints(types)),
        (MERGES, Value::Strings(merges)),
    ];
    values.extend(padding.map(|id| (PAD, Value::Int(id as i64))));
    values.extend(bos.map(|id| (BOS, Value::Int(id as i64))));
    values.push((ADD_BOS, Value::Bool(add_bos)));
    let mut values: Vec<(String, Value)> =
        values.into_iter().map(|(key, value)| (key.to_string(), value)).collect();
    let mut names = Vec::new();
    for (name, text) in tokenizer.chat_templates() {
        let key = if name == "default" { TEMPLATE.to_string() } else { format!("{TEMPLATE}.{name}") };
        values.push((key, Value::String(text.clone())));
        names.extend((name != "default").then(|| name.clone()));
    }
    if !names.is_empty() {
        values.push((TEMPLATES.into(), Value::Strings(names)));
    }
    Ok(values)
}

fn unnamed(name: &str, want: &str, got: impl Display) -> StoreError {
    let file = Path::new(name).into();
    TokenizerError::Format { file, want: want.into(), got: got.to_string() }.into()
}

/// The GGUF pre-tokenizer that is equivalent to `json`, the `pre_tokenizer` of a `tokenizer.json`. Without merges all
/// pre-tokenizers are equivalent.
fn find_pre_tokenizer(json: &Json, no_merges: bool) -> Option<&'static PreTokenizer> {
    if no_merges && json["type"] == "ByteLevel" {
        return Some(&PRE_TOKENIZERS[0]);
    }
    let is_byte_level = |step: &Json, use_regex: bool| {
        step["type"] == "ByteLevel" && step["use_regex"] == use_regex && step["add_prefix_space"] == false
    };
    PRE_TOKENIZERS.iter().find(|pre| {
        let (want, steps) = (&pre_tokenizer(pre)["pretokenizers"], &json["pretokenizers"]);
        match pre.pattern {
            None => is_byte_level(json, true),
            Some(_) => want[0] == steps[0] && is_byte_level(&steps[1], false) && steps[2].is_null(),
        }
    })
}

/// Whether the post-processor prepends the `bos_token` if special tokens are added.
fn adds_bos(post: &Json, config: &Json) -> bool {
    let all = post["processors"].as_array().cloned().unwrap_or_else(|| vec![post.clone()]);
    let template = all.iter().find(|p| p["type"] == "TemplateProcessing");
    let bos = config["bos_token"].as_str().or(config["bos_token"]["content"].as_str());
    template.is_some_and(|t| t["single"][0]["SpecialToken"]["id"].as_str() == bos)
}
