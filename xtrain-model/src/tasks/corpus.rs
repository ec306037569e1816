//! The quickstart's training text, from a seed and no file.
use xtrain_tensor::rng::{Purpose, uniform_u64};

use super::sentences::sentence;
use super::{Part, Sums};
use crate::data::{DataError, Tokens};
use crate::tokenizer::Tokenizer;

/// Sets the ids of documents apart from the steps that draw their windows.
const DOCUMENTS: u64 = 1 << 63;

/// How often each kind of document comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    /// The weight of sums.
    pub sums: u32,
    /// The weight of sentences.
    pub sentences: u32,
}

/// An endless list of documents: sums of pairs that are not held out, and sentences of a small grammar.
/// Document n is a pure function of (seed, n): it is drawn at the addresses (seed, 2^63 + n, 0), (.., 1), ...
/// of purpose data order.
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
    /// A mix of nothing.
    pub fn new(seed: u64, mix: Mix) -> Result<Corpus, DataError> {
        if mix.sums == 0 && mix.sentences == 0 {
            return Err(DataError::argument("corpus", "a kind of document with a weight", "none"));
        }
        Ok(Corpus { seed, mix, pairs: Sums::default().pairs(Part::Train) })
    }

    /// Document `n`, below 2^63: one line, without its end.
    pub fn document(&self, n: u64) -> String {
        let mut position = 0;
        let mut draw = |bound: usize| {
            let u = uniform_u64(self.seed, DOCUMENTS | n, position, Purpose::DataOrder);
            position += 1;
            ((u128::from(u) * bound as u128) >> 64) as usize
        };
        let weights = u64::from(self.mix.sums) + u64::from(self.mix.sentences);
        match (draw(weights as usize) as u64) < u64::from(self.mix.sums) {
            true => Sums::document(self.pairs[draw(self.pairs.len())]),
            false => sentence(&mut draw),
        }
    }

    /// Documents 0, 1, 2, ...
    pub fn documents(&self) -> impl Iterator<Item = String> + '_ {
        (0..DOCUMENTS).map(|n| self.document(n))
    }

    /// Whole documents, each ended by the tokenizer's separator, until there are at least `count` tokens. A model
    /// trained on them ends an answer with the separator.
    ///
    /// # Errors
    /// A tokenizer without a separator, or one that cannot encode a line.
    pub fn tokens(&self, tokenizer: &Tokenizer, count: usize) -> Result<Tokens, DataError> {
        let Some(separator) = tokenizer.separator() else {
            return Err(DataError::argument(
                "corpus",
                "a tokenizer with an end-of-text token",
                "one without",
            ));
        };
        let mut ids = Vec::with_capacity(count + 64);
        for document in self.documents() {
            if ids.len() >= count {
                break;
            }
            let refused = |error| DataError::Tokenizer { source: "corpus".into(), error };
            ids.extend(tokenizer.encode(&document).map_err(refused)?);
            ids.push(separator);
        }
        Tokens::from_ids(ids, u32::try_from(tokenizer.vocab_size()).expect("a vocabulary is at most 2^19"))
    }
}
