//! What a run trains on, from its configuration.
use std::path::{Path, PathBuf};

use super::{CliError, Exit};
use crate::config::RunConfig;
use crate::model::data::{Split, Tokens};
use crate::model::tokenizer::Tokenizer;
use crate::training::Source;

/// The tokenizer that `data.tokenizer` names.
///
/// # Errors
/// A file that is not there, or is no tokenizer.
pub fn tokenizer(name: &str) -> Result<Tokenizer, CliError> {
    if name == "bytes" {
        return Ok(Tokenizer::byte());
    }
    let path = Path::new(name);
    if !path.exists() {
        return Err(CliError::new(Exit::Missing, format_args!("{name}: no such tokenizer"))
            .hint("data.tokenizer is `bytes`, or the path of a tokenizer.json"));
    }
    Ok(Tokenizer::load(path)?)
}

/// The tokens of `data.files`, split into training and validation.
///
/// # Errors
/// No file is named, or one is missing or bad.
pub fn open(config: &RunConfig) -> Result<Source, CliError> {
    let data = &config.data;
    if data.files.is_empty() {
        return Err(CliError::new(Exit::Usage, "there is nothing to train on: data.files is empty")
            .hint("name text, JSONL or packed tokens: --data FILE"));
    }
    let tokenizer = tokenizer(&data.tokenizer)?;
    let files: Vec<PathBuf> = data.files.iter().map(PathBuf::from).collect();
    let tokens = tokens(&files, &tokenizer)?;
    let split = Split::tail(tokens.len(), data.val_fraction)?;
    Ok(Source { tokens, tokenizer, split })
}

/// The tokens of `files`: text and JSONL through the tokenizer, or one packed file.
///
/// # Errors
/// A file that is missing or bad, or was packed with another tokenizer.
pub fn tokens(files: &[PathBuf], tokenizer: &Tokenizer) -> Result<Tokens, CliError> {
    let packed = |file: &Path| file.extension().is_some_and(|e| e == "tok");
    let tokens = match files {
        [one] if packed(one) => Tokens::open(one)?,
        many if many.iter().any(|f| packed(f)) => {
            return Err(CliError::new(Exit::Usage, "a packed token file (*.tok) stands alone"));
        }
        texts => Tokens::from_files(texts, tokenizer)?,
    };
    if let Some(file) = tokens.file().filter(|f| f.digest() != tokenizer.digest()) {
        let message = format!("{}: packed with another tokenizer than this one", file.path().display());
        return Err(CliError::new(Exit::Data, message).hint("pack it again: xtrain prepare --tokenizer ..."));
    }
    Ok(tokens)
}
