//! The quickstart's training text, generated from a seed.
use rand::RngExt as _;
use xtrain_tensor::rng::{PhiloxRng, Purpose};

use super::sentences::sentence;
use super::sums::Sums;
use super::task::PromptSet;
use crate::data::{DataError, Tokens, separator_of};
use crate::tokenizer::Tokenizer;

/// Separates the random number addresses of documents from those of training windows.
pub(super) const DOCUMENTS: u64 = 1 << 63;

/// The frequencies of the kinds of documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    /// The weight of sums.
    pub sums: u32,
    /// The weight of sentences.
    pub sentences: u32,
}

/// A sequence of 2^63 documents: sums of pairs that are not held out, and sentences of a small grammar. Document n is
/// a pure function of (seed, n): its generator starts at the address (seed, 2^63 + n, 0) of purpose
/// [`Purpose::DataOrder`]. The distributions of `rand` may change between its versions, and the text with them.
#[derive(Debug, Clone)]
pub struct Corpus {
    seed: u64,
    mix: Mix,
    pairs: Vec<(u32, u32)>,
}

impl Corpus {
    /// The corpus of `seed`.
    ///
    /// # Errors
    /// A mix whose weights are all 0.
    pub fn new(seed: u64, mix: Mix) -> Result<Corpus, DataError> {
        if mix.sums == 0 && mix.sentences == 0 {
            return Err(DataError::argument("corpus", "a weight above 0", "0 for all kinds of documents"));
        }
        Ok(Corpus { seed, mix, pairs: Sums::default().pairs(PromptSet::Train) })
    }

    /// Document `n`, below 2^63: one line without a line break.
    pub fn document(&self, n: u64) -> String {
        let mut rng = PhiloxRng::new(self.seed, DOCUMENTS | n, Purpose::DataOrder);
        let mut draw = |bound: usize| rng.random_range(0..bound);
        let weights = u64::from(self.mix.sums) + u64::from(self.mix.sentences);
        if (draw(weights as usize) as u64) < u64::from(self.mix.sums) {
            let (a, b) = self.pairs[draw(self.pairs.len())];
            Sums::document(a, b)
        } else {
            sentence(&mut draw)
        }
    }

    /// Documents 0, 1, 2, ...
    pub fn documents(&self) -> impl Iterator<Item = String> + '_ {
        (0..DOCUMENTS).map(|n| self.document(n))
    }

    /// Complete documents, each ended by the tokenizer's separator, with at least `count` tokens in total. A model
    /// trained on them ends an answer with the separator.
    ///
    /// # Errors
    /// A tokenizer without a separator, or one that cannot encode a line.
    pub fn tokens(&self, tokenizer: &Tokenizer, count: usize) -> Result<Tokens, DataError> {
        tokens(self.documents(), tokenizer, count)
    }
}

/// The tokens of the first of `documents`, each ended by the tokenizer's separator, at least `count` in total.
///
/// # Errors
/// A tokenizer without a separator, or one that cannot encode a document.
pub(super) fn tokens(
    documents: impl Iterator<Item = String>,
    tokenizer: &Tokenizer,
    count: usize,
) -> Result<Tokens, DataError> {
    let separator = separator_of(tokenizer, "corpus")?;
    let mut ids = Vec::with_capacity(count + 64);
    for document in documents {
        if ids.len() >= count {
            break;
        }
        let refused = |source| DataError::Tokenizer { origin: "corpus".into(), source };
        ids.extend(tokenizer.encode_with_bos(&document).map_err(refused)?);
        ids.push(separator);
    }
    Tokens::from_ids(ids, u32::try_from(tokenizer.vocab_size()).expect("a vocabulary is at most 2^19"))
}
