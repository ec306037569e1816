//! Calls to the `tokenizers` crate. The only file that uses it; converts its panics to errors.
use std::ops::Range;
use std::path::Path;

use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, SplitDelimiterBehavior,
    TokenizerBuilder,
};

use super::alphabet::bytes_of;
use super::error::TokenizerError;
use super::json::bad;
use super::vocabulary::{MAX_VOCABULARY, Vocabulary};
use crate::third_party;

/// A tokenizer of the `tokenizers` crate.
pub(super) type Inner = tokenizers::Tokenizer;

/// The pre-tokenization pattern of Qwen2: words with their leading space, single digits, punctuation, line breaks,
/// runs of spaces.
const PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Reads a `tokenizer.json`. Disables truncation and padding, which would remove or add tokens of a training text.
///
/// # Errors
/// Content that the crate rejects or panics on; a decoder other than `ByteLevel`; an id at or above 2^19.
pub(super) fn load(json: &[u8], file: &Path) -> Result<(Inner, Vocabulary), TokenizerError> {
    let want = "a tokenizer.json of HF tokenizers";
    let mut inner = guarded(|| Inner::from_bytes(json)).map_err(|got| bad(file, want, got))?;
    guarded(|| inner.with_truncation(None).map(|_| ())).map_err(|got| bad(file, want, got))?;
    inner.with_padding(None);
    // the post-processor would add special tokens and trim spaces from the offsets of tokens
    inner.with_post_processor(None::<PostProcessorWrapper>);
    match inner.get_decoder() {
        Some(DecoderWrapper::ByteLevel(_)) => {}
        Some(_) => return Err(bad(file, "a decoder of type ByteLevel", "another type")),
        None => return Err(bad(file, "a decoder of type ByteLevel", "none")),
    }
    let vocabulary = vocabulary(&inner, file)?;
    Ok((inner, vocabulary))
}

fn vocabulary(inner: &Inner, file: &Path) -> Result<Vocabulary, TokenizerError> {
    let mut vocabulary = Vocabulary::default();
    for (token, id) in inner.get_vocab(true) {
        if id >= MAX_VOCABULARY {
            let got = format!("id {id} for {token:?}");
            return Err(bad(file, format!("ids below {MAX_VOCABULARY}"), got));
        }
        let at = id as usize;
        if vocabulary.tokens.len() <= at {
            vocabulary.tokens.resize(at + 1, None);
        }
        if let Some(first) = &vocabulary.tokens[at] {
            let got = format!("id {id} for {token:?} and for {:?}", String::from_utf8_lossy(first));
            return Err(bad(file, "one token for each id", got));
        }
        vocabulary.tokens[at] = Some(bytes_of(&token).into());
    }
    if vocabulary.tokens.is_empty() {
        return Err(bad(file, "a vocabulary", "no token"));
    }
    let added = inner.get_added_tokens_decoder();
    vocabulary.special = added.iter().filter(|(_, t)| t.special).map(|(&id, _)| id).collect();
    vocabulary.special.sort_unstable();
    Ok(vocabulary)
}

/// The ids of `text`. Parses special tokens in the text, adds none.
///
/// # Errors
/// The crate's error for a text that it cannot encode.
pub(super) fn encode(inner: &Inner, text: &str) -> Result<Vec<u32>, TokenizerError> {
    guarded(|| inner.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec()))
        .map_err(|got| TokenizerError::Encode { got })
}

/// As [`encode`], each id with its byte range in `text`.
///
/// # Errors
/// As [`encode`].
pub(super) fn encode_with_offsets(
    inner: &Inner,
    text: &str,
) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
    let encode = || {
        let encoding = inner.encode(text, false)?;
        let offsets = encoding.get_offsets().iter().map(|&(from, to)| from..to);
        Ok(encoding.get_ids().iter().copied().zip(offsets).collect())
    };
    guarded(encode).map_err(|got| TokenizerError::Encode { got })
}

/// Trains a byte-level BPE and returns its `tokenizer.json`. Ids: the special tokens from 0, then the 256 bytes, then
/// the merges.
///
/// # Errors
/// The crate's error.
pub(super) fn train_bpe(
    texts: impl Iterator<Item = String> + Send,
    vocab_size: usize,
    specials: &[String],
) -> Result<Vec<u8>, TokenizerError> {
    let train = || -> tokenizers::Result<String> {
        let mut trainer = BpeTrainerBuilder::new()
            .show_progress(false)
            .vocab_size(vocab_size)
            .special_tokens(specials.iter().map(|s| AddedToken::from(s.clone(), true)).collect())
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        let pattern = SplitPattern::Regex(PATTERN.to_string());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?;
        let byte_level = ByteLevel::new(false, true, false);
        let pre_tokenizer = Sequence::new(vec![
            PreTokenizerWrapper::Split(split),
            PreTokenizerWrapper::ByteLevel(byte_level),
        ]);
        let mut tokenizer = TokenizerBuilder::<
            BPE,
            NormalizerWrapper,
            PreTokenizerWrapper,
            PostProcessorWrapper,
            DecoderWrapper,
        >::new()
        .with_model(BPE::default())
        .with_pre_tokenizer(Some(PreTokenizerWrapper::Sequence(pre_tokenizer)))
        .with_decoder(Some(DecoderWrapper::ByteLevel(byte_level)))
        .build()?;
        tokenizer.train(&mut trainer, texts)?;
        tokenizer.to_string(true)
    };
    guarded(train).map(String::into_bytes).map_err(|got| TokenizerError::Argument {
        op: "train_bpe",
        want: "a training text".into(),
        got,
    })
}

/// Runs third-party code. Returns its error or panic as text.
fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    third_party::guarded(run)?.map_err(|e| e.to_string())
}
