//! Where the files of a run lie.
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{DataRecord, Error, JsonLines, Metrics, Result};
use crate::config::RunConfig;

/// The directory of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Makes the directory of a new run with its `config.toml`, and the directories above it where they
    /// are missing. Of two runs that start with one name, one is refused.
    ///
    /// # Errors
    /// Something is there already, or cannot be written.
    pub fn create(path: &Path, config: &RunConfig) -> Result<RunDir> {
        let io = |error| Error::io(path, error);
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).map_err(|error| Error::io(above, error))?;
        }
        fs::create_dir(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Error::Exists { path: path.to_path_buf() },
            _ => io(error),
        })?;
        let run = RunDir { path: path.to_path_buf() };
        for inner in [run.checkpoints(), run.logs()] {
            fs::create_dir(&inner).map_err(|error| Error::io(&inner, error))?;
        }
        write_durably(&run.config(), &config.to_toml())?;
        Ok(run)
    }

    /// Writes the configuration that the run goes on with over the one that it had.
    ///
    /// # Errors
    /// The file cannot be written; the old one stays then.
    pub fn write_config(&self, config: &RunConfig) -> Result<()> {
        write_durably(&self.config(), &config.to_toml())
    }

    /// Writes down what the run is trained on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_data(&self, record: &DataRecord) -> Result<()> {
        write_durably(&self.data(), &record.to_json())
    }

    /// Refuses to go on with other data than the run began with.
    ///
    /// # Errors
    /// `data.json` is not there or cannot be read; [`Error::Changed`].
    pub fn check_data(&self, found: &DataRecord) -> Result<()> {
        DataRecord::read(&self.data())?.check(found)
    }

    /// The run at `path`, or of that name under `runs/` where `path` is a bare name.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn open(path: &Path) -> Result<RunDir> {
        let named = Path::new("runs").join(path);
        let bare = path.components().count() == 1;
        for path in [Some(path), bare.then_some(named.as_path())].into_iter().flatten() {
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

    /// `config.toml`: the resolved configuration.
    pub fn config(&self) -> PathBuf {
        self.path.join("config.toml")
    }

    /// `data.json`: digests of what the run is trained on.
    pub fn data(&self) -> PathBuf {
        self.path.join("data.json")
    }

    /// `metrics.jsonl`: a line per step.
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// `timings.jsonl`: whatever a clock says.
    pub fn timings(&self) -> PathBuf {
        self.path.join("timings.jsonl")
    }

    /// `checkpoints/`.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// `rollouts/`.
    pub fn rollouts(&self) -> PathBuf {
        self.path.join("rollouts")
    }

    /// `logs/`.
    pub fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// Opens `metrics.jsonl` and `timings.jsonl` to write on after `step`: lines of later steps, which a
    /// resumed run writes again, are cut off, as is a last line that was not finished.
    ///
    /// # Errors
    /// A file cannot be read or written, or holds a line before its last that is not of the log's kind.
    pub fn logs_after(&self, step: u64) -> Result<(JsonLines, JsonLines)> {
        Ok((JsonLines::after(&self.metrics(), step)?, JsonLines::after(&self.timings(), step)?))
    }

    /// The curves of `metrics.jsonl`.
    ///
    /// # Errors
    /// The file is not there, cannot be read, or has a line that is not an object with a `step`.
    pub fn read_metrics(&self) -> Result<Metrics> {
        Metrics::read(&self.metrics())
    }
}

/// A file that is there whole or as it was, also after a power cut.
fn write_durably(path: &Path, text: &str) -> Result<()> {
    let draft = path.with_extension("tmp");
    let write = || {
        let mut file = File::create(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        match path.parent() {
            Some(dir) if cfg!(unix) => File::open(dir)?.sync_all(),
            _ => Ok(()),
        }
    };
    write().map_err(|error| Error::io(path, error))
}
