//! Reading a tokenizer from metadata, as the files of a Hugging Face tokenizer.
use std::collections::BTreeSet;

use serde_json::{Map, Value as Json, json};
use xtrain_tensor::faults::{self, Fault};

use super::keys::{
    ADD_BOS, BOS, CONTROL, EOS_IDS, EOS_KEYS, FLAGS, MERGES, MODEL, NFC, NO_TOKENIZER, NORMAL, PAD, PRE,
    SCORES, SENTENCEPIECE, SPACE_PREFIX, TEMPLATE, TOKENS, TRIM_SPACES, TYPES, UNK, UNKNOWN, UNUSED, USER,
};
use super::pre_tokenizer::{PRE_TOKENIZERS, by_name, pre_tokenizer};
use super::sentencepiece;
use crate::checkpoint::CheckpointError;
use crate::gguf::metadata::Metadata;
use crate::json::sorted;
use crate::kept_fields::KeptFields;
use crate::store_error::StoreError;
use crate::tokenizer::{MAX_VOCABULARY, Tokenizer, TokenizerError};

/// The end-of-text ids.
pub(in crate::gguf) fn eos_ids(meta: &Metadata) -> Result<Vec<u32>, CheckpointError> {
    let listed = meta.get(EOS_IDS).map(|_| meta.ints(EOS_IDS)).transpose()?;
    let mut named: Vec<(&str, i64)> = listed.into_iter().flatten().map(|&id| (EOS_IDS, id)).collect();
    if listed.is_none() {
        for key in EOS_KEYS {
            named.extend(id_of(meta, key)?.map(|id| (key, id as i64)));
        }
    }
    let mut ids: Vec<u32> = Vec::new();
    for (key, id) in named {
        let id = u32::try_from(id).map_err(|_| meta.bad(key, "an id", id))?;
        if !ids.contains(&id) || faults::on(Fault::EndTokenListedTwice) {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// The id in `key`, else the default of llama.cpp for a SentencePiece vocabulary that has such an id: 1 for the token
/// that begins a text, 2 for the one that ends it. There is no default for the former in a file that adds no BOS token,
/// and none for the latter in a file that lists its end-of-text ids.
fn id_of(meta: &Metadata, key: &str) -> Result<Option<usize>, CheckpointError> {
    let default = match key {
        _ if meta.text(MODEL)? != Some(SENTENCEPIECE) => None,
        BOS if meta.flag(ADD_BOS)? != Some(false) => Some(1),
        key if key == EOS_KEYS[0] && meta.get(EOS_IDS).is_none() => Some(2),
        _ => None,
    };
    let (count, types) = (meta.texts(TOKENS)?.len(), meta.ints(TYPES)?);
    let is_used = |id: &usize| *id < count && types.get(*id) != Some(&UNUSED);
    Ok(meta.size(key)?.or(default.filter(is_used)))
}

/// The ids of the tokens that begin and pad a text.
pub(in crate::gguf) fn kept_fields(meta: &Metadata) -> Result<KeptFields, CheckpointError> {
    let (bos, pad) = if faults::on(Fault::GgufPadBeginsTexts) { (PAD, BOS) } else { (BOS, PAD) };
    Ok(KeptFields::of_ids(meta.size(bos)?, meta.size(pad)?))
}

/// The tokenizer in the metadata. `None`: the file contains none. Rejects unsupported kinds, by name, and lists that
/// contradict each other.
pub(in crate::gguf) fn read(meta: &Metadata) -> Result<Option<Tokenizer>, StoreError> {
    let Some(model) = meta.text(MODEL)?.filter(|model| !NO_TOKENIZER.contains(model)) else {
        return Ok(None);
    };
    let (tokens, types) = (meta.texts(TOKENS)?, meta.ints(TYPES)?);
    if tokens.len() > MAX_VOCABULARY as usize {
        return Err(meta.bad(TOKENS, &format!("at most {MAX_VOCABULARY} tokens"), tokens.len()).into());
    }
    if !types.is_empty() && types.len() != tokens.len() {
        return Err(meta.bad(TYPES, &format!("{} types, one per token", tokens.len()), types.len()).into());
    }
    let (vocabulary, added) = vocabulary(meta, tokens, types)?;
    let steps = match model {
        "gpt2" => byte_level_steps(meta)?,
        SENTENCEPIECE => sentencepiece_steps(meta, tokens, types)?,
        other => {
            let want = "gpt2 (a byte-level BPE) or llama (SentencePiece)";
            return Err(unsupported(meta, MODEL, want, format!("{other:?}")));
        }
    };
    let add_bos = meta.flag(ADD_BOS)?.unwrap_or(steps.adds_bos);
    let mut json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added,
        "normalizer": steps.normalizer,
        "pre_tokenizer": steps.pre_tokenizer,
        "post_processor": if add_bos { post_processor(meta, tokens)? } else { Json::Null },
        "decoder": steps.decoder,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": steps.unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": steps.byte_fallback, "byte_fallback": steps.byte_fallback,
            "ignore_merges": steps.ignore_merges,
            "vocab": vocabulary,
        },
    });
    // moved: `json!` would copy them
    json["model"]["merges"] = Json::Array(steps.merges);
    let config = tokenizer_config(meta, tokens, add_bos)?;
    let text = |json: Json| format!("{:#}\n", sorted(json)).into_bytes();
    Ok(Some(Tokenizer::from_parts(text(json), Some(text(config)), &meta.file)?))
}

