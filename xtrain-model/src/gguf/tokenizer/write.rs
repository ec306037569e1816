//! Writing a tokenizer as metadata.
use std::fmt::Display;
use std::path::Path;

use serde_json::Value as Json;

use super::keys::{
    ADD_BOS, BOS, BYTE, CONTROL, EOS_IDS, EOS_KEYS, FLAGS, MERGES, MODEL, NFC, NO_TOKENIZER, NORMAL, PAD,
    PRE, SCORES, SENTENCEPIECE, SPACE_PREFIX, TEMPLATE, TEMPLATES, TOKENS, TYPES, UNK, UNKNOWN, UNUSED, USER,
};
use super::pre_tokenizer::{find_pre_tokenizer, is_nfc};
use super::sentencepiece::{self, Merge};
use crate::error::Error;
use crate::gguf::metadata::Value;
use crate::json::found_at_line;
use crate::store_error::StoreError;
use crate::tokenizer::{Tokenizer, TokenizerError, byte_of};

/// The metadata of the end-of-text ids of a model: the `eos_token` of its tokenizer, if it is named, then the other
/// ids. If GGUF has too few keys for all of them, those of the model. A model without ids ends a text with the separator.
/// Fails for a model with more ids than GGUF has keys.
pub(in crate::gguf) fn write_eos_ids(
    tokenizer: Option<&Tokenizer>,
    eos: &[u32],
) -> Result<Vec<(String, Value)>, Error> {
    let mut ids: Vec<u32> = tokenizer.and_then(Tokenizer::eos_token_id).into_iter().collect();
    for &id in eos {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    if ids.is_empty() {
        ids.extend(tokenizer.and_then(Tokenizer::separator));
    }
    if ids.len() > EOS_KEYS.len() {
        ids = eos.to_vec();
    }
    if ids.len() > EOS_KEYS.len() {
        let (field, want) = ("eos_token_id", "at most three ids in a GGUF file");
        return Err(Error::Config { field, want, got: format!("{ids:?}") });
    }
    let value = |id: &u32| i64::from(*id);
    let pairs = EOS_KEYS.into_iter().zip(ids.iter().map(value));
    let mut values: Vec<(String, Value)> = pairs.map(|(key, id)| (key.to_string(), Value::Int(id))).collect();
    // without a key, readers assume a default id
    if ids != eos || ids.is_empty() && tokenizer.is_some() {
        values.push((EOS_IDS.to_string(), Value::Ints(eos.iter().map(value).collect())));
    }
    Ok(values)
}

/// The metadata of a model without a tokenizer.
pub(in crate::gguf) fn write_none() -> (String, Value) {
    (MODEL.to_string(), Value::String(NO_TOKENIZER[0].to_string()))
}

/// The metadata of a tokenizer for a model of `vocab` ids. Fails for a tokenizer that GGUF cannot represent, or one
/// with more ids than the model.
pub(in crate::gguf) fn write(
    tokenizer: &Tokenizer,
    vocab: usize,
) -> Result<Vec<(String, Value)>, StoreError> {
    let files = tokenizer.files();
    let [(name, text), (config_name, config)] = [files[0], files[1]];
    let parse = |name: &str, bytes: &[u8]| -> Result<Json, StoreError> {
        serde_json::from_slice(bytes).map_err(|e| unnamed(name, "JSON", found_at_line(&e)))
    };
    let (json, config) = (parse(name, text)?, parse(config_name, config)?);
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
    let merges = merges_of(&json, name)?;
    let padded = tokens.into_iter().enumerate();
    let padded: Vec<_> = padded.map(|(id, token)| token.unwrap_or_else(|| format!("[PAD{id}]"))).collect();
    let id_of = |field: &str| {
        let token = &config[field];
        let token = token.as_str().or(token["content"].as_str())?;
        padded.iter().position(|t| t == token)
    };
    let added = tokenizer.bos_id().map(|id| id as usize);
    let (bos, padding) = (added.or_else(|| id_of("bos_token")), id_of("pad_token"));
    let vocabulary = Vocabulary { json: &json, tokens: &padded, types: &types, merges: &merges };
    let kind = match sentencepiece::space_prefix_of(&json) {
        Some(space_prefix) => vocabulary.sentencepiece(space_prefix, id_of("unk_token")),
        None => vocabulary.byte_level(),
    };
    let mut values = kind.map_err(|(want, got)| unnamed(name, want, got))?;
    values.insert(2, (TOKENS, Value::Strings(padded)));
    values.extend(padding.map(|id| (PAD, Value::Int(id as i64))));
    values.extend(bos.map(|id| (BOS, Value::Int(id as i64))));
    values.push((ADD_BOS, Value::Bool(added.is_some())));
    values.extend(flags_of(&json));
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

/// The flags of added tokens: for each flag that some of them have, the ids of these tokens.
fn flags_of(json: &Json) -> impl Iterator<Item = (&'static str, Value)> {
    let added = json["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
    FLAGS.into_iter().filter_map(move |(flag, key)| {
        let with_flag = added.iter().filter(|token| token[flag] == true);
        let ids: Vec<i64> = with_flag.filter_map(|token| token["id"].as_i64()).collect();
        (!ids.is_empty()).then_some((key, Value::Ints(ids)))
    })
}

/// The tokens of a tokenizer by id, with their types, and its merges.
struct Vocabulary<'a> {
    /// The `tokenizer.json`.
    json: &'a Json,
    tokens: &'a [String],
    types: &'a [i64],
    merges: &'a [Merge<'a>],
}

/// Metadata that depends on the kind of a tokenizer, or what was expected and found.
type KindValues = Result<Vec<(&'static str, Value)>, (&'static str, String)>;

impl Vocabulary<'_> {
    /// The metadata of a SentencePiece vocabulary. Fails for merges that do not follow from scores.
    fn sentencepiece(&self, space_prefix: bool, unknown: Option<usize>) -> KindValues {
        let Vocabulary { json, tokens, types, merges } = self;
        let is_byte = |id: usize| types[id] == NORMAL && byte_of(&tokens[id]).is_some();
        let scores = sentencepiece::scores(tokens, merges, |id| types[id] != NORMAL || is_byte(id));
        let scores = scores.ok_or(("merges that follow from scores of tokens", "other merges".into()))?;
        let unknown_token = json["model"]["unk_token"].as_str();
        let kind = |id: usize| match types[id] {
            UNUSED => UNUSED,
            _ if unknown_token == Some(&*tokens[id]) => UNKNOWN,
            _ if is_byte(id) => BYTE,
            kind => kind,
        };
        let mut values = vec![
            (MODEL, Value::String(SENTENCEPIECE.into())),
            (PRE, Value::String("default".into())),
            (SPACE_PREFIX, Value::Bool(space_prefix)),
            (SCORES, Value::Floats(scores)),
            (TYPES, Value::Ints((0..tokens.len()).map(kind).collect())),
        ];
        values.extend(unknown.map(|id| (UNK, Value::Int(id as i64))));
        Ok(values)
    }

    /// The metadata of a byte-level BPE. Fails for other pre-tokenizers and decoders than GGUF has.
    fn byte_level(&self) -> KindValues {
        let (steps, decoder) = (&self.json["pre_tokenizer"], &self.json["decoder"]["type"]);
        let Some(pre) = find_pre_tokenizer(steps, self.merges.is_empty()) else {
            let want = "the pre-tokenizer of GPT-2, Qwen2, Llama 3 or SmolLM, or SentencePiece";
            return Err((want, steps.to_string()));
        };
        if decoder != "ByteLevel" {
            return Err(("a byte-level decoder, or SentencePiece", decoder.to_string()));
        }
        require_plain_bpe(&self.json["model"])?;
        let normalizer = &self.json["normalizer"];
        let Some(nfc) = is_nfc(normalizer) else {
            return Err(("the normalizer NFC or none", normalizer.to_string()));
        };
        let ignore_merges = self.json["model"]["ignore_merges"] == true;
        if ignore_merges != pre.ignore_merges && !self.merges.is_empty() {
            let want = if pre.ignore_merges { "ignore_merges of true" } else { "ignore_merges of false" };
            return Err((want, ignore_merges.to_string()));
        }
        let merges = self.merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
        let mut values = vec![
            (MODEL, Value::String("gpt2".into())),
            (PRE, Value::String(pre.name.into())),
            (TYPES, Value::Ints(self.types.to_vec())),
            (MERGES, Value::Strings(merges)),
        ];
        values.extend((nfc != pre.nfc).then_some((NFC, Value::Bool(nfc))));
        Ok(values)
    }
}

