//! A sequence of tokens to train on, in memory or in a file.
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::prepare::{Sink, feed};
use super::{Content, DataError, Role, TokenFile, TokenWindow, separator_of};
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

/// Tokens in memory; `learnt` is as long as `ids`, `ends` are those of the documents.
#[derive(Debug, Default)]
struct Memory {
    ids: Vec<u32>,
    learnt: Vec<bool>,
    ends: Vec<u64>,
    vocab: u32,
}

impl Memory {
    /// Ends the document as it stands; nothing where there is none.
    fn cut(&mut self) {
        let at = self.ids.len() as u64;
        if self.ends.last().copied().unwrap_or(0) < at {
            self.ends.push(at);
        }
    }
}

/// Tokens on their way into memory.
struct Gathered {
    memory: Memory,
    separator: u32,
}

impl Sink for Gathered {
    fn push(&mut self, ids: &[u32], role: Role) -> Result<(), DataError> {
        let Memory { ids: all, learnt, .. } = &mut self.memory;
        all.extend_from_slice(ids);
        learnt.resize(all.len(), role == Role::Learnt);
        Ok(())
    }

    fn end_document(&mut self) -> Result<(), DataError> {
        let Memory { ids, ends, .. } = &self.memory;
        let open = ends.last().copied().unwrap_or(0) < ids.len() as u64;
        if open && !ids.ends_with(&[self.separator]) {
            self.push(&[self.separator], Role::Learnt)?;
        }
        self.cut();
        Ok(())
    }

    fn cut(&mut self) {
        self.memory.cut();
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

    /// `ids` of a vocabulary of `vocab`, one document, all to be learnt.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn from_ids(ids: Vec<u32>, vocab: u32) -> Result<Tokens, DataError> {
        Tokens::from_documents([ids.into_iter().map(|id| (id, Role::Learnt))], vocab)
    }

    /// Documents of a vocabulary of `vocab`: ids and their roles.
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
                    let (source, at) = ("tokens in memory".to_string(), memory.ids.len() as u64);
                    return Err(DataError::Vocabulary { source, at, got: id, vocab });
                }
                memory.ids.push(id);
                memory.learnt.push(role == Role::Learnt);
            }
            memory.cut();
        }
        Ok(Tokens { source: Source::Memory(memory) })
    }

    /// The tokens of text and JSONL files, tokenised into memory: what [`prepare`](super::prepare) would write.
    ///
    /// # Errors
    /// As [`prepare`](super::prepare); what is not of that content.
    pub fn from_files(
        inputs: &[PathBuf],
        tokenizer: &Tokenizer,
        content: Content,
    ) -> Result<Tokens, DataError> {
        let vocab = u32::try_from(tokenizer.vocab_size()).expect("a vocabulary is at most 2^19");
        let memory = Memory { vocab, ..Memory::default() };
        let mut gathered = Gathered { memory, separator: separator_of(tokenizer)? };
        feed(inputs, (tokenizer, content), &mut gathered, &mut |_| ())?;
        gathered.cut();
        Ok(Tokens { source: Source::Memory(gathered.memory) })
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

    /// Where each document ends: rising, the last at [`len`](Tokens::len).
    ///
    /// # Errors
    /// As [`TokenFile::ends`].
    pub fn ends(&self) -> Result<Vec<u64>, DataError> {
        match &self.source {
            Source::Memory(memory) => Ok(memory.ends.clone()),
            Source::File(file) => file.ends(),
        }
    }

    /// Whether some tokens may be not to be learnt.
    pub fn is_masked(&self) -> bool {
        match &self.source {
            Source::Memory(memory) => memory.learnt.contains(&false),
            Source::File(file) => file.is_masked(),
        }
    }

    /// The tokens at the positions `range` as something to train on: all but the last are read, each predicts
    /// the next where that one is to be learnt.
    ///
    /// # Errors
    /// As [`ids`](Tokens::ids).
    pub fn excerpt(&self, range: Range<u64>) -> Result<TokenWindow, DataError> {
        Ok(TokenWindow::new(&self.ids(range.clone())?, &self.learnt(range)?))
    }
}

fn slice<'a, T>(all: &'a [T], range: &Range<u64>) -> Result<&'a [T], DataError> {
    let bound = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    all.get(bound(range.start)..bound(range.end)).ok_or_else(|| {
        let got = format!("{}..{} of {}", range.start, range.end, all.len());
        DataError::argument("Tokens", "a range of its tokens", got)
    })
}
