//! Awkward texts in the tokenizers of `tests/data/tokenizers`: ids, decoded text, streamed pieces, ranges, masks.
use std::path::Path;

use xtrain::model::tokenizer::Tokenizer;

use crate::{Record, list, row};

const NAMES: [&str; 4] = ["qwen_bpe", "llama3_bpe", "llama_spm", "metaspace_spm"];

const TEXTS: [&str; 16] = [
    "",
    " ",
    "   a",
    "Hello  world\r\n\tx",
    "don't WON'T we'Ll",
    "1234567 12 3.14",
    "caf\u{e9} cafe\u{301}",
    "\u{1f469}\u{200d}\u{1f680}!",
    "\u{0}\u{7f}\u{feff}",
    "\u{4f60}\u{597d}, \u{3042}\u{ff11}",
    "<|endoftext|> <s></s>",
    "a<|im_start|>b<|eot_id|>",
    "\u{2581}x \u{2581}",
    "aaaaaaaaaaaaaaaaaaaa",
    "\n\n\n x\n",
    "\u{fb01}\u{2126}\u{ac00}",
];

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    one(&mut out, "bytes", &Tokenizer::byte());
    for name in NAMES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizers").join(name);
        one(&mut out, name, &Tokenizer::load(&path.join("tokenizer.json")).unwrap());
    }
    out
}

fn one(out: &mut Record, name: &str, tokenizer: &Tokenizer) {
    out.section(format!("{name}: {} tokens", tokenizer.vocab_size()));
    out.line(format!(
        "end of text {:?}, beginning {:?}, separator {:?}, digest {:016x}",
        tokenizer.eos_ids(),
        tokenizer.bos_id(),
        tokenizer.separator(),
        tokenizer.digest()
    ));
    for text in TEXTS {
        out.line(row(format!("{text:?}"), 30, of(tokenizer, text)));
    }
    let last = tokenizer.vocab_size() as u32 - 1;
    let ids = [last, last + 1, 0, u32::MAX];
    out.line(row("ids outside the vocabulary", 30, format!("{:?}", tokenizer.decode(&ids))));
}

/// The ids; the decoded text if it differs; ids of a continuation and of a prompt if they differ; ends of the ranges; the
/// ids that overlap the second character.
fn of(tokenizer: &Tokenizer, text: &str) -> String {
    let ids = match tokenizer.encode(text) {
        Ok(ids) => ids,
        Err(error) => return error.to_string(),
    };
    let mut parts = vec![list(&ids)];
    let decoded = tokenizer.decode(&ids);
    if decoded != text {
        parts.push(format!("text {decoded:?}"));
    }
    let continued = tokenizer.encode_continuation(text).unwrap();
    if continued != ids {
        parts.push(format!("continued {} {:?}", list(&continued), tokenizer.decode_continuation(&continued)));
    }
    let prompt = tokenizer.encode_with_bos(text).unwrap();
    if prompt != ids {
        parts.push(format!("prompt begins with {:?}", prompt.first()));
    }
    let ranges = tokenizer.encode_with_offsets(text).unwrap();
    assert!(ranges.iter().map(|(id, _)| id).eq(&ids), "{text:?}");
    parts.push(format!("ends {}", list(ranges.iter().map(|(_, range)| range.end))));
    let mut characters = text.char_indices().skip(1).map(|(at, c)| at..at + c.len_utf8());
    if let Some(second) = characters.next() {
        let (_, mask) = tokenizer.encode_masked(text, &[second]).unwrap();
        parts.push(format!("second {}", list((0..ids.len()).filter(|&at| mask[at]))));
    }
    let mut stream = tokenizer.stream();
    let mut streamed: String = ids.iter().map(|&id| stream.push(id)).collect();
    streamed += &stream.finish();
    assert_eq!(streamed, decoded, "{text:?}");
    parts.push(format!("{} bytes", tokenizer.text_bytes(&ids)));
    parts.join(" | ")
}
