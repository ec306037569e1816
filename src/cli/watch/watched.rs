//! A run that may not exist yet.
use std::path::{Path, PathBuf};

use crate::cli::exit::CliError;
use crate::cli::logs::warn_of_skipped;
use crate::run::{self, Activity, RunDir, RunView, has_checkpoint};
use crate::tensor::faults::{self, Fault};

/// The run of `xtrain watch`.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) run: PathBuf,
    /// `None`: the directory does not exist, or has no file of a run.
    pub(super) view: Option<RunView>,
    /// Whether a call has looked for the run.
    pub(super) looked_for: bool,
    /// The logs with damaged lines of which a warning was printed.
    pub(super) warned: Vec<PathBuf>,
}

impl Watched {
    /// The run at `path`, not read yet.
    pub(super) fn new(path: &Path) -> Watched {
        Watched { run: path.to_path_buf(), view: None, looked_for: false, warned: Vec::new() }
    }

    /// Reads what was written since the last call.
    ///
    /// # Errors
    /// A log cannot be read, or has finished lines of which none is valid; the first call finds a file, or a directory
    /// of something else.
    pub(super) fn refresh(&mut self) -> Result<(), CliError> {
        if self.view.is_none() {
            let is_first = !std::mem::replace(&mut self.looked_for, true);
            self.view = match RunDir::open(&self.run) {
                Ok(run) if is_first && is_other(run.path()) && !has_begun(&run) => {
                    let error = CliError::from(run::Error::Missing { path: run.metrics() });
                    return Err(error.hint("expected the directory of a run of xtrain train or xtrain grpo"));
                }
                Ok(run) => has_begun(&run).then(|| RunView::new(&run)),
                // It may be created later.
                Err(run::Error::Missing { .. }) => None,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(self.view.iter_mut().try_for_each(RunView::refresh)?)
    }

    /// Warns once of each log with damaged lines.
    pub(super) fn warn_of_skipped(&mut self) {
        for lines in self.view.iter().flat_map(RunView::skipped) {
            if !self.warned.contains(&lines.log) {
                warn_of_skipped([lines]);
                self.warned.push(lines.log.clone());
            }
        }
    }

    /// Whether the run goes on.
    pub(super) fn activity(&self) -> Activity {
        self.view.as_ref().map_or(Activity::Waiting, RunView::activity)
    }
}

/// Whether a directory has a file of a run.
fn has_begun(run: &RunDir) -> bool {
    run.config().is_file() || run.metrics().is_file() || has_checkpoint(run.path())
}

/// Whether a directory that has no file of a run has something that a run does not begin with.
fn is_other(path: &Path) -> bool {
    let begins = ["checkpoints", "logs", "config.tmp", "config.toml"];
    let mut files = path.read_dir().into_iter().flatten().flatten();
    !faults::on(Fault::OtherDirectoryAwaited)
        && files.any(|file| !begins.iter().any(|name| file.file_name() == *name))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_directory_of_something_else_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let is_refused = |name: &str| Watched::new(&dir.path().join(name)).refresh().is_err();
        for name in ["empty", "begun/checkpoints", "begun/logs", "model"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let mut watched = Watched::new(&dir.path().join("empty"));
        watched.refresh().unwrap();
        for name in ["empty/config.json", "model/config.json", "file"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        watched.refresh().unwrap();
        let refused = ["gone", "begun", "empty", "model", "file"].map(is_refused);
        assert_eq!(refused, [false, false, true, true, true], "an empty directory may get other files later");
        #[cfg(feature = "faults")]
        assert!(!faults::with(Fault::OtherDirectoryAwaited, || is_refused("model")));
        let error = Watched::new(&dir.path().join("model")).refresh().unwrap_err().to_string();
        assert!(error.contains("model/metrics.jsonl: no such file or directory"), "{error}");
    }

    #[test]
    fn a_log_with_damaged_lines_is_warned_of_once() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("metrics.jsonl");
        let mut watched = Watched::new(dir.path());
        for (lines, warned) in
            [("{\"step\":1}\n", 0), ("{\"step\":1}\nxx\n", 1), ("xx\n{\"step\":2}\nxx\n", 1)]
        {
            fs::write(&log, lines).unwrap();
            watched.refresh().unwrap();
            watched.warn_of_skipped();
            assert_eq!(watched.warned.len(), warned, "{lines:?}");
        }
    }
}
