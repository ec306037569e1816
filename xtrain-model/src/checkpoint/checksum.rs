//! CRC-32C of the bytes read from or written to a file.
use std::io;

use super::fs::{ReadFile, WriteFile};

/// Reads a file and computes the CRC-32C of its bytes.
pub(super) struct ChecksummedReader<'a> {
    pub(super) file: &'a mut dyn ReadFile,
    pub(super) crc: u32,
}

impl<'a> ChecksummedReader<'a> {
    pub(super) fn new(file: &'a mut dyn ReadFile) -> ChecksummedReader<'a> {
        ChecksummedReader { file, crc: 0 }
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read(buffer)?;
        self.crc = crc32c::crc32c_append(self.crc, buffer);
        Ok(())
    }

    /// Fills `buffer` with the next bytes of a section of the file. `crc` is the checksum of the section so far;
    /// returns the updated checksum. [`ChecksummedReader::append`] adds the section to the file's checksum.
    pub(super) fn read_section(&mut self, buffer: &mut [u8], crc: u32) -> io::Result<u32> {
        self.file.read(buffer)?;
        Ok(crc32c::crc32c_append(crc, buffer))
    }

    /// Adds a section of `length` bytes with checksum `crc`.
    pub(super) fn append(&mut self, crc: u32, length: usize) {
        self.crc = crc32c::crc32c_combine(self.crc, crc, length);
    }
}

/// Writes a file, counts its bytes and computes their CRC-32C.
pub(super) struct ChecksummedWriter {
    pub(super) file: Box<dyn WriteFile>,
    pub(super) length: u64,
    pub(super) crc: u32,
}

impl ChecksummedWriter {
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write(bytes)?;
        self.length += bytes.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        Ok(())
    }
}

/// Serializes a checksum as eight hexadecimal digits, the form that manifests use.
pub(super) mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's `with` passes a reference")]
    pub(crate) fn serialize<S: Serializer>(crc: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{crc:08x}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        let digits = String::deserialize(from)?;
        match u32::from_str_radix(&digits, 16) {
            Ok(crc) if digits.len() == 8 => Ok(crc),
            _ => Err(D::Error::custom(format_args!("expected eight hexadecimal digits, found {digits:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    #[derive(serde::Deserialize)]
    struct Record {
        #[serde(with = "super::hex")]
        crc: u32,
    }

    #[test]
    fn a_checksum_has_eight_digits() {
        let read = |digits: &str| serde_json::from_str::<Record>(&format!("{{\"crc\":\"{digits}\"}}"));
        assert_eq!(read("000000ab").unwrap().crc, 0xab);
        for digits in ["ab", "0000000ab", "000000xy"] {
            assert!(read(digits).is_err(), "{digits}");
        }
    }
}
