//! A run that may not exist yet.
use std::path::{Path, PathBuf};

use crate::cli::exit::CliError;
use crate::cli::logs::warn_of_skipped;
use crate::run::{self, Activity, RunDir, RunView, has_checkpoint};

/// The run of `xtrain watch`.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) run: PathBuf,
    /// `None`: the directory does not exist, or has no file of a run.
    pub(super) view: Option<RunView>,
    /// The logs with damaged lines of which a warning was printed.
    pub(super) warned: Vec<PathBuf>,
}

impl Watched {
    /// The run at `path`, not read yet.
    pub(super) fn new(path: &Path) -> Watched {
        Watched { run: path.to_path_buf(), view: None, warned: Vec::new() }
    }

    /// Reads what was written since the last call.
    ///
    /// # Errors
    /// A log cannot be read, or has finished lines of which none is valid.
    pub(super) fn refresh(&mut self) -> Result<(), CliError> {
        if self.view.is_none() {
            self.view = match RunDir::open(&self.run) {
                Ok(run) if has_begun(&run) => Some(RunView::new(&run)),
                Ok(_) => None,
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

/// Whether a directory has a file of a run. Others, such as an exported model, may get one later.
fn has_begun(run: &RunDir) -> bool {
    run.config().is_file() || run.metrics().is_file() || has_checkpoint(run.path())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
