//! Calls to the `tokenizers` crate. The only file that uses it; converts its panics to errors.
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use serde_json::Value;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::models::{ModelWrapper, TrainerWrapper};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
};
use xtrain_tensor::faults::{self, Fault};

use super::decoder::{Beginning, Decoder, SUPPORTED};
use super::error::TokenizerError;
use super::json::bad;
use super::pipeline::{self, Pipeline};
use super::prefix;
use super::vocabulary::{MAX_VOCABULARY, Vocabulary};
use crate::third_party;

/// A tokenizer of the `tokenizers` crate.
pub(super) type Inner = tokenizers::Tokenizer;

/// The pre-tokenization pattern of Qwen2: words with their leading space, single digits, punctuation, line breaks,
/// runs of spaces.
pub(crate) const QWEN2_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Encoders of a `tokenizer.json`.
#[derive(Debug, Clone)]
pub(super) struct Encoder {
    inner: Inner,
    /// Encodes text that continues other text: without the space that `inner` adds to the beginning of a text. `None`:
    /// `inner` adds none.
    continuing: Option<Inner>,
    /// The text of each added token by id.
    added: HashMap<u32, String>,
}

/// Reads a `tokenizer.json`. Disables truncation and padding, which would remove or add tokens of a training text.
/// Rejects a decoder that does not map each token to bytes, ids at or above 2^19, and merges that are skipped at
/// random.
pub(super) fn load(
    json: &[u8],
    pipeline: &Pipeline,
    file: &Path,
) -> Result<(Encoder, Vocabulary), TokenizerError> {
    let want = "a tokenizer.json of HF tokenizers";
    let mut inner =
        guarded(|| Inner::from_bytes(json)).map_err(|got| bad(file, want, pipeline::in_words(json, &got)))?;
    if let ModelWrapper::BPE(bpe) = inner.get_model()
        && let Some(dropout) = bpe.dropout.filter(|&dropout| dropout != 0.0)
    {
        let want = "model.dropout of null or 0: otherwise a text has other tokens each time";
        return Err(bad(file, want, dropout.to_string()));
    }
    guarded(|| inner.with_truncation(None).map(|_| ())).map_err(|got| bad(file, want, got))?;
    inner.with_padding(None);
    // the post-processor would add special tokens and trim spaces from the offsets of tokens
    inner.with_post_processor(None::<PostProcessorWrapper>);
    let Some(decoder) = Decoder::read(&pipeline.decoder) else {
        let (want, got) = (SUPPORTED.into(), kind_of(&pipeline.decoder));
        return Err(TokenizerError::Unsupported { file: file.into(), want, got });
    };
    let vocabulary = vocabulary(&inner, &decoder, file)?;
    let without_prefix = prefix::removed(&pipeline.normalizer, &pipeline.pre_tokenizer);
    let continuing = without_prefix.map(|(normalizer, pre_tokenizer)| {
        let mut continuing = inner.clone();
        let build = || -> tokenizers::Result<()> {
            continuing.with_normalizer(serde_json::from_value::<Option<NormalizerWrapper>>(normalizer)?)?;
            continuing
                .with_pre_tokenizer(serde_json::from_value::<Option<PreTokenizerWrapper>>(pre_tokenizer)?);
            Ok(())
        };
        guarded(build).map(|()| continuing).map_err(|got| bad(file, want, got))
    });
    let continuing = continuing.transpose()?;
    let added = inner.get_added_tokens_decoder().iter().map(|(&id, t)| (id, t.content.clone())).collect();
    Ok((Encoder { inner, continuing, added }, vocabulary))
}

/// The type of a decoder, and of the steps of a sequence.
fn kind_of(decoder: &Value) -> String {
    let name = |step: &Value| step["type"].as_str().unwrap_or("none").chars().take(40).collect::<String>();
    match decoder["decoders"].as_array() {
        Some(steps) => {
            let steps: Vec<String> = steps.iter().take(8).map(name).collect();
            format!("{} of {}", name(decoder), steps.join(", "))
        }
        None => name(decoder),
    }
}

