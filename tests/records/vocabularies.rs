//! Tokenizers of GGUF files: what each change of the metadata changes, or its error.
use std::fs;
use std::path::Path;

use xtrain::model::gguf;

use crate::gguf_bytes::{Bytes, begin, list};
use crate::{Record, list as listed};

/// A value of the metadata.
#[derive(Clone, Copy, Debug)]
enum Meta {
    Text(&'static str),
    Texts(&'static [&'static str]),
    Ints(&'static [i32]),
    Floats(&'static [f32]),
    Id(u32),
    Flag(bool),
}

impl Meta {
    fn put(self, to: Bytes, key: &str) -> Bytes {
        let key = if key.starts_with("tokenizer.") { key.into() } else { format!("tokenizer.ggml.{key}") };
        match self {
            Meta::Text(text) => to.value(&key, 8, &Bytes::default().text(text).0),
            Meta::Texts(texts) => {
                let all = texts.iter().fold(Bytes::default(), |bytes, text| bytes.text(text));
                to.value(&key, 9, &list(8, texts.len() as u64, &all.0))
            }
            Meta::Ints(ints) => {
                let all: Vec<u8> = ints.iter().flat_map(|n| n.to_le_bytes()).collect();
                to.value(&key, 9, &list(5, ints.len() as u64, &all))
            }
            Meta::Floats(floats) => {
                let all: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
                to.value(&key, 9, &list(6, floats.len() as u64, &all))
            }
            Meta::Id(id) => to.value(&key, 4, &id.to_le_bytes()),
            Meta::Flag(flag) => to.value(&key, 7, &[u8::from(flag)]),
        }
    }
}

type Fields = Vec<(&'static str, Meta)>;

fn byte_level() -> Fields {
    vec![
        ("model", Meta::Text("gpt2")),
        ("pre", Meta::Text("qwen2")),
        ("tokens", Meta::Texts(&["a", "b", "ab", "<s>", "</s>", "Ġ", "1", "<u>"])),
        ("token_type", Meta::Ints(&[1, 1, 1, 3, 3, 1, 1, 4])),
        ("merges", Meta::Texts(&["a b"])),
        ("eos_token_id", Meta::Id(4)),
    ]
}

fn sentencepiece() -> Fields {
    vec![
        ("model", Meta::Text("llama")),
        ("tokens", Meta::Texts(&["<unk>", "<s>", "</s>", "<0x31>", "▁", "a", "b", "ab", "▁ab"])),
        ("scores", Meta::Floats(&[0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0])),
        ("token_type", Meta::Ints(&[2, 3, 3, 6, 1, 1, 1, 1, 1])),
        ("bos_token_id", Meta::Id(1)),
        ("eos_token_id", Meta::Id(2)),
    ]
}

/// Changes of the metadata: a key and its new value; `None` removes it.
const CHANGES: &[(&str, Option<Meta>)] = &[
    ("model", Some(Meta::Text("bert"))),
    ("model", Some(Meta::Text("no_vocab"))),
    ("model", Some(Meta::Text("none"))),
    ("model", Some(Meta::Id(1))),
    ("model", None),
    ("pre", Some(Meta::Text("default"))),
    ("pre", Some(Meta::Text("gpt-2"))),
    ("pre", Some(Meta::Text("llama-bpe"))),
    ("pre", Some(Meta::Text("tekken"))),
    ("pre", None),
    ("tokens", Some(Meta::Texts(&["a", "b", "ab", "a"]))),
    ("tokens", Some(Meta::Ints(&[1, 2]))),
    ("tokens", None),
    ("token_type", Some(Meta::Ints(&[1, 1, 1]))),
    ("token_type", Some(Meta::Texts(&["1"]))),
    ("token_type", Some(Meta::Ints(&[1, 1, 5, 3, 3, 1, 1, 4]))),
    ("token_type", Some(Meta::Ints(&[2, 3, 3, 6, 1, 1, 1, 5, 1]))),
    ("token_type", None),
    ("merges", Some(Meta::Texts(&["ab"]))),
    ("merges", Some(Meta::Texts(&["a c"]))),
    ("merges", Some(Meta::Texts(&[]))),
    ("merges", None),
    ("scores", Some(Meta::Floats(&[0.0, 1.0]))),
    ("scores", Some(Meta::Floats(&[0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, f32::NAN]))),
    ("scores", Some(Meta::Floats(&[0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -6.0, -5.0]))),
    ("scores", None),
    ("eos_token_id", Some(Meta::Id(0))),
    ("eos_token_id", Some(Meta::Id(99))),
    ("eos_token_id", None),
    ("eot_token_id", Some(Meta::Id(3))),
    ("eot_token_id", Some(Meta::Id(2))),
    ("eom_token_id", Some(Meta::Id(4))),
    ("eom_token_id", Some(Meta::Id(3))),
    ("bos_token_id", Some(Meta::Id(3))),
    ("bos_token_id", Some(Meta::Id(99))),
    ("bos_token_id", Some(Meta::Text("1"))),
    ("bos_token_id", None),
    ("padding_token_id", Some(Meta::Id(99))),
    ("unknown_token_id", Some(Meta::Id(0))),
    ("add_bos_token", Some(Meta::Flag(true))),
    ("add_bos_token", Some(Meta::Flag(false))),
    ("add_space_prefix", Some(Meta::Flag(false))),
    ("add_space_prefix", Some(Meta::Flag(true))),
    ("remove_extra_whitespaces", Some(Meta::Flag(true))),
    ("remove_extra_whitespaces", Some(Meta::Flag(false))),
    ("tokenizer.chat_template", Some(Meta::Text("{{ messages }}"))),
    ("tokenizer.chat_template.tool", Some(Meta::Text("{{ tools }}"))),
    ("tokenizer.chat_template", Some(Meta::Id(1))),
];

/// The tokens of two texts, the special ids and the templates, or the error.
fn described(fields: &Fields, path: &Path) -> String {
    let header = fields.iter().fold(begin(0, fields.len() as u64), |to, (key, meta)| meta.put(to, key));
    fs::write(path, header.0).unwrap();
    let tokenizer = match gguf::tokenizer_of(path) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return error.to_string().replace(&path.display().to_string(), "m.gguf"),
    };
    let ids = |text: &str| match tokenizer.encode_with_bos(text) {
        Ok(ids) => format!("{} {:?}", listed(&ids), tokenizer.decode(&ids)),
        Err(error) => error.to_string(),
    };
    let templates: Vec<&str> = tokenizer.chat_templates().iter().map(|(name, _)| &**name).collect();
    format!(
        "{} | {} | {} ids, bos {:?}, eos {}, templates {templates:?}",
        ids("ab a1"),
        ids("<u>b</s>"),
        tokenizer.vocab_size(),
        tokenizer.bos_id(),
        listed(tokenizer.eos_ids())
    )
}

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    for (name, base) in [("byte-level BPE", byte_level()), ("SentencePiece", sentencepiece())] {
        out.section(format!("{name}: tokens of \"ab a1\" and of \"<u>b</s>\", their text, and special ids"));
        let unchanged = described(&base, &path);
        out.line(format!("unchanged: {unchanged}"));
        for (key, value) in CHANGES {
            let mut fields: Fields = base.iter().filter(|field| field.0 != *key).copied().collect();
            fields.extend(value.map(|value| (*key, value)));
            let found = described(&fields, &path);
            let found = if found == unchanged { "no change" } else { &found };
            out.line(format!(
                "{key} {}: {found}",
                value.map_or("absent".into(), |value| format!("{value:?}"))
            ));
        }
    }
    out
}
