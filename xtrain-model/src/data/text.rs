//! Reading a text file in blocks that can be tokenized separately.
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::error::DataError;

/// The blocks of a text file. A block ends only after a line break that is followed by an ASCII letter or digit: no
/// byte-level tokenizer has a token across such a boundary, and a SentencePiece tokenizer rarely has one. Removes a
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
    /// The blocks of `path`, of about `size` bytes. A block with a longer line is longer. Rejects an empty file.
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
        let mut searched = 1;
        let cut = loop {
            if let Some(cut) = last_boundary(&self.buffer, searched) {
                break cut;
            }
            searched = self.buffer.len().max(1);
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

/// The last block boundary at or after `from`.
fn last_boundary(bytes: &[u8], from: usize) -> Option<usize> {
    (from..bytes.len()).rev().find(|&at| bytes[at - 1] == b'\n' && bytes[at].is_ascii_alphanumeric())
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