/// Rejects a `model` of a `tokenizer.json` that is no BPE, or one that marks the parts of a word with affixes. The type
/// is absent in old files; only a BPE has merges.
fn require_plain_bpe(model: &Json) -> Result<(), (&'static str, String)> {
    if model["type"] != "BPE" && !(model["type"].is_null() && model["merges"].is_array()) {
        return Err(("model.type of BPE", model["type"].to_string()));
    }
    let is_empty = |affix: &Json| affix.is_null() || affix == "";
    for (affix, want) in [
        ("continuing_subword_prefix", "model.continuing_subword_prefix of null"),
        ("end_of_word_suffix", "model.end_of_word_suffix of null"),
    ] {
        if !is_empty(&model[affix]) {
            return Err((want, model[affix].to_string()));
        }
    }
    Ok(())
}

/// The merges of a `tokenizer.json`, named `name` in errors. Rejects tokens with spaces, which separate the two tokens of
/// a merge.
fn merges_of<'a>(json: &'a Json, name: &str) -> Result<Vec<Merge<'a>>, StoreError> {
    let merges = json["model"]["merges"].as_array().into_iter().flatten();
    let pair = |merge: &'a Json| match merge {
        Json::String(pair) => pair.split_once(' '),
        pair => Some((pair[0].as_str()?, pair[1].as_str()?)),
    };
    let plain = |merge: &Merge<'_>| !merge.0.contains(' ') && !merge.1.contains(' ');
    let refused = |merge: &Json| unnamed(name, "merges of two tokens without spaces", merge);
    merges.map(|merge| pair(merge).filter(plain).ok_or_else(|| refused(merge))).collect()
}

fn unnamed(name: &str, want: &str, got: impl Display) -> StoreError {
    let file = Path::new(name).into();
    TokenizerError::Format { file, want: want.into(), got: got.to_string() }.into()
}
