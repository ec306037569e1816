//! JSON Lines logs.
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::{Error, Result, durable};
use crate::model::json;
use crate::report::units;
use crate::tensor::faults::{self, Fault};

/// A log that is appended to.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
    line: Vec<u8>,
    set_aside: Option<SetAside>,
}

/// Damaged lines of a log, which were moved to another file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// The log.
    pub log: PathBuf,
    /// The file with the damaged lines.
    pub path: PathBuf,
    /// Number of damaged lines.
    pub lines: usize,
}

impl fmt::Display for SetAside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SetAside { log, path, lines } = self;
        let (log, path) = (log.display(), path.display());
        let damaged = units::many(*lines as u64, "damaged line");
        write!(f, "{log}: {damaged} moved to {path}; their steps are missing from the log")
    }
}

/// Lines of a log that a reader skipped, because they are not objects with a whole number as `step`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedLines {
    /// The log.
    pub log: PathBuf,
    /// The number of the first skipped line, from 1.
    pub first: usize,
    /// Number of skipped lines.
    pub lines: usize,
}

impl SkippedLines {
    /// Counts line `number` of the log `path`.
    pub(super) fn count(skipped: &mut Option<SkippedLines>, path: &Path, number: usize) {
        if faults::on(Fault::SkippedLinesUnreported) {
            return;
        }
        let new = || SkippedLines { log: path.to_path_buf(), first: number, lines: 0 };
        skipped.get_or_insert_with(new).lines += 1;
    }
}

impl fmt::Display for SkippedLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SkippedLines { log, first, lines } = self;
        let damaged = units::many(*lines as u64, "damaged line");
        write!(f, "{}: skipped {damaged}, the first is line {first}", log.display())
    }
}

impl JsonLines {
    /// Opens or creates the log at `path`, durably, to append after `step`. Removes the lines of later steps and an
    /// incomplete last line. The text after the line of `step` may be invalid, for example after a power failure.
    /// A damaged line before it, which is not an object with a `step` or whose step is out of order, is moved to a file
    /// of the same name with `.damaged`; see [`JsonLines::set_aside`].
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn after(path: &Path, step: u64) -> Result<JsonLines> {
        let io = |error| Error::io(path, error);
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        durable::sync_name(path).map_err(io)?;
        let modified = file.metadata().and_then(|data| data.modified());
        let Kept { lines, damaged } = kept(path, &file, step)?;
        let set_aside = match damaged.is_empty() {
            true => None,
            false => {
                let aside = set_aside(path, &damaged)?;
                durable::write(path, &joined(&lines)).map_err(io)?;
                file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
                Some(aside)
            }
        };
        let keep = lines.iter().map(|line| line.len() as u64 + 1).sum();
        file.set_len(keep).and_then(|()| file.seek(SeekFrom::Start(keep))).map_err(io)?;
        // the time of the last line; nothing but the plots of a resumed run depends on it
        let _ = modified.and_then(|time| file.set_modified(time));
        Ok(JsonLines { path: path.to_path_buf(), file, line: Vec::new(), set_aside })
    }

    /// The damaged lines that were found when the log was opened.
    pub fn set_aside(&self) -> Option<&SetAside> {
        self.set_aside.as_ref()
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

/// The lines of a log up to a step.
#[derive(Default)]
struct Kept {
    lines: Vec<Vec<u8>>,
    /// Lines before the last kept one that are no lines of a log.
    damaged: Vec<Vec<u8>>,
}

/// Reads a log up to the last line of a step of at most `last`.
fn kept(path: &Path, file: &File, last: u64) -> Result<Kept> {
    let mut kept = Kept::default();
    // The step of the last kept line, and the lines after it.
    let (mut step, mut since) = (0, Vec::new());
    for line in Lines::new(path, file) {
        let line = line?;
        let found = object(path, &line).ok().map(|(_, step)| step);
        match found.filter(|found| line.finished && (step..=last).contains(found)) {
            Some(found) => {
                step = found;
                kept.damaged.extend(since.drain(..).map(|line: Line| line.bytes));
                kept.lines.push(line.bytes);
            }
            None => since.push(line),
        }
    }
    // At the end, lines of later steps and a line that was not finished are no damage. After the line of `last`, every
    // line is written again.
    since.retain(|line| step < last && line.finished && object(path, line).is_err());
    kept.damaged.extend(since.into_iter().map(|line| line.bytes));
    Ok(kept)
}

fn joined(lines: &[Vec<u8>]) -> Vec<u8> {
    lines.iter().flat_map(|line| line.iter().copied().chain([b'\n'])).collect()
}

/// Appends damaged lines of the log `path` to the file next to it.
fn set_aside(path: &Path, damaged: &[Vec<u8>]) -> Result<SetAside> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".damaged");
    let aside = path.with_file_name(name);
    let io = |error| Error::io(&aside, error);
    let mut file = OpenOptions::new().append(true).create(true).open(&aside).map_err(io)?;
    file.write_all(&joined(damaged)).and_then(|()| file.sync_all()).map_err(io)?;
    Ok(SetAside { log: path.to_path_buf(), lines: damaged.len(), path: aside })
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
    let value = serde_json::from_slice(&line.bytes)
        .map(json::sorted)
        .map_err(|error| bad(json::found_at_column(&error)))?;
    let Value::Object(object) = value else { return Err(bad("expected a JSON object".to_string())) };
    match object.get("step").and_then(Value::as_u64) {
        Some(step) => Ok((object, step)),
        None => Err(bad("expected a whole number as `step`".to_string())),
    }
}