/// The vocabulary, and the added tokens with their flags.
fn vocabulary(
    meta: &Metadata,
    tokens: &[String],
    types: &[i64],
) -> Result<(Map<String, Json>, Vec<Json>), CheckpointError> {
    let mut flags = Vec::with_capacity(FLAGS.len());
    for (flag, key) in FLAGS {
        flags.push((flag, key, meta.ints(key)?.iter().copied().collect::<BTreeSet<i64>>()));
    }
    let (mut vocabulary, mut added) = (Map::new(), Vec::new());
    for (id, token) in tokens.iter().enumerate() {
        let kind = types.get(id).copied().unwrap_or(NORMAL);
        if kind == UNUSED {
            continue;
        }
        if vocabulary.insert(token.clone(), json!(id)).is_some() {
            return Err(meta.bad(TOKENS, "unique tokens", format!("{token:?} twice")));
        }
        if matches!(kind, CONTROL | USER | UNKNOWN) {
            let mut json = json!({"id": id, "content": token, "special": kind != USER});
            for (flag, _, ids) in &mut flags {
                json[*flag] = json!(ids.remove(&(id as i64)));
            }
            added.push(json);
        }
    }
    match flags.iter().find_map(|(_, key, ids)| Some((key, ids.first()?))) {
        None => Ok((vocabulary, added)),
        Some((key, id)) => Err(meta.bad(key, "ids of added tokens", id)),
    }
}

/// The token that `key` names. `None`: it names none.
fn token_of<'m>(
    meta: &Metadata,
    tokens: &'m [String],
    key: &str,
) -> Result<Option<(usize, &'m str)>, CheckpointError> {
    let Some(id) = id_of(meta, key)? else { return Ok(None) };
    let none = || meta.bad(key, &format!("an id below {}", tokens.len()), id);
    tokens.get(id).map(|token| Some((id, token.as_str()))).ok_or_else(none)
}

/// The `post_processor` of a file whose texts begin with the BOS token.
fn post_processor(meta: &Metadata, tokens: &[String]) -> Result<Json, CheckpointError> {
    Ok(token_of(meta, tokens, BOS)?.map_or(Json::Null, |(id, token)| begins_with(token, id)))
}

