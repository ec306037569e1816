//! Reading a text file in blocks that can be tokenized separately.
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use xtrain_tensor::faults::{self, Fault};

use super::error::DataError;

/// The blocks of a text file. A block ends at a [`boundary`], so that its tokens are those of the whole text. Removes a
/// byte-order mark at the start. Keeps line breaks unchanged.
#[derive(Debug)]
pub(super) struct Blocks {
    path: PathBuf,
    file: File,
    size: usize,
    buffer: Vec<u8>,
    /// The offset of `buffer` in the file.
    offset: u64,
}

impl Blocks {
    /// The blocks of `path`, of about `size` bytes. A block is longer if there is no boundary in `size` bytes. Rejects
    /// an empty file.
    pub(super) fn open(path: &Path, size: usize) -> Result<Blocks, DataError> {
        let file = File::open(path).map_err(|e| DataError::io(path, "open", e))?;
        let mut blocks = Blocks { path: path.into(), file, size, buffer: Vec::new(), offset: 0 };
        if blocks.fill()? == 0 {
            return Err(DataError::Empty { file: path.into() });
        }
        if blocks.buffer.starts_with(b"\xef\xbb\xbf") {
            blocks.buffer.drain(..3);
            blocks.offset = 3;
        }
        Ok(blocks)
    }

    /// The next block. `None`: the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<String>, DataError> {
        while self.buffer.len() < self.size && self.fill()? > 0 {}
        let mut searched = 1;
        let cut = loop {
            if let Some(cut) = last_boundary(&self.buffer, searched) {
                break cut;
            }
            // the character at the end may be incomplete
            searched = self.buffer.len().saturating_sub(4).max(1);
            if self.fill()? == 0 {
                break self.buffer.len();
            }
        };
        if cut == 0 {
            return Ok(None);
        }
        let block: Vec<u8> = self.buffer.drain(..cut).collect();
        let text = to_text(block, self.offset, &self.path)?;
        self.offset += cut as u64;
        Ok(Some(text))
    }

    /// Number of bytes of the file up to the end of the last block.
    pub(super) fn position(&self) -> u64 {
        self.offset
    }

    fn fill(&mut self) -> Result<u64, DataError> {
        let read = self.file.by_ref().take(self.size as u64).read_to_end(&mut self.buffer);
        read.map(|n| n as u64).map_err(|e| DataError::io(&self.path, "read", e))
    }
}

/// The last boundary of `bytes` at or after `from`: at a line break if there is one, otherwise between two words.
fn last_boundary(bytes: &[u8], from: usize) -> Option<usize> {
    let last = |kind: Boundary| (from..bytes.len()).rev().find(|&at| boundary(bytes, at) == Some(kind));
    last(Boundary::Line).or_else(|| last(Boundary::Word))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Boundary {
    /// Before a line break that follows an ASCII letter or digit, or after a line break between a character that is not
    /// whitespace and a letter or digit.
    Line,
    /// Before a single space between two ASCII letters.
    Word,
}

/// The kind of boundary at byte `at`. The patterns of byte-level tokenizers (GPT-2, Llama 3, Qwen) split words there,
/// whatever precedes and follows; a SentencePiece tokenizer rarely has a token across it. There is no boundary after
/// several characters of whitespace: GPT-2 splits whitespace before its last character if a word follows.
fn boundary(bytes: &[u8], at: usize) -> Option<Boundary> {
    let (before, after) = bytes.split_at(at);
    let is_break = |byte: Option<&u8>| matches!(byte, Some(b'\n' | b'\r'));
    let is_letter = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphabetic);
    let ends_word = before.last().is_some_and(u8::is_ascii_alphanumeric);
    let ends_line = || {
        let line = before.strip_suffix(b"\n")?;
        let ends =
            last_char(line).is_some_and(|c| !c.is_whitespace()) || faults::on(Fault::BlocksEndInWhitespace);
        Some(ends && first_char(after).is_some_and(char::is_alphanumeric))
    };
    if ends_word && is_break(after.first()) || ends_line() == Some(true) {
        return Some(Boundary::Line);
    }
    let between_words = is_letter(before.last()) && after.first() == Some(&b' ') && is_letter(after.get(1));
    between_words.then_some(Boundary::Word)
}

fn first_char(bytes: &[u8]) -> Option<char> {
    let char = (1..=4).find_map(|n| std::str::from_utf8(bytes.get(..n)?).ok());
    char?.chars().next()
}

fn last_char(bytes: &[u8]) -> Option<char> {
    let from = |n| bytes.len().checked_sub(n);
    let char = (1..=4).find_map(|n| std::str::from_utf8(&bytes[from(n)?..]).ok());
    char?.chars().next()
}

/// Converts bytes of `file` from offset `at` to text. Rejects bytes that are not UTF-8 or zero (a binary file), by
/// their offset.
pub(super) fn to_text(bytes: Vec<u8>, at: u64, file: &Path) -> Result<String, DataError> {
    let refuse = |i: usize, byte: u8| DataError::NotText {
        file: file.into(),
        line: None,
        offset: at + i as u64,
        byte,
    };
    if let Some(i) = bytes.iter().position(|&byte| byte == 0)
        && std::str::from_utf8(&bytes[..i]).is_ok()
    {
        return Err(refuse(i, 0));
    }
    String::from_utf8(bytes).map_err(|e| {
        let i = e.utf8_error().valid_up_to();
        refuse(i, e.as_bytes()[i])
    })
}
