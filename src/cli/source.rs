//! What a run trains on, from its configuration.
use std::path::{Path, PathBuf};

use super::{CliError, Exit};
use crate::config::{RunConfig, Task};
use crate::model::data::{Content, Split, Tokens};
use crate::model::store;
use crate::model::tokenizer::Tokenizer;
use crate::run::DataRecord;
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
            .hint("data.tokenizer is `bytes`, or the path of a tokenizer.json or of a model"));
    }
    Ok(store::tokenizer_of(path)?)
}

/// The tokens of `data.files`, split into training and validation.
///
/// # Errors
/// No file is named, or one is missing or bad; a share for validation that holds no prediction.
pub fn open(config: &RunConfig) -> Result<Source, CliError> {
    let data = &config.data;
    if data.files.is_empty() {
        return Err(CliError::new(Exit::Usage, "there is nothing to train on: data.files is empty")
            .hint("name text, JSONL or packed tokens: --data FILE"));
    }
    let tokenizer = tokenizer(&data.tokenizer)?;
    let files: Vec<PathBuf> = data.files.iter().map(PathBuf::from).collect();
    let content = match config.train.task {
        Task::Lm => Content::Any,
        Task::Sft => Content::Conversations,
    };
    let tokens = tokens(&files, &tokenizer, content)?;
    if let Some(packed) = tokens.file() {
        packed.verify()?;
    }
    let source = Source::new(config, tokens, tokenizer)?;
    check_validation(config, &source.split)?;
    Ok(source)
}

/// Refuses to hold out what nothing can be predicted of.
fn check_validation(config: &RunConfig, split: &Split) -> Result<(), CliError> {
    let (share, out) = (config.data.val_fraction, split.validation.end - split.validation.start);
    if share == 0.0 || out >= 2 {
        return Ok(());
    }
    let all = split.validation.end;
    let message = format!("`data.val_fraction` = {share} holds out {out} of {all} tokens, want at least 2");
    Err(CliError::new(Exit::Usage, message)
        .hint("raise it, or set data.val_fraction=0 to train on all tokens without a validation loss"))
}

/// The digests of what `config` trains on, `source` being it.
///
/// # Errors
/// A file that cannot be read.
pub fn record(config: &RunConfig, source: &Source) -> Result<DataRecord, CliError> {
    Ok(DataRecord::of(config, source)?)
}

/// The tokens of `files`: text and JSONL through the tokenizer, or one packed file.
///
/// # Errors
/// A file that is missing or bad, is not of that content, or was packed with another tokenizer.
pub fn tokens(files: &[PathBuf], tokenizer: &Tokenizer, content: Content) -> Result<Tokens, CliError> {
    let packed = |file: &Path| file.extension().is_some_and(|e| e == "tok");
    let tokens = match files {
        [one] if packed(one) => Tokens::open(one)?,
        many if many.iter().any(|f| packed(f)) => {
            let one = many.iter().find(|f| packed(f)).map(|f| f.display().to_string()).unwrap_or_default();
            let message = format!("{one}: packed tokens (*.tok) stand alone, beside no other file");
            return Err(CliError::new(Exit::Usage, message)
                .hint("pack all texts into one: xtrain prepare FILE... --out ALL.tok"));
        }
        texts => Tokens::from_files(texts, tokenizer, content)?,
    };
    if let Some(file) = tokens.file().filter(|f| f.digest() != tokenizer.digest()) {
        let message = format!("{}: packed with another tokenizer than this one", file.path().display());
        return Err(CliError::new(Exit::Data, message).hint("pack it again: xtrain prepare --tokenizer ..."));
    }
    if let Some(file) = tokens.file().filter(|f| content == Content::Conversations && !f.is_masked()) {
        let message = format!("{}: every token is to be learnt: no conversations", file.path().display());
        return Err(CliError::new(Exit::Data, message)
            .hint("pack JSONL with `messages`, or `prompt` and `completion`; --task lm trains on text"));
    }
    Ok(tokens)
}