/// The `tokenizer_config.json`.
fn tokenizer_config(meta: &Metadata, tokens: &[String], add_bos: bool) -> Result<Json, CheckpointError> {
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false,
        "add_bos_token": add_bos,
    });
    for (field, key) in
        [("eos_token", EOS_KEYS[0]), ("bos_token", BOS), ("pad_token", PAD), ("unk_token", UNK)]
    {
        if let Some((_, token)) = token_of(meta, tokens, key)? {
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
    Ok(config)
}

/// The parts of a `tokenizer.json` that differ between the kinds of tokenizers.
struct Steps {
    normalizer: Json,
    pre_tokenizer: Json,
    decoder: Json,
    /// The token of unknown characters. Null: there is none.
    unknown: Json,
    byte_fallback: bool,
    ignore_merges: bool,
    /// Whether a text begins with the BOS token if the file does not say so. The rule is that of llama.cpp.
    adds_bos: bool,
    merges: Vec<Json>,
}

fn unsupported(meta: &Metadata, key: &str, want: &str, got: String) -> StoreError {
    let (file, want) = (meta.file.clone(), format!("{key} of {want}"));
    TokenizerError::Unsupported { file, want, got }.into()
}

/// The steps of a byte-level BPE.
fn byte_level_steps(meta: &Metadata) -> Result<Steps, StoreError> {
    // without merges, all pre-tokenizers are equivalent
    let name = match meta.text(PRE)? {
        None | Some("default") if meta.texts(MERGES)?.is_empty() => PRE_TOKENIZERS[0].name,
        name => name.unwrap_or("none"),
    };
    let Some(pre) = by_name(name) else {
        return Err(unsupported(meta, PRE, "gpt-2, qwen2, llama-bpe or smollm", format!("{name:?}")));
    };
    let mut merges = Vec::with_capacity(meta.texts(MERGES)?.len());
    for merge in meta.texts(MERGES)? {
        let Some(pair) = merge.split_once(' ') else {
            return Err(meta.bad(MERGES, "two tokens separated by a space", format!("{merge:?}")).into());
        };
        merges.push(json!([pair.0, pair.1]));
    }
    let is_nfc = meta.flag(NFC)?.unwrap_or(pre.nfc);
    Ok(Steps {
        normalizer: if is_nfc { json!({"type": "NFC"}) } else { Json::Null },
        pre_tokenizer: pre_tokenizer(pre),
        decoder: json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        unknown: Json::Null,
        byte_fallback: false,
        ignore_merges: pre.ignore_merges,
        adds_bos: pre.adds_bos,
        merges,
    })
}

/// The steps of a SentencePiece vocabulary. Its merges follow from its scores.
fn sentencepiece_steps(meta: &Metadata, tokens: &[String], types: &[i64]) -> Result<Steps, StoreError> {
    let scores = meta.floats(SCORES)?;
    if scores.len() != tokens.len() {
        return Err(meta
            .bad(SCORES, &format!("{} scores, one per token", tokens.len()), scores.len())
            .into());
    }
    if meta.flag(TRIM_SPACES)? == Some(true) {
        return Err(unsupported(meta, TRIM_SPACES, "false", "true".into()));
    }
    let used = (0..tokens.len()).filter(|&id| types.get(id) != Some(&UNUSED));
    let scored: Vec<(&str, f64)> = used.map(|id| (&*tokens[id], scores[id])).collect();
    if let Some((token, _)) = scored.iter().find(|(_, score)| score.is_nan()) {
        return Err(meta.bad(SCORES, "scores that are numbers", format!("NaN, that of {token:?}")).into());
    }
    let merges = sentencepiece::merges(&scored);
    let merges = merges.map_err(|got| {
        meta.bad(TOKENS, "tokens of at most 1024 bytes, and merges that need at most 64 MiB of memory", got)
    })?;
    let (normalizer, decoder) = sentencepiece::steps(meta.flag(SPACE_PREFIX)?.unwrap_or(true));
    let unknown = types.iter().position(|&kind| kind == UNKNOWN);
    Ok(Steps {
        normalizer,
        pre_tokenizer: Json::Null,
        decoder,
        unknown: unknown.map_or(Json::Null, |id| json!(tokens[id])),
        byte_fallback: true,
        ignore_merges: false,
        adds_bos: true,
        merges: merges.into_iter().map(|(left, right)| json!([left, right])).collect(),
    })
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

/// The post-processor that prepends the BOS token if special tokens are added.
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
