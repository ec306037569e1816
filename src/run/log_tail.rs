//! Logs that another process appends to.
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::jsonl::{Line, SkippedLines, object};
use super::{Error, Result};
use crate::tensor::faults::{self, Fault};

/// The finished lines of a JSON Lines log, read as they are appended.
#[derive(Debug)]
pub(crate) struct LogTail {
    path: PathBuf,
    /// Number of bytes read, up to the end of a line.
    offset: u64,
    lines: usize,
    skipped: Option<SkippedLines>,
}

/// The lines that were appended since the last call.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Appended {
    /// The log was truncated or replaced: these are all its lines.
    pub(crate) restarted: bool,
    /// The step and the fields of each line.
    pub(crate) lines: Vec<(u64, Map<String, Value>)>,
}

impl LogTail {
    /// The log at `path`, which need not exist yet.
    pub(crate) fn new(path: &Path) -> LogTail {
        LogTail { path: path.to_path_buf(), offset: 0, lines: 0, skipped: None }
    }

    /// The lines that were finished since the last call. An unfinished last line is left for a later call. A log that
    /// does not exist has no lines. A finished line that is not an object with a whole number as `step` is skipped; see
    /// [`LogTail::skipped`].
    ///
    /// # Errors
    /// The file cannot be read; it has finished lines, and none of them is valid.
    pub(crate) fn read(&mut self) -> Result<Appended> {
        let io = |error| Error::io(&self.path, error);
        let mut file = match File::open(&self.path).map_err(io) {
            Err(Error::Missing { .. }) => return Ok(self.restart()),
            file => file?,
        };
        if file.metadata().map_err(io)?.len() < self.offset {
            self.restart();
            return Ok(Appended { restarted: true, ..self.read()? });
        }
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(self.offset)).and_then(|_| file.read_to_end(&mut bytes)).map_err(io)?;
        let end_of = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut end = end_of(&bytes);
        if faults::on(Fault::WatchOmitsLastLine) {
            end = end_of(&bytes[..end.saturating_sub(1)]);
        }
        let (mut found, mut damage) = (Appended::default(), None);
        let mut number = self.lines;
        for line in bytes[..end].split_inclusive(|byte| *byte == b'\n') {
            number += 1;
            let line = Line { number, bytes: line[..line.len() - 1].to_vec(), finished: true };
            match object(&self.path, &line) {
                Ok((fields, step)) => found.lines.push((step, fields)),
                // A log that was truncated and has grown again since.
                Err(_) if self.offset > 0 => {
                    self.restart();
                    return Ok(Appended { restarted: true, ..self.read()? });
                }
                Err(error) => {
                    SkippedLines::count(&mut self.skipped, &self.path, number);
                    damage = damage.or(Some(error));
                }
            }
        }
        if let (true, Some(error)) = (found.lines.is_empty(), damage) {
            self.restart();
            return Err(error);
        }
        (self.offset, self.lines) = (self.offset + end as u64, number);
        Ok(found)
    }

    /// The damaged lines that were skipped since the first line.
    pub(crate) fn skipped(&self) -> Option<&SkippedLines> {
        self.skipped.as_ref()
    }

    fn restart(&mut self) -> Appended {
        let restarted = self.offset > 0;
        (self.offset, self.lines, self.skipped) = (0, 0, None);
        Appended { restarted, lines: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The steps that are read after `text` is written to the file; `None`: it is removed. And whether it restarted.
    fn read(tail: &mut LogTail, text: Option<&str>) -> (Vec<u64>, bool) {
        match text {
            Some(text) => fs::write(&tail.path, text).unwrap(),
            None => drop(fs::remove_file(&tail.path)),
        }
        let found = tail.read().unwrap();
        (found.lines.iter().map(|line| line.0).collect(), found.restarted)
    }

    #[test]
    fn a_log_that_is_removed_or_replaced_is_read_from_its_first_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut tail = LogTail::new(&path);
        let lines = ["{\"step\":1}\n", "{\"step\":2}\n", "{\"step\":3}\n"];
        assert_eq!(read(&mut tail, None), (vec![], false), "it has never existed");
        assert_eq!(read(&mut tail, Some(&lines[..2].concat())), (vec![1, 2], false));
        assert_eq!(read(&mut tail, Some(&lines.concat())), (vec![3], false));
        assert_eq!(read(&mut tail, Some(lines[1])), (vec![2], true), "it is shorter");
        assert_eq!(read(&mut tail, None), (vec![], true));
        assert_eq!(read(&mut tail, Some(lines[2])), (vec![3], false));
    }

    #[test]
    fn damaged_lines_are_skipped_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut tail = LogTail::new(&path);
        let text = "{\"step\":1}\nno object\n".to_string();
        assert_eq!(read(&mut tail, Some(&text)), (vec![1], false));
        let skipped = |tail: &LogTail| tail.skipped().map(|skipped| (skipped.first, skipped.lines));
        assert_eq!(skipped(&tail), Some((2, 1)));
        // A damaged line may be of a log that was replaced, so this one is read again.
        let text = text + "[3]\n{\"step\":4}\n";
        assert_eq!(read(&mut tail, Some(&text)), (vec![1, 4], true));
        assert_eq!(skipped(&tail), Some((2, 2)));
        assert_eq!(read(&mut tail, Some("{\"step\":1}\n")), (vec![1], true));
        assert_eq!(skipped(&tail), None);
        fs::write(&path, "no object\nno step\n").unwrap();
        let error = tail.read().unwrap_err().to_string();
        assert!(error.contains(":1"), "no line is valid: {error}");
    }
}
