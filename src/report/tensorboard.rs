//! TensorBoard event files: scalars in the TFRecord format.
//!
//! A record is its length (u64), the masked CRC-32C of the length, the bytes, and their masked CRC-32C, all little
//! endian. The bytes are the protocol buffer `tensorflow.Event`.
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use crate::tensor::faults::{self, Fault};

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
            if !faults::on(Fault::PartOfRecordKept) {
                let _ = self.file.set_len(at).and_then(|()| self.file.seek(SeekFrom::Start(at)));
            }
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
    use tempfile::NamedTempFile;

    use super::*;

    #[test]
    fn a_file_has_the_bytes_of_the_format() {
        let path = NamedTempFile::new().unwrap().into_temp_path();
        let mut file = EventFile::create(&path).unwrap();
        file.write(300, 1.5, [("reward", 0.5), ("loss", -2.0)]).unwrap();
        let found = std::fs::read(&path).unwrap();
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

    /// Writes events in a process whose files have at most 4 KiB or 8 KiB, and ignores errors as a run does. Returns the
    /// bytes of the file.
    #[cfg(all(unix, feature = "faults"))]
    fn limited(name: &str) -> Vec<u8> {
        let path = NamedTempFile::new().unwrap().into_temp_path();
        let mut shell = std::process::Command::new("sh");
        shell
            .args(["-c", "trap '' XFSZ && ulimit -f 8 && exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap());
        shell.args(["--exact", "report::tensorboard::tests::events_until_the_file_is_full", "--ignored"]);
        // through pipes: the limit is also that of a log that the output is appended to
        let output = shell.env("XTRAIN_EVENTS", &path).env("XTRAIN_FAULT", name).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        std::fs::read(&path).unwrap()
    }

    /// What [`limited`] starts.
    #[cfg(all(unix, feature = "faults"))]
    #[test]
    #[ignore = "started by a_record_that_a_full_disk_cuts_is_removed"]
    fn events_until_the_file_is_full() {
        let path = std::env::var_os("XTRAIN_EVENTS").expect("XTRAIN_EVENTS is the path of the file");
        let write = || {
            let mut file = EventFile::create(Path::new(&path)).unwrap();
            let errors = (0..300).filter(|&step| file.write(step, 0.0, [("loss", 1.0)]).is_err()).count();
            assert!(errors > 0);
        };
        match std::env::var("XTRAIN_FAULT").as_deref() {
            Ok("part") => faults::with(Fault::PartOfRecordKept, write),
            _ => write(),
        }
    }

    /// The bytes of the whole records.
    #[cfg(all(unix, feature = "faults"))]
    fn whole(file: &[u8]) -> usize {
        let mut at = 0;
        while let Some(length) = file.get(at..at + 8) {
            let next = at + 16 + u64::from_le_bytes(length.try_into().unwrap()) as usize;
            if next > file.len() {
                break;
            }
            at = next;
        }
        at
    }

    #[cfg(all(unix, feature = "faults"))]
    #[test]
    fn a_record_that_a_full_disk_cuts_is_removed() {
        let found = limited("whole");
        assert!(found.len() > 3000 && whole(&found) == found.len(), "{} bytes", found.len());
        let found = limited("part");
        assert!(whole(&found) < found.len(), "the fault");
    }
}
