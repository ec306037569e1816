//! TensorBoard event files: scalars in the TFRecord format.
//!
//! A record is its length (u64), the masked CRC-32C of the length, the bytes, and their masked CRC-32C, all little
//! endian. The bytes are the protocol buffer `tensorflow.Event`.
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

/// A file of scalars.
#[derive(Debug)]
pub(crate) struct EventFile {
    file: File,
}

impl EventFile {
    /// Creates the file, or replaces it. TensorBoard reads files whose name contains `tfevents`.
    pub(crate) fn create(path: &Path) -> io::Result<EventFile> {
        let mut file = EventFile { file: File::create(path)? };
        let mut event = Vec::new();
        double(&mut event, 1, 0.0);
        bytes(&mut event, 3, b"brain.Event:2");
        file.record(&event)?;
        Ok(file)
    }

    /// Appends the scalars of `step`. `wall_time` is in seconds since 1970.
    pub(crate) fn write<'a>(
        &mut self,
        step: u64,
        wall_time: f64,
        scalars: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> io::Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in scalars {
            let mut scalar = Vec::new();
            bytes(&mut scalar, 1, tag.as_bytes());
            scalar.push(2 << 3 | 5); // simple_value: float
            scalar.extend((value as f32).to_le_bytes());
            bytes(&mut summary, 1, &scalar);
        }
        let mut event = Vec::new();
        double(&mut event, 1, wall_time);
        event.push(2 << 3); // step: varint
        varint(&mut event, step);
        bytes(&mut event, 5, &summary);
        self.record(&event)
    }

    fn record(&mut self, event: &[u8]) -> io::Result<()> {
        let length = (event.len() as u64).to_le_bytes();
        let mut record = length.to_vec();
        record.extend(masked(&length));
        record.extend(event);
        record.extend(masked(event));
        let at = self.file.stream_position()?;
        self.file.write_all(&record).inspect_err(|_| {
            // a part of a record would end the file for its readers
            let _ = self.file.set_len(at).and_then(|()| self.file.seek(SeekFrom::Start(at)));
        })
    }
}

/// The CRC-32C that TFRecord files store: rotated, plus a constant.
fn masked(data: &[u8]) -> [u8; 4] {
    let crc = crc32c::crc32c(data);
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

fn varint(to: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        to.push(n as u8 | 0x80);
        n >>= 7;
    }
    to.push(n as u8);
}

fn double(to: &mut Vec<u8>, field: u8, value: f64) {
    to.push(field << 3 | 1);
    to.extend(value.to_le_bytes());
}

fn bytes(to: &mut Vec<u8>, field: u8, value: &[u8]) {
    to.push(field << 3 | 2);
    varint(to, value.len() as u64);
    to.extend(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_bytes_of_the_format() {
        let path = std::env::temp_dir().join(format!("xtrain-tfevents-{}", std::process::id()));
        let mut file = EventFile::create(&path).unwrap();
        file.write(300, 1.5, [("reward", 0.5), ("loss", -2.0)]).unwrap();
        let found = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let event = b"\x09\0\0\0\0\0\0\xf8\x3f\x10\xac\x02\x2a\x1c\x0a\x0d\x0a\x06reward\x15\0\0\0\x3f\x0a\x0b\x0a\x04loss\x15\0\0\0\xc0";
        let version = b"\x09\0\0\0\0\0\0\0\0\x1a\x0dbrain.Event:2";
        let mut at = 0;
        for want in [&version[..], &event[..]] {
            let length = u64::from_le_bytes(found[at..at + 8].try_into().unwrap()) as usize;
            assert_eq!(length, want.len());
            assert_eq!(found[at + 8..at + 12], masked(&found[at..at + 8]));
            assert_eq!(&found[at + 12..at + 12 + length], want);
            assert_eq!(found[at + 12 + length..at + 16 + length], masked(want));
            at += 16 + length;
        }
        assert_eq!(at, found.len());
    }

    #[test]
    fn the_checksum_is_that_of_the_format() {
        // crc32c("123456789") = 0xe3069283
        assert_eq!(
            u32::from_le_bytes(masked(b"123456789")),
            0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8)
        );
    }
}
