//! JSON Lines logs.
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::{Error, Result, durable};

/// A log that is appended to.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
    line: Vec<u8>,
}

impl JsonLines {
    /// Opens or creates the log at `path`, durably, to append after `step`. Truncates it before the first line of a
    /// later step and before an incomplete last line. The text after the line of `step` may be invalid, for example
    /// after a power failure.
    ///
    /// # Errors
    /// The file cannot be read or written; a line before `step` is not an object with a `step`.
    pub fn after(path: &Path, step: u64) -> Result<JsonLines> {
        let io = |error| Error::io(path, error);
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        durable::sync_name(path).map_err(io)?;
        let (mut keep, mut last_step) = (0, 0);
        for line in Lines::new(path, &file) {
            let line = line?;
            match object(path, &line) {
                Ok((_, at)) if line.finished && at <= step => last_step = at,
                Err(error) if line.finished && last_step < step => return Err(error),
                _ => break,
            }
            keep += line.bytes.len() as u64 + 1;
        }
        file.set_len(keep).and_then(|()| file.seek(SeekFrom::Start(keep))).map_err(io)?;
        Ok(JsonLines { path: path.to_path_buf(), file, line: Vec::new() })
    }

    /// Writes one object as one line in a single write, so that concurrent readers see complete lines.
    ///
    /// # Errors
    /// Writing failed. A partially written line is truncated again if possible.
    ///
    /// # Panics
    /// If `object` cannot be serialized.
    pub fn write(&mut self, object: &impl Serialize) -> Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, object).expect("a record with string keys is JSON");
        self.line.push(b'\n');
        let at = self.file.stream_position().map_err(|error| Error::io(&self.path, error))?;
        self.file.write_all(&self.line).map_err(|error| {
            let _ = self.file.set_len(at).and_then(|()| self.file.seek(SeekFrom::Start(at)));
            Error::io(&self.path, error)
        })
    }

    /// Flushes the lines to the disk.
    ///
    /// # Errors
    /// The operating system fails to write them.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|error| Error::io(&self.path, error))
    }
}

/// A line of a log.
pub(super) struct Line {
    /// Line number, from 1.
    pub(super) number: usize,
    /// Its text without the line break.
    pub(super) bytes: Vec<u8>,
    /// Whether it has a line break.
    pub(super) finished: bool,
}

/// The lines of a log.
pub(super) struct Lines<'a> {
    path: &'a Path,
    reader: BufReader<&'a File>,
    number: usize,
}

impl<'a> Lines<'a> {
    pub(super) fn new(path: &'a Path, file: &'a File) -> Lines<'a> {
        Lines { path, reader: BufReader::new(file), number: 0 }
    }
}

impl Iterator for Lines<'_> {
    type Item = Result<Line>;

    fn next(&mut self) -> Option<Result<Line>> {
        let mut bytes = Vec::new();
        match self.reader.read_until(b'\n', &mut bytes) {
            Err(error) => return Some(Err(Error::io(self.path, error))),
            Ok(0) => return None,
            Ok(_) => {}
        }
        self.number += 1;
        let finished = bytes.pop_if(|last| *last == b'\n').is_some();
        Some(Ok(Line { number: self.number, bytes, finished }))
    }
}

/// The object of a line and its `step`.
pub(super) fn object(path: &Path, line: &Line) -> Result<(serde_json::Map<String, Value>, u64)> {
    let bad = |reason: String| Error::Line { path: path.to_path_buf(), line: line.number, reason };
    let value = serde_json::from_slice(&line.bytes).map_err(|error| bad(format!("invalid JSON: {error}")))?;
    let Value::Object(object) = value else { return Err(bad("expected a JSON object".to_string())) };
    match object.get("step").and_then(Value::as_u64) {
        Some(step) => Ok((object, step)),
        None => Err(bad("expected a whole number as `step`".to_string())),
    }
}
