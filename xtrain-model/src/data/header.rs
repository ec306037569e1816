//! The 64-byte header of a token file.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `XTOK\r\n\x1a\n` |
//! | 8..12 | version: 3; 2 for a file without the name of its tokenizer, 1 also without document ends |
//! | 12..16 | bytes per id: 2 or 4 |
//! | 16..20 | 1 if a target mask follows the ids, else 0 |
//! | 20..24 | vocabulary size |
//! | 24..32 | digest of the tokenizer |
//! | 32..40 | number of tokens |
//! | 40..48 | number of documents |
//! | 48..52 | CRC-32C of everything after the header |
//! | 52..60 | 0 |
//! | 60..64 | CRC-32C of bytes 0..60 |
//!
//! All numbers are little-endian. The ids follow the header. The optional mask has one bit per token (bit i % 8 of
//! byte i / 8): 1 if the token is a target. From version 2, the end of each document in tokens follows, 8 bytes each,
//! increasing, the last one equal to the number of tokens. From version 3, the name of the tokenizer follows: `bytes` or
//! the path of a file or directory, at most 4096 bytes of UTF-8, and the CRC-32C of these bytes. No other checksum
//! includes the name.
use std::path::Path;

use super::error::DataError;
use crate::tokenizer::MAX_VOCABULARY;

pub(super) const SIZE: u64 = 64;
/// Maximum length of the name of a tokenizer in bytes.
pub(super) const MAX_NAME: u64 = 4096;
const MAGIC: [u8; 8] = *b"XTOK\r\n\x1a\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: Version,
    pub(super) masked: bool,
    pub(super) vocab: u32,
    pub(super) digest: u64,
    pub(super) count: u64,
    pub(super) documents: u64,
    pub(super) body_crc: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// Without document ends.
    One = 1,
    /// With a table of document ends after the mask.
    Two = 2,
    /// With the name of the tokenizer after the document ends.
    Three = 3,
}

impl Header {
    /// Bytes per id: 2 if the vocabulary fits 16 bits, else 4.
    pub(super) fn width(&self) -> u64 {
        if self.vocab <= 1 << 16 { 2 } else { 4 }
    }

    /// The offset of the mask. `None`: it overflows.
    pub(super) fn mask_at(&self) -> Option<u64> {
        self.count.checked_mul(self.width())?.checked_add(SIZE)
    }

    /// The offset of the table of document ends. `None`: it overflows.
    pub(super) fn ends_at(&self) -> Option<u64> {
        let mask = if self.masked { self.count.div_ceil(8) } else { 0 };
        self.mask_at()?.checked_add(mask)
    }

    /// The size of the file up to the name of the tokenizer. `None`: it overflows.
    pub(super) fn body_end(&self) -> Option<u64> {
        let ends = if self.version == Version::One { 0 } else { self.documents.checked_mul(8)? };
        self.ends_at()?.checked_add(ends)
    }

    pub(super) fn to_bytes(self) -> [u8; SIZE as usize] {
        let mut bytes = [0; SIZE as usize];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(8, &(self.version as u32).to_le_bytes());
        put(12, &(self.width() as u32).to_le_bytes());
        put(16, &u32::from(self.masked).to_le_bytes());
        put(20, &self.vocab.to_le_bytes());
        put(24, &self.digest.to_le_bytes());
        put(32, &self.count.to_le_bytes());
        put(40, &self.documents.to_le_bytes());
        put(48, &self.body_crc.to_le_bytes());
        let crc = crc32c::crc32c_append(0, &bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header. An error names the first invalid field.
    pub(super) fn from_bytes(bytes: &[u8; SIZE as usize], file: &Path) -> Result<Header, DataError> {
        let bad =
            |field, want: String, got: String| DataError::Format { file: file.into(), field, want, got };
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if bytes[..8] != MAGIC {
            let text = |bytes: &[u8]| format!("{:?}", bytes.escape_ascii().to_string());
            return Err(bad("magic", text(&MAGIC), text(&bytes[..8])));
        }
        let version = match u32_at(8) {
            1 => Version::One,
            2 => Version::Two,
            3 => Version::Three,
            other => return Err(bad("version", "1, 2 or 3".into(), other.to_string())),
        };
        let crc = crc32c::crc32c_append(0, &bytes[..60]);
        if u32_at(60) != crc {
            return Err(bad("checksum of the header", format!("{crc:08x}"), format!("{:08x}", u32_at(60))));
        }
        if u32_at(16) > 1 {
            return Err(bad("mask", "0 or 1".into(), u32_at(16).to_string()));
        }
        let header = Header {
            version,
            masked: u32_at(16) == 1,
            vocab: u32_at(20),
            digest: u64_at(24),
            count: u64_at(32),
            documents: u64_at(40),
            body_crc: u32_at(48),
        };
        if !(1..=MAX_VOCABULARY).contains(&header.vocab) {
            return Err(bad("vocabulary", format!("1 to {MAX_VOCABULARY}"), header.vocab.to_string()));
        }
        if u64::from(u32_at(12)) != header.width() {
            let want = format!("{} for a vocabulary of {}", header.width(), header.vocab);
            return Err(bad("bytes per id", want, u32_at(12).to_string()));
        }
        if u64_at(52) != 0 {
            return Err(bad("bytes 52 to 60", "0".into(), u64_at(52).to_string()));
        }
        if header.documents > header.count {
            let want = format!("at most {} (tokens)", header.count);
            return Err(bad("documents", want, header.documents.to_string()));
        }
        Ok(header)
    }
}
