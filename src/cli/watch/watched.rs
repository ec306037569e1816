//! A run that may not exist yet.
use std::path::{Path, PathBuf};

use crate::cli::exit::CliError;
use crate::run::{self, Activity, RunDir, RunView, has_checkpoint};

/// The run of `xtrain watch`.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) run: PathBuf,
    /// `None`: the directory does not exist, or has no file of a run.
    pub(super) view: Option<RunView>,
}

impl Watched {
    /// The run at `path`, not read yet.
    pub(super) fn new(path: &Path) -> Watched {
        Watched { run: path.to_path_buf(), view: None }
    }

    /// Reads what was written since the last call.
    ///
    /// # Errors
    /// A log cannot be read, or has an invalid line before its last.
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

    /// Whether the run goes on.
    pub(super) fn activity(&self) -> Activity {
        self.view.as_ref().map_or(Activity::Waiting, RunView::activity)
    }
}

/// Whether a directory has a file of a run. Others, such as an exported model, may get one later.
fn has_begun(run: &RunDir) -> bool {
    run.config().is_file() || run.metrics().is_file() || has_checkpoint(run.path())
}
