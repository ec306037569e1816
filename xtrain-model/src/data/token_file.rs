//! Reading a token file (`*.tok`) with positioned reads.
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::error::DataError;
use super::header::{self, Header, Version};

/// Number of bytes of the checksum of the tokenizer's name.
const CRC_BYTES: u64 = 4;

/// An open token file. Its header and length are verified. Ids are checked when they are read. The file is not
/// memory-mapped: if it shrinks while it is open, reading returns an error instead of crashing the process.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    file: File,
    header: Header,
    /// The offset of the mask.
    mask_at: u64,
    /// The offset of the table of document ends.
    ends_at: u64,
    /// The end of the document ends.
    body_end: u64,
    /// The name of the tokenizer. `None`: not recorded.
    tokenizer: Option<String>,
}

impl TokenFile {
    /// Opens `path` and verifies its header and length. [`verify`](TokenFile::verify) checks the rest.
    ///
    /// # Errors
    /// A file that cannot be read; an invalid header; a length that contradicts the header.
    pub fn open(path: &Path) -> Result<TokenFile, DataError> {
        let file = File::open(path).map_err(|e| DataError::io(path, "open", e))?;
        let length = file.metadata().map_err(|e| DataError::io(path, "read", e))?.len();
        let bad = |want, got: u64| {
            let got = format!("{got} bytes");
            DataError::Format { file: path.into(), field: "length", want, got }
        };
        if length < header::SIZE {
            return Err(bad(format!("at least {} bytes, the size of the header", header::SIZE), length));
        }
        let mut bytes = [0; header::SIZE as usize];
        read_at(&file, &mut bytes, 0).map_err(|e| DataError::io(path, "read", e))?;
        let header = Header::from_bytes(&bytes, path)?;
        let (Some(mask_at), Some(ends_at), Some(body_end)) =
            (header.mask_at(), header.ends_at(), header.body_end())
        else {
            return Err(bad(format!("a length for {} tokens", header.count), length));
        };
        let named = header.version == Version::Three;
        let name = if named { 1 + CRC_BYTES..=header::MAX_NAME + CRC_BYTES } else { 0..=0 };
        if !length.checked_sub(body_end).is_some_and(|rest| name.contains(&rest)) {
            let at_least = if named { "more than " } else { "" };
            let want = format!("{at_least}{body_end} bytes for {} tokens", header.count);
            return Err(bad(want, length));
        }
        let tokenizer = None;
        let mut opened = TokenFile { path: path.into(), file, header, mask_at, ends_at, body_end, tokenizer };
        if named {
            opened.tokenizer = Some(opened.read_name(length - body_end)?);
        }
        Ok(opened)
    }

    /// The name of the tokenizer in the last `length` bytes, and its checksum.
    fn read_name(&self, length: u64) -> Result<String, DataError> {
        let mut name = self.bytes(self.body_end, length)?;
        let crc = name.split_off((length - CRC_BYTES) as usize);
        let (want, got) = (crc32c::crc32c(&name), u32::from_le_bytes(std::array::from_fn(|i| crc[i])));
        let bad = |want: String, got: String| DataError::Format {
            file: self.path.clone(),
            field: "name of the tokenizer",
            want,
            got,
        };
        if want != got {
            return Err(bad(format!("checksum {want:08x}"), format!("{got:08x}")));
        }
        String::from_utf8(name).map_err(|_| bad("UTF-8 text".into(), "other bytes".into()))
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of tokens.
    pub fn count(&self) -> u64 {
        self.header.count
    }

    /// The number of documents.
    pub fn documents(&self) -> u64 {
        self.header.documents
    }

    /// The vocabulary size.
    pub fn vocab(&self) -> u32 {
        self.header.vocab
    }

    /// The digest of the tokenizer that created the file (`Tokenizer::digest`).
    pub fn digest(&self) -> u64 {
        self.header.digest
    }

    /// The name of the tokenizer that created the file: `bytes`, or the path of a file or directory. `None`: not
    /// recorded, as in a file of an earlier version.
    pub fn tokenizer(&self) -> Option<&str> {
        self.tokenizer.as_deref()
    }

    /// The checksum of the header. The header contains the checksum and the number of the tokens and the tokenizer's
    /// digest: files with equal checksums that passed [`verify`](TokenFile::verify) contain the same tokens. The name
    /// of the tokenizer does not change it.
    pub fn checksum(&self) -> u32 {
        let version = if self.header.version == Version::Three { Version::Two } else { self.header.version };
        let [.., a, b, c, d] = Header { version, ..self.header }.to_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// Whether the file has a target mask: some tokens are context only.
    pub fn is_masked(&self) -> bool {
        self.header.masked
    }

    /// The ids at the positions `range`.
    ///
    /// # Errors
    /// A range past the end; a read error; an id outside the vocabulary.
    pub fn ids(&self, range: Range<u64>) -> Result<Vec<u32>, DataError> {
        self.check(&range)?;
        let width = self.header.width();
        let bytes = self.bytes(header::SIZE + range.start * width, (range.end - range.start) * width)?;
        let ids: Vec<u32> = match width {
            2 => bytes.as_chunks().0.iter().map(|&b| u16::from_le_bytes(b).into()).collect(),
            _ => bytes.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)).collect(),
        };
        match ids.iter().position(|&id| id >= self.header.vocab) {
            None => Ok(ids),
            Some(i) => Err(DataError::Vocabulary {
                origin: self.path.display().to_string(),
                at: range.start + i as u64,
                got: ids[i],
                vocab: self.header.vocab,
            }),
        }
    }

