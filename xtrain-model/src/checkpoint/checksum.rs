//! CRC-32C of bytes on their way to or from a file.
use super::fs::{ReadFile, WriteFile};
use std::io;

/// A file being read whose bytes are summed on the way.
pub(super) struct Summed<'a> {
    pub(super) file: &'a mut dyn ReadFile,
    pub(super) crc: u32,
}

impl Summed<'_> {
    /// Fills `buffer` with the next bytes.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read(buffer)?;
        self.crc = crc32c::crc32c_append(self.crc, buffer);
        Ok(())
    }

    /// Fills `buffer` with the next bytes of a part of the file; returns the checksum of the part so far, which was
    /// `crc` before. [`Summed::append`] adds the part to that of the file.
    pub(super) fn read_within(&mut self, buffer: &mut [u8], crc: u32) -> io::Result<u32> {
        self.file.read(buffer)?;
        Ok(crc32c::crc32c_append(crc, buffer))
    }

    /// Adds a part of `length` bytes that was read, and its checksum.
    pub(super) fn append(&mut self, crc: u32, length: usize) {
        self.crc = crc32c::crc32c_combine(self.crc, crc, length);
    }
}

/// A file being written whose bytes are counted and summed on the way.
pub(super) struct Counted {
    pub(super) file: Box<dyn WriteFile>,
    pub(super) length: u64,
    pub(super) crc: u32,
}

impl Counted {
    /// A file to which nothing was written yet.
    pub(super) fn new(file: Box<dyn WriteFile>) -> Counted {
        Counted { file, length: 0, crc: 0 }
    }

    /// Appends all of `bytes`.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write(bytes)?;
        self.length += bytes.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        Ok(())
    }
}

/// A checksum as eight hexadecimal digits: how manifests spell it.
pub(super) mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(in crate::checkpoint) fn serialize<S: Serializer>(crc: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{crc:08x}"))
    }

    pub(in crate::checkpoint) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        let digits = String::deserialize(from)?;
        match u32::from_str_radix(&digits, 16) {
            Ok(crc) if digits.len() == 8 => Ok(crc),
            _ => Err(D::Error::custom(format_args!("want eight hexadecimal digits, got {digits:?}"))),
        }
    }
}
