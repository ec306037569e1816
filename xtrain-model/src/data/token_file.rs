//! Reading a token file (`*.tok`) by positioned reads.
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::DataError;
use super::header::{self, Header, Masked, Version};

/// An open token file. Its header and length are verified; ids are checked as they are read. It is never
/// mapped into memory: a file that shrinks under a reader is an error, not a dead process.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    file: File,
    header: Header,
}

impl TokenFile {
    /// Opens `path` and verifies its header and its length; [`verify`](TokenFile::verify) reads the rest.
    ///
    /// # Errors
    /// A file that cannot be read; a header with a wrong field; a length that is not the one its count asks for.
    pub fn open(path: &Path) -> Result<TokenFile, DataError> {
        let file = File::open(path).map_err(|e| DataError::io(path, "open", &e))?;
        let length = file.metadata().map_err(|e| DataError::io(path, "read", &e))?.len();
        let bad = |want, got: u64| {
            let got = format!("{got} bytes");
            DataError::Format { file: path.into(), field: "length", want, got }
        };
        if length < header::SIZE {
            return Err(bad(format!("at least {} bytes, a header", header::SIZE), length));
        }
        let mut bytes = [0; header::SIZE as usize];
        read_at(&file, &mut bytes, 0).map_err(|e| DataError::io(path, "read", &e))?;
        let header = Header::from_bytes(&bytes, path)?;
        if header.file_length() != Some(length) {
            let want = match header.file_length() {
                Some(want) => format!("{want} bytes for {} tokens", header.count),
                None => format!("a length that holds {} tokens", header.count),
            };
            return Err(bad(want, length));
        }
        Ok(TokenFile { path: path.into(), file, header })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tokens in it.
    pub fn count(&self) -> u64 {
        self.header.count
    }

    /// Documents in it.
    pub fn documents(&self) -> u64 {
        self.header.documents
    }

    /// The vocabulary that its ids are below.
    pub fn vocab(&self) -> u32 {
        self.header.vocab
    }

    /// The digest of the tokenizer that made it (`Tokenizer::digest`).
    pub fn digest(&self) -> u64 {
        self.header.digest
    }

    /// The checksum of its header, which holds that of the tokens, their number and the tokenizer's digest:
    /// files that agree on it hold the same tokens, once [`verify`](TokenFile::verify) has read them.
    pub fn checksum(&self) -> u32 {
        let [.., a, b, c, d] = self.header.to_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// Whether it holds a mask: tokens that are read but not to be learnt.
    pub fn is_masked(&self) -> bool {
        self.header.masked == Masked::Yes
    }

    /// The ids at the positions `range`.
    ///
    /// # Errors
    /// A range past the end, a read that fails, an id outside the vocabulary.
    pub fn ids(&self, range: Range<u64>) -> Result<Vec<u32>, DataError> {
        self.check(&range)?;
        let width = self.header.width();
        let bytes = self.bytes(header::SIZE + range.start * width, (range.end - range.start) * width)?;
        let ids: Vec<u32> = match width {
            2 => bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))).collect(),
            _ => bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        };
        match ids.iter().position(|&id| id >= self.header.vocab) {
            None => Ok(ids),
            Some(i) => Err(DataError::Vocabulary {
                source: self.path.display().to_string(),
                at: range.start + i as u64,
                got: ids[i],
                vocab: self.header.vocab,
            }),
        }
    }

    /// Whether each token at the positions `range` is to be learnt.
    ///
    /// # Errors
    /// A range past the end, a read that fails.
    pub fn learnt(&self, range: Range<u64>) -> Result<Vec<bool>, DataError> {
        self.check(&range)?;
        if self.header.masked == Masked::No || range.is_empty() {
            return Ok(vec![true; (range.end - range.start) as usize]);
        }
        let (first, last) = (range.start / 8, (range.end - 1) / 8);
        let mask = self.header.mask_at().expect("checked when the file was opened");
        let bits = self.bytes(mask + first, last + 1 - first)?;
        Ok(range.map(|i| bits[(i / 8 - first) as usize] >> (i % 8) & 1 == 1).collect())
    }

    /// Where each document ends, in tokens: rising, the last at [`count`](TokenFile::count).
    ///
    /// # Errors
    /// A file that does not say (version 1), ends that are not rising or do not end with the tokens, a read that
    /// fails.
    pub fn ends(&self) -> Result<Vec<u64>, DataError> {
        let bad = |field, want: String, got: String| {
            Err(DataError::Format { file: self.path.clone(), field, want, got })
        };
        if self.header.version == Version::One {
            let want = "2, which says where documents end (xtrain prepare writes it)";
            return bad("version", want.into(), "1".into());
        }
        let at = self.header.ends_at().expect("checked when the file was opened");
        let bytes = self.bytes(at, self.header.documents * 8)?;
        let (mut ends, mut last) = (Vec::with_capacity(bytes.len() / 8), 0);
        for end in bytes.chunks_exact(8).map(|b| u64::from_le_bytes(std::array::from_fn(|i| b[i]))) {
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

    /// Reads the whole file once: its checksum, every id, and where documents end.
    ///
    /// # Errors
    /// Another checksum than the header's, an id outside the vocabulary, as [`ends`](TokenFile::ends), a read that
    /// fails.
    pub fn verify(&self) -> Result<(), DataError> {
        const BLOCK: u64 = 1 << 20;
        let end = self.header.file_length().expect("checked when the file was opened");
        let (mut at, mut crc) = (header::SIZE, 0);
        while at < end {
            let bytes = self.bytes(at, BLOCK.min(end - at))?;
            crc = crc32c::crc32c_append(crc, &bytes);
            at += bytes.len() as u64;
        }
        if crc != self.header.body_crc {
            return Err(DataError::Format {
                file: self.path.clone(),
                field: "checksum of the tokens",
                want: format!("{:08x}", self.header.body_crc),
                got: format!("{crc:08x}"),
            });
        }
        let mut at = 0;
        while at < self.count() {
            let next = self.count().min(at + BLOCK);
            self.ids(at..next)?;
            at = next;
        }
        match self.header.version {
            Version::One => Ok(()),
            Version::Two => self.ends().map(|_| ()),
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
        read_at(&self.file, &mut bytes, at).map_err(|e| DataError::io(&self.path, "read", &e))?;
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
