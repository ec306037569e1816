//! Directories that a command writes. With `--force` they replace an existing one.
use std::fs;
use std::path::{Path, PathBuf};

use super::common::Force;
use super::exit::{CliError, Exit};
use crate::model::temporary::{lock_names, recover_directory, replaced_path, temporary_path};
use crate::tensor::faults::{self, Fault};

/// A directory that is written under its own name, or under a temporary name if it replaces an existing one.
#[derive(Debug)]
pub(super) struct OutputDir {
    out: PathBuf,
    /// The temporary directory. `None`: nothing is replaced.
    temporary: Option<PathBuf>,
}

/// What `--force` may replace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replaceable {
    /// Whether a directory may be replaced.
    pub(super) holds: fn(&Path) -> bool,
    /// Its description in the error message.
    pub(super) what: &'static str,
}

impl OutputDir {
    /// Checks that a command may write the directory `out`: it does not exist, or `--force` replaces it. Restores or
    /// removes what killed commands left next to it.
    ///
    /// # Errors
    /// It exists and `--force` is not given, or it is not a directory that may be replaced.
    pub(super) fn check(out: &Path, force: Force, replaceable: Replaceable) -> Result<OutputDir, CliError> {
        let path = out.display();
        let lost = faults::on(Fault::ReplacedDirectoryLost);
        let recovered = if lost { Ok(false) } else { recover_directory(out, replaceable.holds) };
        if recovered.map_err(|error| CliError::io(out, &error))? {
            eprintln!("note: {path}: restored; a command that replaced it was killed");
        }
        if out.symlink_metadata().is_err() {
            return Ok(OutputDir::in_place(out));
        }
        if !force.force {
            return Err(CliError::new(Exit::Usage, format_args!("{path}: already exists"))
                .hint("choose another path, or replace it with --force"));
        }
        let is_dir = out.symlink_metadata().is_ok_and(|found| found.is_dir());
        let replaced = (replaceable.holds)(out) || faults::on(Fault::ForceReplacesAnyDirectory);
        if !is_dir || !replaced {
            let is_link = out.is_symlink();
            let found = if is_dir {
                "other files"
            } else if is_link {
                "a link"
            } else {
                "a file"
            };
            let what = replaceable.what;
            let message = format_args!("{path}: --force replaces {what}, found {found}");
            return Err(CliError::new(Exit::Usage, message).hint("choose another path"));
        }
        Ok(OutputDir { out: out.to_path_buf(), temporary: Some(temporary_path(out)) })
    }

    /// A directory that is written under its own name, also if it exists.
    pub(super) fn in_place(out: &Path) -> OutputDir {
        OutputDir { out: out.to_path_buf(), temporary: None }
    }

    /// Where the command writes the directory.
    pub(super) fn path(&self) -> &Path {
        self.temporary.as_deref().unwrap_or(&self.out)
    }

    /// Replaces the existing directory. After an error, it is unchanged or has the name `NAME.xtrain-old-PID`, from
    /// which the next [`OutputDir::check`] restores it.
    pub(super) fn finish(&self) -> Result<(), CliError> {
        let Some(temporary) = &self.temporary else { return Ok(()) };
        let _names = lock_names();
        let old = replaced_path(&self.out);
        fs::rename(&self.out, &old).map_err(|error| CliError::io(&self.out, &error))?;
        fs::rename(temporary, &self.out).map_err(|error| CliError::io(&self.out, &error))?;
        fs::remove_dir_all(&old).map_err(|error| CliError::io(&old, &error))
    }
}
