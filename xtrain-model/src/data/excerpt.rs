//! What a training sample is made of.
use std::path::Path;

use super::jsonl::{self, Record};
use super::{DataError, separator_of};
use crate::tokenizer::Tokenizer;

/// Tokens that are read, and after each of them the token that it has to predict, where there is one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Excerpt {
    /// What is read.
    pub inputs: Vec<u32>,
    /// What follows each of them, where that is to be learnt; as long as `inputs`.
    pub targets: Vec<Option<u32>>,
}

impl Excerpt {
    /// The tokens `ids`: all but the last are read, each predicts the next where `learnt` says so of that one.
    /// `learnt` is as long as `ids`.
    pub fn new(ids: &[u32], learnt: &[bool]) -> Excerpt {
        let inputs = ids[..ids.len().saturating_sub(1)].to_vec();
        let following = ids.iter().zip(learnt).skip(1);
        Excerpt { inputs, targets: following.map(|(&id, &learnt)| learnt.then_some(id)).collect() }
    }

    /// How many tokens are to be predicted.
    pub fn target_count(&self) -> usize {
        self.targets.iter().flatten().count()
    }
}

/// The records of a JSONL file, one excerpt each: a `text` whole, a `prompt` + `completion` with the completion
/// alone to be learnt; each ends with the separator, also to be learnt. The first token of a `text` is not
/// predicted: nothing stands before it.
///
/// # Errors
/// As [`jsonl::records`]; a tokenizer without a separator.
pub fn examples(path: &Path, tokenizer: &Tokenizer) -> Result<Vec<Excerpt>, DataError> {
    let separator = separator_of(tokenizer)?;
    let mut all = Vec::new();
    jsonl::records(path, |record, _| {
        let (mut ids, rest) = match record {
            Record::Text(text) => (Vec::new(), text),
            Record::Pair { prompt, completion } => (tokenizer.encode(&prompt)?, completion),
        };
        let mut learnt = vec![false; ids.len()];
        ids.extend(tokenizer.encode(&rest)?);
        ids.push(separator);
        learnt.resize(ids.len(), true);
        all.push(Excerpt::new(&ids, &learnt));
        Ok(())
    })?;
    Ok(all)
}