fn vocabulary(inner: &Inner, decoder: &Decoder, file: &Path) -> Result<Vocabulary, TokenizerError> {
    let mut vocabulary = Vocabulary { beginning: decoder.beginning, ..Vocabulary::default() };
    for (token, id) in inner.get_vocab(true) {
        if id >= MAX_VOCABULARY + u32::from(faults::on(Fault::LargestTokenIdExceeded)) {
            return Err(bad(file, format!("ids below {MAX_VOCABULARY}"), format!("id {id} for {token:?}")));
        }
        let at = id as usize;
        if vocabulary.tokens.len() <= at {
            vocabulary.tokens.resize(at + 1, None);
        }
        if let Some(first) = &vocabulary.tokens[at] {
            let got = format!("id {id} for {token:?} and for {:?}", String::from_utf8_lossy(first));
            return Err(bad(file, "one token for each id", got));
        }
        vocabulary.tokens[at] = Some(decoder.bytes(&token).into());
        if let Beginning::InFirstToken(space) = decoder.beginning
            && token.contains(space)
        {
            vocabulary.first.insert(id, decoder.bytes(&token.replace(space, "")).into());
        }
    }
    if vocabulary.tokens.is_empty() {
        return Err(bad(file, "a vocabulary", "no token"));
    }
    let added = inner.get_added_tokens_decoder();
    vocabulary.special = added.iter().filter(|(_, t)| t.special).map(|(&id, _)| id).collect();
    vocabulary.special.sort_unstable();
    Ok(vocabulary)
}

impl Encoder {
    /// The id of a token.
    pub(super) fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The ids of `text`. Parses special tokens in the text, adds none.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        guarded(|| self.inner.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec()))
            .map_err(|got| TokenizerError::Encode { got })
    }

    /// The ids of `text` that continues other text. A text that follows a special token is encoded as by
    /// [`Encoder::encode`].
    pub(super) fn encode_continuation(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let Some(continuing) = &self.continuing else { return self.encode(text) };
        let found = with_offsets(continuing, text)?;
        let is_added = |(id, range): &(u32, Range<usize>)| {
            self.added.get(id).is_some_and(|token| text[range.clone()].trim() == token.trim())
        };
        let first = found.iter().position(is_added).unwrap_or(found.len());
        let mut ids: Vec<u32> = found[..first].iter().map(|(id, _)| *id).collect();
        if let Some((_, range)) = found.get(first) {
            ids.extend(self.encode(&text[range.start..])?);
        }
        Ok(ids)
    }

    /// As [`Encoder::encode`], each id with its byte range in `text`.
    pub(super) fn encode_with_offsets(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
        with_offsets(&self.inner, text)
    }
}

fn with_offsets(inner: &Inner, text: &str) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
    let encode = || {
        let encoding = inner.encode(text, false)?;
        let offsets = encoding.get_offsets().iter().map(|&(from, to)| from..to);
        Ok(encoding.get_ids().iter().copied().zip(offsets).collect())
    };
    guarded(encode).map_err(|got| TokenizerError::Encode { got })
}

/// Training splits words of more characters, such as DNA: its time is quadratic in the length of a word. Encoding does not
/// split them.
const MAX_WORD: usize = 4096;

/// Splits `text` after each `longest` characters of a run without whitespace, or of whitespace only.
fn split_long_words(text: &str, longest: usize) -> Vec<String> {
    let (mut parts, mut start) = (Vec::new(), 0);
    let (mut in_space, mut run) = (false, 0);
    for (at, c) in text.char_indices() {
        if c.is_whitespace() != in_space {
            (in_space, run) = (!in_space, 0);
        }
        if run == longest {
            parts.push(text[start..at].to_string());
            (start, run) = (at, 0);
        }
        run += 1;
    }
    parts.push(text[start..].to_string());
    parts
}

/// Trains a byte-level BPE and returns its `tokenizer.json`. Ids: the special tokens from 0, then the 256 bytes, then
/// the merges.
pub(super) fn train_bpe(
    texts: impl Iterator<Item = String> + Send,
    vocab_size: usize,
    specials: &[String],
) -> Result<Vec<u8>, TokenizerError> {
    let train = || -> tokenizers::Result<String> {
        let trainer = BpeTrainerBuilder::new()
            .show_progress(false)
            .vocab_size(vocab_size)
            .special_tokens(specials.iter().map(|s| AddedToken::from(s.clone(), true)).collect())
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        let pattern = SplitPattern::Regex(QWEN2_PATTERN.to_string());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?;
        let byte_level = ByteLevel::new(false, true, false);
        let pre_tokenizer = Sequence::new(vec![split.into(), byte_level.into()]);
        let mut tokenizer = Inner::new(BPE::default());
        tokenizer.with_pre_tokenizer(Some(pre_tokenizer)).with_decoder(Some(byte_level));
        let longest = if faults::on(Fault::LongWordsNotSplit) { usize::MAX } else { MAX_WORD };
        let pieces = texts.flat_map(|text| split_long_words(&text, longest));
        tokenizer.train(&mut TrainerWrapper::from(trainer), pieces)?.to_string(true)
    };
    let want = "a training text".into();
    let json = guarded(train).map_err(|got| TokenizerError::Argument { op: "train_bpe", want, got })?;
    Ok(json.into_bytes())
}

/// Runs third-party code. Returns its error or panic as text.
fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    third_party::guarded(run)?.map_err(|e| e.to_string())
}
