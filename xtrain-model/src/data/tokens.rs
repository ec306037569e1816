//! A sequence of tokens to train on, in memory or in a file.
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::prepare::{Sink, feed};
use super::{DataError, Excerpt, Role, TokenFile, separator_of};
use crate::tokenizer::Tokenizer;

/// Packed tokens: documents one after the other, each ended by a separator.
#[derive(Debug)]
pub struct Tokens {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Memory(Memory),
    File(TokenFile),
}

/// Tokens in memory; `learnt` is as long as `ids`.
#[derive(Debug)]
struct Memory {
    ids: Vec<u32>,
    learnt: Vec<bool>,
    vocab: u32,
    separator: Option<u32>,
}

impl Sink for Memory {
    fn push(&mut self, ids: &[u32], role: Role) -> Result<(), DataError> {
        self.ids.extend_from_slice(ids);
        self.learnt.resize(self.ids.len(), role == Role::Learnt);
        Ok(())
    }

    fn end_document(&mut self) -> Result<(), DataError> {
        match (self.separator, self.ids.last()) {
            (Some(separator), Some(&last)) if last != separator => self.push(&[separator], Role::Learnt),
            _ => Ok(()),
        }
    }
}

impl Tokens {
    /// The tokens of the file `path`, opened as [`TokenFile::open`] does.
    ///
    /// # Errors
    /// As [`TokenFile::open`].
    pub fn open(path: &Path) -> Result<Tokens, DataError> {
        Ok(Tokens { source: Source::File(TokenFile::open(path)?) })
    }

    /// `ids` of a vocabulary of `vocab`, all to be learnt.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn from_ids(ids: Vec<u32>, vocab: u32) -> Result<Tokens, DataError> {
        if let Some(at) = ids.iter().position(|&id| id >= vocab) {
            let (source, got) = ("tokens in memory".to_string(), ids[at]);
            return Err(DataError::Vocabulary { source, at: at as u64, got, vocab });
        }
        let learnt = vec![true; ids.len()];
        Ok(Tokens { source: Source::Memory(Memory { ids, learnt, vocab, separator: None }) })
    }

    /// The tokens of text and JSONL files, tokenised into memory: what [`prepare`](super::prepare) would write.
    ///
    /// # Errors
    /// As [`prepare`](super::prepare).
    pub fn from_files(inputs: &[PathBuf], tokenizer: &Tokenizer) -> Result<Tokens, DataError> {
        let vocab = u32::try_from(tokenizer.vocab_size()).expect("a vocabulary is at most 2^19");
        let separator = Some(separator_of(tokenizer)?);
        let mut memory = Memory { ids: Vec::new(), learnt: Vec::new(), vocab, separator };
        feed(inputs, tokenizer, &mut memory, &mut |_| ())?;
        Ok(Tokens { source: Source::Memory(memory) })
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        match &self.source {
            Source::Memory(memory) => memory.ids.len() as u64,
            Source::File(file) => file.count(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The vocabulary that the ids are below.
    pub fn vocab(&self) -> u32 {
        match &self.source {
            Source::Memory(memory) => memory.vocab,
            Source::File(file) => file.vocab(),
        }
    }

    /// The file, where they are in one.
    pub fn file(&self) -> Option<&TokenFile> {
        match &self.source {
            Source::Memory(_) => None,
            Source::File(file) => Some(file),
        }
    }

    /// The ids at the positions `range`.
    ///
    /// # Errors
    /// A range past the end, a read that fails, an id outside the vocabulary.
    pub fn ids(&self, range: Range<u64>) -> Result<Vec<u32>, DataError> {
        match &self.source {
            Source::Memory(memory) => Ok(slice(&memory.ids, &range)?.to_vec()),
            Source::File(file) => file.ids(range),
        }
    }

    /// Whether each token at the positions `range` is to be learnt.
    ///
    /// # Errors
    /// A range past the end, a read that fails.
    pub fn learnt(&self, range: Range<u64>) -> Result<Vec<bool>, DataError> {
        match &self.source {
            Source::Memory(memory) => Ok(slice(&memory.learnt, &range)?.to_vec()),
            Source::File(file) => file.learnt(range),
        }
    }

    /// The tokens at the positions `range` as something to train on: all but the last are read, each predicts
    /// the next where that one is to be learnt.
    ///
    /// # Errors
    /// As [`ids`](Tokens::ids).
    pub fn excerpt(&self, range: Range<u64>) -> Result<Excerpt, DataError> {
        Ok(Excerpt::new(&self.ids(range.clone())?, &self.learnt(range)?))
    }
}

fn slice<'a, T>(all: &'a [T], range: &Range<u64>) -> Result<&'a [T], DataError> {
    let bound = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    all.get(bound(range.start)..bound(range.end)).ok_or_else(|| {
        let got = format!("{}..{} of {}", range.start, range.end, all.len());
        DataError::argument("Tokens", "a range of its tokens", got)
    })
}
