//! The flags `--prefix` and `--save-prefix`: keys and values of a prompt in a file.
use std::path::PathBuf;

use clap::Args;

use super::common::Force;
use super::loaded::{self, Loaded, Opener};
use super::{CliError, Exit, output_path};
use crate::decode::{Continuation, Engine, EngineOptions, KvKind, KvPrefix, PrefixCaching, PrefixIdentity};
use crate::rollout_file::policy_digest;

/// The flag `--prefix`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cache")]
pub(super) struct PrefixFlag {
    /// Start from the keys and values in FILE, which --save-prefix of `generate` or `chat` wrote for this model. Whole
    /// pages that the prompt shares with FILE are not computed again. The results are bit-identical. For --kv paged.
    /// Keeps the f32 master weights in memory, for their digest.
    #[arg(long, value_name = "FILE")]
    pub(super) prefix: Option<PathBuf>,
}

/// The flag `--save-prefix`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cache")]
pub(super) struct SavePrefixFlag {
    /// Save the keys and values of the prompt in FILE, for --prefix.
    #[arg(long, value_name = "FILE")]
    save_prefix: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
}

/// A prefix whose whole pages the cache of an engine keeps. The rows of the file are dropped.
#[derive(Debug)]
pub(super) struct UsedPrefix {
    path: PathBuf,
    tokens: Vec<u32>,
}

impl PrefixFlag {
    /// How the model is opened: with its master weights if their digest is needed.
    pub(super) fn opener(&self, save: Option<&SavePrefixFlag>) -> Opener {
        match self.prefix.is_some() || save.is_some_and(|save| save.save_prefix.is_some()) {
            true => loaded::open_with_master_weights,
            false => loaded::open,
        }
    }

    /// `options` of an engine that keeps the prefix.
    pub(super) fn apply(&self, options: EngineOptions) -> EngineOptions {
        match self.prefix {
            Some(_) => EngineOptions { prefix_caching: PrefixCaching::On, ..options },
            None => options,
        }
    }

    /// Loads the prefix into the cache of `engine`.
    ///
    /// # Errors
    /// A damaged file, or one of another model; a cache without pages.
    pub(super) fn load(
        &self,
        loaded: &Loaded,
        engine: &mut Engine<'_>,
    ) -> Result<Option<UsedPrefix>, CliError> {
        let Some(path) = &self.prefix else { return Ok(None) };
        let prefix = KvPrefix::load(path, &loaded.model, &identity(loaded)?)?;
        engine.insert_prefix(&prefix)?;
        Ok(Some(UsedPrefix { path: path.clone(), tokens: prefix.into_tokens() }))
    }
}

impl UsedPrefix {
    /// Number of tokens at the beginning of `prompt` that are those of the prefix.
    fn common(&self, prompt: &[u32]) -> usize {
        self.tokens.iter().zip(prompt).take_while(|(own, other)| own == other).count()
    }

    /// What became of a prompt of which `reused` tokens came from the cache.
    pub(super) fn report(&self, prompt: &[u32], reused: u64) -> String {
        let (path, n, common) = (self.path.display(), self.tokens.len(), self.common(prompt));
        let part = match common {
            _ if common == n => String::new(),
            0 => format!("; the prompt does not begin with the {n} tokens of the file"),
            _ => format!("; the prompt has only the first {common} of the {n} tokens of the file"),
        };
        let pages = match reused == 0 && common > 0 {
            true => "; only whole pages are reused: see --page-size",
            false => "",
        };
        format!("{reused} of {} prompt tokens from {path}{part}{pages}", prompt.len())
    }

    /// How many prompts begin with its tokens.
    pub(super) fn of_prompts<'p>(&self, prompts: impl Iterator<Item = &'p [u32]>) -> String {
        let (path, n) = (self.path.display(), self.tokens.len());
        let common: Vec<usize> = prompts.map(|prompt| self.common(prompt)).collect();
        let whole = common.iter().filter(|common| **common == n).count();
        let part = common.iter().filter(|common| (1..n).contains(common)).count();
        let all = common.len();
        format!("{path}: {whole} of {all} prompts begin with its {n} tokens, {part} with a part of them")
    }
}

impl SavePrefixFlag {
    /// The error of a command that ends before the file is written. A closed pipe is one then.
    pub(super) fn unsaved(&self, error: CliError) -> CliError {
        match &self.save_prefix {
            Some(path) if error.exit() == Exit::Ok => {
                let path = path.display();
                let message = format_args!("--save-prefix {path}: not written, standard output was closed");
                CliError::new(Exit::Io, message)
            }
            _ => error,
        }
    }

    /// Checks that there is no file to write, at the end of a conversation without a reply.
    ///
    /// # Errors
    /// The flag is given.
    pub(super) fn require_unused(&self) -> Result<(), CliError> {
        let Some(path) = &self.save_prefix else { return Ok(()) };
        let path = path.display();
        let message = format_args!("--save-prefix {path}: not written, the conversation has no reply");
        Err(CliError::new(Exit::Data, message))
    }

    /// Checks that the file may be written by a command that reads `inputs`, and that there are keys and values to write.
    ///
    /// # Errors
    /// It exists, without `--force`, or is an input; its directory does not exist; there is no cache.
    pub(super) fn check(&self, kv: KvKind, inputs: &[PathBuf]) -> Result<(), CliError> {
        let Some(path) = &self.save_prefix else { return Ok(()) };
        if kv == KvKind::Off {
            let message = "--save-prefix: expected a KV cache, found --kv off";
            return Err(CliError::new(Exit::Usage, message).hint("remove --kv off"));
        }
        output_path::check_absent(path, self.force)?;
        output_path::check_is_no_input(path, inputs)
    }

    /// Finished sequences keep their rows if they are to be saved.
    pub(super) fn continuation(&self) -> Continuation {
        if self.save_prefix.is_some() { Continuation::On } else { Continuation::Off }
    }

    /// Saves the rows of the first `len` positions of the finished sequence `index`, if the flag is given. Returns what was
    /// saved.
    ///
    /// # Errors
    /// The file cannot be written; the sequence has no rows.
    pub(super) fn save(
        &self,
        loaded: &Loaded,
        engine: &mut Engine<'_>,
        (index, len): (usize, usize),
    ) -> Result<Option<String>, CliError> {
        let Some(path) = &self.save_prefix else { return Ok(None) };
        let snapshot = engine.snapshot(index)?;
        let prefix = engine.read_snapshot(snapshot)?.truncated(len);
        engine.release_snapshot(snapshot);
        prefix.save(&output_path::target_of(path), &identity(loaded)?)?;
        let (n, path) = (prefix.tokens().len(), path.display());
        Ok(Some(format!("saved the keys and values of {n} prompt tokens: {path}")))
    }
}

fn identity(loaded: &Loaded) -> Result<PrefixIdentity, CliError> {
    Ok(PrefixIdentity::of(&loaded.model, &policy_digest(&loaded.model)?))
}
