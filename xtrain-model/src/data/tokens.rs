//! A sequence of packed tokens, in memory or in a file.
use std::ops::Range;
use std::path::{Path, PathBuf};

use xtrain_tensor::faults::{self, Fault};

use super::document_sink::{DocumentSink, Role, separator_of};
use super::error::DataError;
use super::prepare::{Content, feed};
use super::token_file::TokenFile;
use super::token_window::TokenWindow;
use crate::tokenizer::Tokenizer;

/// Packed tokens: consecutive documents, each ended by a separator.
#[derive(Debug)]
pub struct Tokens {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Memory(Memory),
    File(TokenFile),
}

/// Documents in memory.
#[derive(Debug, Default)]
pub(super) struct Memory {
    ids: Vec<u32>,
    /// Whether each token is a target; as long as `ids`.
    target_mask: Vec<bool>,
    ends: Vec<u64>,
    vocab: u32,
    /// The token that separates documents. Unused by [`Tokens::from_documents`].
    separator: u32,
}

impl DocumentSink for Memory {
    fn push(&mut self, ids: &[u32], role: Role) -> Result<(), DataError> {
        self.ids.extend_from_slice(ids);
        self.target_mask.resize(self.ids.len(), role == Role::Target);
        Ok(())
    }

    fn last(&self) -> Option<u32> {
        let open = self.ends.last().copied().unwrap_or(0) < self.ids.len() as u64;
        self.ids.last().copied().filter(|_| open)
    }

    fn separator(&self) -> u32 {
        self.separator
    }

    fn cut(&mut self) {
        if self.last().is_some() {
            self.ends.push(self.ids.len() as u64);
        }
    }
}

impl Tokens {
    /// Opens the token file `path` and verifies all of it, in one pass: a damaged file would change results silently.
    ///
    /// # Errors
    /// As [`TokenFile::open`] and [`TokenFile::verify`].
    pub fn open(path: &Path) -> Result<Tokens, DataError> {
        let file = TokenFile::open(path)?;
        if !faults::on(Fault::TokenFileNotVerified) {
            file.verify()?;
        }
        Ok(Tokens { source: Source::File(file) })
    }

    /// One document of `ids`, all of them targets. `vocab` is the vocabulary size.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn from_ids(ids: Vec<u32>, vocab: u32) -> Result<Tokens, DataError> {
        Tokens::from_documents([ids.into_iter().map(|id| (id, Role::Target))], vocab)
    }

    /// Documents of (id, role) pairs. `vocab` is the vocabulary size.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn from_documents<D>(documents: impl IntoIterator<Item = D>, vocab: u32) -> Result<Tokens, DataError>
    where
        D: IntoIterator<Item = (u32, Role)>,
    {
        let mut memory = Memory { vocab, ..Memory::default() };
        for document in documents {
            for (id, role) in document {
                if id >= vocab {
                    let (origin, at) = ("tokens in memory".to_string(), memory.ids.len() as u64);
                    return Err(DataError::Vocabulary { origin, at, got: id, vocab });
                }
                memory.ids.push(id);
                memory.target_mask.push(role == Role::Target);
            }
            memory.cut();
        }
        Ok(Tokens { source: Source::Memory(memory) })
    }

    /// Tokenizes text and JSONL files into memory: the tokens that [`prepare`](super::prepare) writes.
    ///
    /// # Errors
    /// As [`prepare`](super::prepare); records that `content` does not allow.
    pub fn from_files(
        inputs: &[PathBuf],
        tokenizer: &Tokenizer,
        content: Content,
    ) -> Result<Tokens, DataError> {
        Tokens::of_documents(tokenizer, |memory| {
            feed(inputs, tokenizer, content, memory, &mut |_| ()).map(drop)
        })
    }

    /// The documents that `encode` writes, with the separators of `tokenizer`.
    pub(super) fn of_documents(
        tokenizer: &Tokenizer,
        encode: impl FnOnce(&mut Memory) -> Result<(), DataError>,
    ) -> Result<Tokens, DataError> {
        let (vocab, separator) = (tokenizer.vocab_size() as u32, separator_of(tokenizer, "prepare")?);
        let mut memory = Memory { vocab, separator, ..Memory::default() };
        encode(&mut memory)?;
        memory.cut();
        Ok(Tokens { source: Source::Memory(memory) })
    }

    /// The number of tokens.
    pub fn len(&self) -> u64 {
        match &self.source {
            Source::Memory(memory) => memory.ids.len() as u64,
            Source::File(file) => file.count(),
        }
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The vocabulary size.
    pub fn vocab(&self) -> u32 {
        match &self.source {
            Source::Memory(memory) => memory.vocab,
            Source::File(file) => file.vocab(),
        }
    }

    /// The token file. `None`: the tokens are in memory.
    pub fn file(&self) -> Option<&TokenFile> {
        match &self.source {
            Source::Memory(_) => None,
            Source::File(file) => Some(file),
        }
    }

    /// The ids at the positions `range`.
    ///
    /// # Errors
    /// A range past the end; a read error; an id outside the vocabulary.
    pub fn ids(&self, range: Range<u64>) -> Result<Vec<u32>, DataError> {
        match &self.source {
            Source::Memory(memory) => Ok(slice(&memory.ids, &range)?.to_vec()),
            Source::File(file) => file.ids(range),
        }
    }

    /// Whether each token at the positions `range` is a target.
    ///
    /// # Errors
    /// A range past the end; a read error.
    pub fn target_mask(&self, range: Range<u64>) -> Result<Vec<bool>, DataError> {
        match &self.source {
            Source::Memory(memory) => Ok(slice(&memory.target_mask, &range)?.to_vec()),
            Source::File(file) => file.target_mask(range),
        }
    }

    /// The end of each document: increasing, the last one equal to [`len`](Tokens::len).
    ///
    /// # Errors
    /// As [`TokenFile::ends`].
    pub fn ends(&self) -> Result<Vec<u64>, DataError> {
        match &self.source {
            Source::Memory(memory) => Ok(memory.ends.clone()),
            Source::File(file) => file.ends(),
        }
    }

    /// Whether some tokens are context only.
    pub fn is_masked(&self) -> bool {
        match &self.source {
            Source::Memory(memory) => memory.target_mask.contains(&false),
            Source::File(file) => file.is_masked(),
        }
    }

    /// The tokens at the positions `range` as inputs and targets: all except the last are inputs, and each predicts
    /// the next token if that one is a target.
    ///
    /// # Errors
    /// As [`ids`](Tokens::ids).
    pub fn window(&self, range: Range<u64>) -> Result<TokenWindow, DataError> {
        Ok(TokenWindow::new(&self.ids(range.clone())?, &self.target_mask(range)?))
    }
}

fn slice<'a, T>(all: &'a [T], range: &Range<u64>) -> Result<&'a [T], DataError> {
    let bound = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    all.get(bound(range.start)..bound(range.end)).ok_or_else(|| {
        let got = format!("{}..{} of {}", range.start, range.end, all.len());
        DataError::argument("Tokens", "a range of its tokens", got)
    })
}
