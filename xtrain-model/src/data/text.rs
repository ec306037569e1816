//! A text file in blocks that tokenise as the whole does.
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::DataError;

/// The blocks of a text file, cut only after a line end that a letter or digit (ASCII) follows: no
/// byte-level tokenizer makes a token across such a place. A byte-order mark at the start is dropped; line
/// ends stay what they are.
#[derive(Debug)]
pub(super) struct Blocks {
    path: PathBuf,
    file: File,
    size: usize,
    held: Vec<u8>,
    held_at: u64,
}

impl Blocks {
    /// The blocks of `path`, of about `size` bytes (more where a line is longer).
    ///
    /// # Errors
    /// A file that cannot be opened or is empty.
    pub(super) fn open(path: &Path, size: usize) -> Result<Blocks, DataError> {
        let file = File::open(path).map_err(|e| DataError::io(path, "open", &e))?;
        let mut blocks = Blocks { path: path.into(), file, size, held: Vec::new(), held_at: 0 };
        if blocks.fill()? == 0 {
            return Err(DataError::NotText { file: path.into(), offset: 0, got: "an empty file".into() });
        }
        if blocks.held.starts_with(b"\xef\xbb\xbf") {
            blocks.held.drain(..3);
            blocks.held_at = 3;
        }
        Ok(blocks)
    }

    /// The next block, or `None` at the end.
    ///
    /// # Errors
    /// A read that fails; bytes that are not UTF-8 or zero (a binary file), by their offset.
    pub(super) fn next(&mut self) -> Result<Option<String>, DataError> {
        let mut searched = 1;
        let cut = loop {
            if let Some(cut) = last_cut(&self.held, searched) {
                break cut;
            }
            searched = self.held.len().max(1);
            if self.fill()? == 0 {
                break self.held.len();
            }
        };
        if cut == 0 {
            return Ok(None);
        }
        let block: Vec<u8> = self.held.drain(..cut).collect();
        let text = to_text(block, self.held_at, &self.path)?;
        self.held_at += cut as u64;
        Ok(Some(text))
    }

    fn fill(&mut self) -> Result<u64, DataError> {
        let read = self.file.by_ref().take(self.size as u64).read_to_end(&mut self.held);
        read.map(|n| n as u64).map_err(|e| DataError::io(&self.path, "read", &e))
    }
}

/// The last place at or after `from` where a block may end.
fn last_cut(bytes: &[u8], from: usize) -> Option<usize> {
    (from..bytes.len()).rev().find(|&at| bytes[at - 1] == b'\n' && bytes[at].is_ascii_alphanumeric())
}

/// # Errors
/// Bytes that are not UTF-8, or zero; `at` is the place of the first in `file`.
pub(super) fn to_text(bytes: Vec<u8>, at: u64, file: &Path) -> Result<String, DataError> {
    let refuse = |i: usize, got: String| DataError::NotText { file: file.into(), offset: at + i as u64, got };
    if let Some(i) = bytes.iter().position(|&byte| byte == 0)
        && std::str::from_utf8(&bytes[..i]).is_ok()
    {
        return Err(refuse(i, "a zero byte (a binary file?)".into()));
    }
    String::from_utf8(bytes).map_err(|e| {
        let i = e.utf8_error().valid_up_to();
        refuse(i, format!("byte 0x{:02x}", e.as_bytes()[i]))
    })
}
