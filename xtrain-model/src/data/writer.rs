//! Writing a token file that appears completely or not at all.
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::document_sink::{DocumentSink, Role, separator_of};
use super::error::DataError;
use super::header::{self, Header, Version};
use crate::durable;
use crate::temporary::{lock_names, temporary_path};
use crate::tokenizer::Tokenizer;

/// Writes tokens into a temporary file next to `path`, which [`finish`](TokenWriter::finish) renames. A writer that
/// is dropped without `finish` removes the temporary file.
#[derive(Debug)]
pub struct TokenWriter {
    path: PathBuf,
    temporary: PathBuf,
    file: BufWriter<File>,
    header: Header,
    mask: Vec<u8>,
    ends: Vec<u64>,
    separator: u32,
    /// The name of the tokenizer. Empty: not recorded.
    name: String,
    /// The last token of the current document.
    last: Option<u32>,
    finished: bool,
}

impl TokenWriter {
    /// Creates the token file `path` with the vocabulary of `tokenizer`.
    ///
    /// # Errors
    /// A directory that cannot be written; a tokenizer without a separator.
    pub fn create(path: &Path, tokenizer: &Tokenizer) -> Result<TokenWriter, DataError> {
        if path.file_name().is_none() {
            return Err(DataError::argument("TokenWriter", "the path of a file", path.display()));
        }
        let separator = separator_of(tokenizer, "prepare")?;
        let temporary = temporary_path(path);
        // does not follow a link
        let names = lock_names();
        let file = File::create_new(&temporary);
        drop(names);
        let file = file.map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => DataError::io(&temporary, "create", e),
            _ => DataError::io(path, "create", e),
        })?;
        let (version, vocab, digest) = (Version::Two, tokenizer.vocab_size() as u32, tokenizer.digest());
        let header = Header { version, masked: false, vocab, digest, count: 0, documents: 0, body_crc: 0 };
        let mut writer = TokenWriter {
            path: path.into(),
            temporary,
            file: BufWriter::new(file),
            header,
            mask: Vec::new(),
            ends: Vec::new(),
            separator,
            name: String::new(),
            last: None,
            finished: false,
        };
        writer.put(&[0; header::SIZE as usize])?;
        Ok(writer)
    }

    /// The writer that also records the name of the tokenizer: `bytes`, or the path of a file or directory. An empty
    /// name, or one of more than 4096 bytes, is not recorded.
    #[must_use]
    pub fn with_tokenizer_name(mut self, name: &str) -> TokenWriter {
        if name.len() as u64 <= header::MAX_NAME {
            self.name = name.into();
        }
        self
    }

    /// Number of tokens so far.
    pub fn count(&self) -> u64 {
        self.header.count
    }

    /// Number of completed documents.
    pub fn documents(&self) -> u64 {
        self.header.documents
    }

    /// Ends the last document without a separator, writes the header, syncs the file and renames it to its final
    /// path.
    ///
    /// # Errors
    /// A write, sync or rename error. On error, `path` is unchanged.
    pub fn finish(mut self) -> Result<(), DataError> {
        self.cut();
        if self.header.masked {
            let mask = std::mem::take(&mut self.mask);
            self.put_body(&mask)?;
        }
        let ends: Vec<u8> = self.ends.iter().flat_map(|end| end.to_le_bytes()).collect();
        self.put_body(&ends)?;
        if !self.name.is_empty() {
            self.header.version = Version::Three;
            let name = std::mem::take(&mut self.name);
            self.put(name.as_bytes())?;
            self.put(&crc32c::crc32c(name.as_bytes()).to_le_bytes())?;
        }
        let header = self.header.to_bytes();
        self.at("write", |file| file.seek(SeekFrom::Start(0)).map(|_| ()))?;
        self.put(&header)?;
        self.at("write", BufWriter::flush)?;
        self.at("sync", |file| file.get_ref().sync_all())?;
        let names = lock_names();
        let renamed = fs::rename(&self.temporary, &self.path);
        self.finished = renamed.is_ok();
        drop(names);
        renamed.map_err(|e| DataError::io(&self.path, "rename into place", e))?;
        let parent = durable::parent(&self.path);
        durable::sync_dir(parent).map_err(|e| DataError::io(parent, "sync", e))
    }

    fn put_body(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.header.body_crc = crc32c::crc32c_append(self.header.body_crc, bytes);
        self.put(bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.at("write", |file| file.write_all(bytes))
    }

    fn at(
        &mut self,
        op: &'static str,
        act: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
    ) -> Result<(), DataError> {
        act(&mut self.file).map_err(|e| DataError::io(&self.path, op, e))
    }
}

impl DocumentSink for TokenWriter {
    fn push(&mut self, ids: &[u32], role: Role) -> Result<(), DataError> {
        let Header { vocab, count, .. } = self.header;
        let width = self.header.width() as usize;
        if let Some((&got, at)) = ids.iter().zip(count..).find(|(id, _)| **id >= vocab) {
            let origin = self.path.display().to_string();
            return Err(DataError::Vocabulary { origin, at, got, vocab });
        }
        let mut bytes = Vec::with_capacity(ids.len() * width);
        for (&id, at) in ids.iter().zip(count..) {
            bytes.extend_from_slice(&id.to_le_bytes()[..width]);
            if at % 8 == 0 {
                self.mask.push(0);
            }
            *self.mask.last_mut().expect("token 0 appended a byte") |=
                u8::from(role == Role::Target) << (at % 8);
        }
        self.header.masked |= role == Role::Context && !ids.is_empty();
        self.header.count += ids.len() as u64;
        self.last = ids.last().copied().or(self.last);
        self.put_body(&bytes)
    }

    fn last(&self) -> Option<u32> {
        self.last
    }

    fn separator(&self) -> u32 {
        self.separator
    }

    fn cut(&mut self) {
        if self.last.take().is_some() {
            self.ends.push(self.header.count);
            self.header.documents += 1;
        }
    }
}

impl Drop for TokenWriter {
    fn drop(&mut self) {
        if !self.finished {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
