//! Run directories.
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::{DataRecord, Error, JsonLines, Metrics, Result, durable};
use crate::model::checkpoint::has_checkpoint;
use crate::model::tokenizer::Tokenizer;
use crate::tensor::faults::{self, Fault};

/// File name of the digests of the training data.
const DATA: &str = "data.json";

/// File name of the configuration.
const CONFIG: &str = "config.toml";

/// The other files of a run, directly in its directory: logs and the lock.
const FILES: [&str; 5] = ["config.toml.new", "metrics.jsonl", "samples.jsonl", "timings.jsonl", "lock"];

/// The directory of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Creates the directory of a new run with the text `config` as `config.toml`, and missing parent directories. If
    /// two runs are created with the same name at the same time, one of them fails.
    ///
    /// # Errors
    /// Those of [`RunDir::require_new`]; the directory cannot be written.
    pub fn create(path: &Path, config: &str) -> Result<RunDir> {
        if let Some(parent) = path.parent() {
            durable::ensure_dir(parent).map_err(|error| Error::io(parent, error))?;
        }
        match durable::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => RunDir::require_new(path)?,
            Err(error) => return Err(Error::io(path, error)),
            Ok(()) => {}
        }
        let run = RunDir { path: path.to_path_buf() };
        for inner in [run.path.join("checkpoints"), run.path.join("logs")] {
            durable::create_dir(&inner).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Error::Exists { path: path.to_path_buf() },
                _ => Error::io(&inner, error),
            })?;
        }
        run.write_config(config)?;
        Ok(run)
    }

    /// The directory of the run that wrote `file`: its configuration, logs, rollouts or checkpoints. `None`: `file` is none
    /// of these. `file` is an absolute path without links.
    pub fn owner(file: &Path) -> Option<&Path> {
        let is_step = |name: &str| name.starts_with("step_");
        let owns = |run: &&Path| {
            let inside = file.strip_prefix(run).unwrap_or(file).components();
            let names: Vec<_> = inside.map(|name| name.as_os_str().to_string_lossy()).collect();
            let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
            let is_written = match names[..] {
                [name] => [CONFIG, DATA].contains(&name) || FILES.contains(&name),
                ["rollouts", name] => is_step(name) && name.ends_with(".jsonl"),
                ["logs", name] => name == "session.json" || name.starts_with("events.out.tfevents"),
                ["checkpoints", step, ..] | ["best", "checkpoints", step, ..] => is_step(step),
                _ => false,
            };
            is_written && run.join(CONFIG).is_file() && (run.join(DATA).is_file() || has_checkpoint(run))
        };
        file.ancestors().skip(1).find(owns)
    }

    /// Checks that `path` does not exist, or is an empty directory.
    ///
    /// # Errors
    /// [`Error::Exists`] for a run, [`Error::NotEmpty`] for another directory; a file.
    pub fn require_new(path: &Path) -> Result<()> {
        if path.exists() && !path.is_dir() {
            return Err(Error::io(path, io::Error::other("expected a directory, found a file")));
        }
        let path = path.to_path_buf();
        match () {
            () if path.join(CONFIG).is_file() => Err(Error::Exists { path }),
            () if path.is_dir() && !is_empty(&path) => Err(Error::NotEmpty { path }),
            () => Ok(()),
        }
    }

    /// Whether `path` is what a process that was killed while it created a run left: it has directories without files,
    /// but no configuration.
    pub fn is_unfinished(path: &Path) -> bool {
        let names = path.read_dir().into_iter().flatten().flatten().map(|entry| entry.file_name());
        let names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        let is_left = |name: &String| match name.as_str() {
            "checkpoints" | "logs" => is_empty(&path.join(name)),
            name => name == "config.tmp",
        };
        !names.is_empty() && names.iter().all(is_left)
    }

    /// Replaces the configuration of the run, and removes [`RunDir::pending_config`].
    ///
    /// # Errors
    /// The file cannot be written; the old one is kept.
    pub fn write_config(&self, config: &str) -> Result<()> {
        write_durably(&self.config(), config.as_bytes())?;
        let pending = self.pending_config();
        durable::remove(&pending).map_err(|error| Error::io(&pending, error))
    }

    /// Writes [`RunDir::pending_config`] durably. A checkpoint that records this configuration is saved next, and
    /// [`RunDir::write_config`] follows.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_pending_config(&self, config: &str) -> Result<()> {
        write_durably(&self.pending_config(), config.as_bytes())
    }

    /// Writes the digests of the training data.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_data(&self, record: &DataRecord) -> Result<()> {
        write_durably(&self.path.join(DATA), record.to_json().as_bytes())
    }

    /// The tokenizer as the run uses it: a run of an earlier version adds no token to the beginning of a text. A run
    /// without `data.json` has not started.
    ///
    /// # Errors
    /// `data.json` cannot be read.
    pub fn as_recorded(&self, tokenizer: Tokenizer) -> Result<Tokenizer> {
        let path = self.path.join(DATA);
        if path.exists() && DataRecord::read(&path)?.bos.is_none() {
            return Ok(tokenizer.without_bos());
        }
        Ok(tokenizer)
    }

    /// Checks that the training data has the digests of the data with which the run was started. If files were renamed,
    /// the new names are stored.
    ///
    /// # Errors
    /// `data.json` does not exist or cannot be read; [`Error::Changed`].
    pub fn check_data(&self, found: &DataRecord) -> Result<()> {
        let record = DataRecord::read(&self.path.join(DATA))?;
        record.check(found)?;
        let renamed = record.renamed(found);
        if record == renamed { Ok(()) } else { self.write_data(&renamed) }
    }

    /// Opens the run at `path`, or `runs/PATH` if `path` is a bare name.
    ///
    /// # Errors
    /// The directory does not exist, or is a file or a device.
    pub fn open(path: &Path) -> Result<RunDir> {
        if path.exists() && !path.is_dir() {
            let found = if path.is_file() { "a file" } else { "a pipe or a device" };
            let source = io::Error::other(format!("expected the directory of a run, found {found}"));
            return Err(Error::Io { path: path.to_path_buf(), source });
        }
        let in_runs = Path::new("runs").join(path);
        let bare = path.components().count() == 1;
        for path in [Some(path), bare.then_some(in_runs.as_path())].into_iter().flatten() {
            if path.is_dir() {
                return Ok(RunDir { path: path.to_path_buf() });
            }
        }
        Err(Error::Missing { path: path.to_path_buf() })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the directory.
    pub fn name(&self) -> String {
        let whole = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        whole.file_name().map_or_else(|| "run".to_string(), |name| name.to_string_lossy().into_owned())
    }

    /// `config.toml`: the configuration, with computed values as comments.
    pub fn config(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    /// `config.toml.new`: the configuration that replaces [`RunDir::config`] after a checkpoint has recorded it. Exists
    /// only while a resume changes the configuration, or if it was killed then.
    pub fn pending_config(&self) -> PathBuf {
        self.path.join("config.toml.new")
    }

    /// `metrics.jsonl`: one line per step.
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// Opens `samples.jsonl` to append after `step`, as [`RunDir::logs_after`].
    ///
    /// # Errors
    /// As [`RunDir::logs_after`].
    pub fn samples_after(&self, step: u64) -> Result<JsonLines> {
        JsonLines::after(&self.path.join("samples.jsonl"), step)
    }

    /// Opens `metrics.jsonl` and `timings.jsonl` to append after `step`. Lines of later steps and an incomplete last
    /// line are removed; a resumed run writes them again. Damaged lines are moved to another file; see
    /// [`JsonLines::set_aside`].
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn logs_after(&self, step: u64) -> Result<(JsonLines, JsonLines)> {
        let timings = self.path.join("timings.jsonl");
        Ok((JsonLines::after(&self.metrics(), step)?, JsonLines::after(&timings, step)?))
    }

    /// [`RunDir::logs_after`]; at step 0 both files are emptied first, because a run that starts writes a line of
    /// step 0 again.
    ///
    /// # Errors
    /// As [`RunDir::logs_after`].
    pub fn logs_from(&self, step: u64) -> Result<(JsonLines, JsonLines)> {
        if step == 0 {
            for path in [self.metrics(), self.path.join("timings.jsonl")] {
                File::create(&path).map_err(|error| Error::io(&path, error))?;
            }
        }
        self.logs_after(step)
    }

    /// Writes `rollouts/step_NNNNNN.jsonl` durably.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_rollouts(&self, step: u64, lines: &[u8]) -> Result<()> {
        let dir = self.path.join("rollouts");
        durable::ensure_dir(&dir).map_err(|error| Error::io(&dir, error))?;
        write_durably(&dir.join(format!("step_{step:06}.jsonl")), lines)
    }

    /// Removes the files of `rollouts/` of later steps than `step`: a resumed run writes them again, or never.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove_rollouts_after(&self, step: u64) -> Result<()> {
        let files = fs::read_dir(self.path.join("rollouts")).into_iter().flatten().flatten();
        for path in files.map(|file| file.path()) {
            let name = path.file_name().and_then(|name| name.to_str());
            let number =
                name.and_then(|name| name.strip_prefix("step_")?.strip_suffix(".jsonl")?.parse().ok());
            if number.is_some_and(|number: u64| number > step) && !faults::on(Fault::RolloutsOfLaterStepsKept)
            {
                fs::remove_file(&path).map_err(|error| Error::io(&path, error))?;
            }
        }
        Ok(())
    }

    /// Reads `metrics.jsonl`, without its damaged lines.
    ///
    /// # Errors
    /// As [`Metrics::read`].
    pub fn read_metrics(&self) -> Result<Metrics> {
        Metrics::read(&self.metrics())
    }
}

/// Whether `path` is a directory without files.
fn is_empty(path: &Path) -> bool {
    path.read_dir().is_ok_and(|mut files| files.next().is_none())
}

/// Replaces a file atomically. It is either complete or unchanged, also after a power failure.
fn write_durably(path: &Path, bytes: &[u8]) -> Result<()> {
    durable::write(path, bytes).map_err(|error| Error::io(path, error))
}