    /// Whether each token at the positions `range` is a target.
    ///
    /// # Errors
    /// A range past the end; a read error.
    pub fn target_mask(&self, range: Range<u64>) -> Result<Vec<bool>, DataError> {
        self.check(&range)?;
        if !self.header.masked || range.is_empty() {
            return Ok(vec![true; (range.end - range.start) as usize]);
        }
        let (first, last) = (range.start / 8, (range.end - 1) / 8);
        let bits = self.bytes(self.mask_at + first, last + 1 - first)?;
        Ok(range.map(|i| bits[(i / 8 - first) as usize] >> (i % 8) & 1 == 1).collect())
    }

    /// The end of each document in tokens: increasing, the last one equal to [`count`](TokenFile::count).
    ///
    /// # Errors
    /// A file of version 1, which has no document ends; ends that are not increasing or do not end with the tokens; a
    /// read error.
    pub fn ends(&self) -> Result<Vec<u64>, DataError> {
        let bad = |field, want: String, got: String| {
            Err(DataError::Format { file: self.path.clone(), field, want, got })
        };
        if self.header.version == Version::One {
            let want = "2, which stores document ends (written by xtrain prepare)";
            return bad("version", want.into(), "1".into());
        }
        let bytes = self.bytes(self.ends_at, self.header.documents * 8)?;
        let (mut ends, mut last) = (Vec::with_capacity(bytes.len() / 8), 0);
        for end in bytes.as_chunks().0.iter().map(|&b| u64::from_le_bytes(b)) {
            if end <= last || end > self.count() {
                let want = format!("above {last}, at most {} (tokens)", self.count());
                return bad("end of a document", want, format!("{end} for document {}", ends.len()));
            }
            ends.push(end);
            last = end;
        }
        if last != self.count() {
            return bad("end of the last document", self.count().to_string(), last.to_string());
        }
        Ok(ends)
    }

    /// Reads the whole file and checks its checksum, every id and the document ends.
    ///
    /// # Errors
    /// A checksum that differs from the header's; an id outside the vocabulary; a read error; as
    /// [`ends`](TokenFile::ends).
    pub fn verify(&self) -> Result<(), DataError> {
        const BLOCK: u64 = 1 << 20;
        let mut crc = 0;
        for at in (header::SIZE..self.body_end).step_by(BLOCK as usize) {
            crc = crc32c::crc32c_append(crc, &self.bytes(at, BLOCK.min(self.body_end - at))?);
        }
        if crc != self.header.body_crc {
            return Err(DataError::Format {
                file: self.path.clone(),
                field: "checksum of the tokens",
                want: format!("{:08x}", self.header.body_crc),
                got: format!("{crc:08x}"),
            });
        }
        for at in (0..self.count()).step_by(BLOCK as usize) {
            self.ids(at..self.count().min(at + BLOCK))?;
        }
        match self.header.version {
            Version::One => Ok(()),
            Version::Two | Version::Three => self.ends().map(|_| ()),
        }
    }

    fn check(&self, range: &Range<u64>) -> Result<(), DataError> {
        if range.start > range.end || range.end > self.header.count {
            let got = format!("{}..{} of {}", range.start, range.end, self.header.count);
            return Err(DataError::argument("TokenFile", "a range of its tokens", got));
        }
        Ok(())
    }

    fn bytes(&self, at: u64, length: u64) -> Result<Vec<u8>, DataError> {
        let mut bytes = vec![0; length as usize];
        read_at(&self.file, &mut bytes, at).map_err(|e| DataError::io(&self.path, "read", e))?;
        Ok(bytes)
    }
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(not(unix))]
fn read_at(mut file: &File, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _cursor = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(bytes)
}
