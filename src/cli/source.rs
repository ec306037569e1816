//! The tokenizer and the data of a configuration.
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf, absolute};

use super::data_format::warn_of_syntax;
use super::exit::{CliError, Exit};
use super::input_file::require_rereadable;
use super::loaded::download;
use crate::config::{DataSection, Layer, Packing, RunConfig, TaskKind};
use crate::model::data::{Content, TokenFile, Tokens};
use crate::model::store;
use crate::model::tokenizer::Tokenizer;
use crate::run::DataRecord;
use crate::training::{DataLoader, Source};

/// The tokenizer that `data.tokenizer` names.
pub(super) fn tokenizer(name: &str) -> Result<Tokenizer, CliError> {
    if name == "bytes" {
        return Ok(Tokenizer::byte());
    }
    let path = Path::new(name);
    if !path.exists() {
        let accepted = "expected `bytes`, or the path of a tokenizer.json or of a model";
        return Err(CliError::new(Exit::Missing, format_args!("{name}: tokenizer not found"))
            .hint(download(path, " tokenizer.json tokenizer_config.json").as_deref().unwrap_or(accepted)));
    }
    Ok(store::tokenizer_of(path)?)
}

/// The name of a tokenizer that does not depend on the working directory: `bytes` or an absolute path.
pub(super) fn absolute_name(name: &str) -> Result<String, CliError> {
    if name == "bytes" {
        return Ok(name.into());
    }
    let whole = absolute(name).map_err(|error| CliError::io(Path::new(name), &error))?;
    Ok(whole.to_string_lossy().into_owned())
}

/// The tokenizer that the packed token file of a configuration records, as a layer below those that name one. `None`: a
/// layer names a tokenizer, the data is not packed, or the file records none.
pub(super) fn recorded_tokenizer(config: &RunConfig, layers: &[Layer]) -> Result<Option<Layer>, CliError> {
    let [file] = &config.data.files[..] else { return Ok(None) };
    for layer in layers {
        if layer.values()?.iter().any(|(key, _)| key == "data.tokenizer") {
            return Ok(None);
        }
    }
    // a file that cannot be opened is reported when its tokens are read
    let packed = Path::new(file).extension().is_some_and(|e| e == "tok" && Path::new(file).is_file());
    let Some(packed) = packed.then(|| TokenFile::open(Path::new(file)).ok()).flatten() else {
        return Ok(None);
    };
    let Some(name) = packed.tokenizer() else { return Ok(None) };
    if name != "bytes" && !Path::new(name).exists() {
        let message = format_args!("{file}: packed with the tokenizer {name}, which does not exist");
        return Err(CliError::new(Exit::Missing, message)
            .hint("name the same tokenizer at another place: --set data.tokenizer=FILE"));
    }
    Ok(Some(Layer::string("--data", "data.tokenizer", name)))
}

/// The tokens of `data.files`, split into training and validation, or with those of `data.val_files` for validation.
/// Fails if the validation split is too small.
pub(super) fn open(config: &RunConfig) -> Result<Source, CliError> {
    open_with(config, tokenizer(&config.data.tokenizer)?)
}

/// [`open`] with this tokenizer.
pub(super) fn open_with(config: &RunConfig, tokenizer: Tokenizer) -> Result<Source, CliError> {
    let data = &config.data;
    if data.files.is_empty() {
        return Err(CliError::new(Exit::Usage, "no training data: data.files is empty")
            .hint("--data FILE names text, JSONL or packed token files"));
    }
    let content = match config.train.task {
        TaskKind::Lm => Content::Any,
        TaskKind::Sft => Content::Conversations,
    };
    require_files(config)?;
    let read = |files: &[String], tokenizer: &Tokenizer| {
        tokens(&files.iter().map(PathBuf::from).collect::<Vec<_>>(), tokenizer, content)
    };
    let source = Source::new(config, read(&data.files, &tokenizer)?, tokenizer)?;
    if data.val_files.is_empty() {
        require_held_out(data, &source.split.validation)?;
        return Ok(source);
    }
    let validation = read(&data.val_files, &source.tokenizer)?;
    if validation.len() < 2 {
        let (files, found) = (data.val_files.join(", "), validation.len());
        let message = format_args!("{files}: expected at least 2 tokens for validation, found {found}");
        return Err(CliError::new(Exit::Data, message));
    }
    Ok(source.with_validation(validation))
}

/// Checks that the validation split, the last part of the tokens, has a prediction.
fn require_held_out(data: &DataSection, validation: &Range<u64>) -> Result<(), CliError> {
    let (held_out, total) = (validation.end - validation.start, validation.end);
    if data.val_fraction == 0.0 || held_out >= 2 {
        return Ok(());
    }
    if total < 2 {
        let files = data.files.join(", ");
        let message = format_args!("{files}: expected at least 2 tokens for training, found {total}");
        return Err(CliError::new(Exit::Data, message));
    }
    let message = format!(
        "`data.val_fraction` = {} holds out {held_out} of {total} tokens, expected at least 2",
        data.val_fraction
    );
    let hint =
        "increase it, add data, or set data.val_fraction=0 to train on all tokens without a validation loss";
    Err(CliError::new(Exit::Usage, message).hint(hint))
}

/// Checks that the data files can be opened, more than once.
pub(super) fn require_files(config: &RunConfig) -> Result<(), CliError> {
    config.data.files.iter().try_for_each(require_file)?;
    require_validation_files(config)
}

/// [`require_files`] for a run that writes its training data itself.
pub(super) fn require_validation_files(config: &RunConfig) -> Result<(), CliError> {
    config.data.val_files.iter().try_for_each(require_file)
}

fn require_file(name: &String) -> Result<(), CliError> {
    require_rereadable(Path::new(name))?;
    let opened = File::open(name).map(drop);
    opened.map_err(|e| {
        let error = CliError::new(Exit::of_io(e.kind()), format_args!("{name}: cannot open: {e}"));
        if name.contains(char::REPLACEMENT_CHARACTER) {
            return error.hint("a configuration holds only names in UTF-8; rename the file or its directory");
        }
        error
    })
}

/// The windows of a new run. Fails as [`require_validation_target`].
pub(super) fn loader(config: &RunConfig, source: &Source, seed: u64) -> Result<DataLoader, CliError> {
    let loader = DataLoader::new(config, source, seed)?;
    require_validation_target(config, source, &loader)?;
    Ok(loader)
}

/// Checks that validation data, if there is any, has a target token in a window.
pub(super) fn require_validation_target(
    config: &RunConfig,
    source: &Source,
    loader: &DataLoader,
) -> Result<(), CliError> {
    if source.split.validation.is_empty() || !loader.validation().is_empty() {
        return Ok(());
    }
    let data = &config.data;
    let place = match data.val_files.is_empty() {
        true => format!("`data.val_fraction` = {}", data.val_fraction),
        false => data.val_files.join(", "),
    };
    let want = "expected validation data with a target token";
    let within = |n, key| format!(" in the first {n} tokens ({key})");
    let part = match (data.packing, config.train.eval_tokens) {
        (Packing::Stream, 0) => String::new(),
        (Packing::Stream, n) => within(n, "train.eval_tokens"),
        (Packing::Documents, _) => within(config.train.context, "train.context"),
    };
    let message = format_args!("{place}: {want}{part}, found none");
    Err(CliError::new(Exit::Data, message))
}

/// The digests of the data of a run and of its tokenizer.
pub(super) fn record(config: &RunConfig, source: &Source) -> Result<DataRecord, CliError> {
    let tokens = [&source.tokens, source.validation_tokens()];
    Ok(DataRecord::of(config, tokens, &source.tokenizer)?)
}

/// The tokens of `files`: text and JSONL encoded with the tokenizer, or one packed token file. Fails for other content
/// than `content`, and for a file that was packed with another tokenizer.
pub(super) fn tokens(files: &[PathBuf], tokenizer: &Tokenizer, content: Content) -> Result<Tokens, CliError> {
    files.iter().try_for_each(|file| require_rereadable(file))?;
    let Some(packed) = files.iter().find(|file| file.extension().is_some_and(|e| e == "tok")) else {
        let tokens = Tokens::from_files(files, tokenizer, content)?;
        files.iter().for_each(|file| warn_of_syntax(file));
        return Ok(tokens);
    };
    let path = packed.display();
    if files.len() > 1 {
        let message = format_args!("{path}: a packed token file (*.tok) must be the only file");
        return Err(CliError::new(Exit::Usage, message)
            .hint("pack all files into one: xtrain prepare FILE... --out ALL.tok"));
    }
    let tokens = Tokens::open(packed)?;
    if let Some(file) = tokens.file().filter(|file| file.digest() != tokenizer.digest()) {
        let recorded = file.tokenizer().map(|name| format!(" ({name})")).unwrap_or_default();
        let (want, got) = (file.digest(), tokenizer.digest());
        let message = format_args!(
            "{path}: packed with a different tokenizer{recorded}: expected one with digest {want:016x}, found {got:016x}"
        );
        return Err(CliError::new(Exit::Data, message)
            .hint("use the tokenizer of the file, or pack it again: xtrain prepare --tokenizer ..."));
    }
    if content == Content::Conversations && tokens.file().is_some_and(|file| !file.is_masked()) {
        let message = format_args!("{path}: expected conversations, found text without a loss mask");
        return Err(CliError::new(Exit::Data, message)
            .hint("pack JSONL with `messages`, or `prompt` and `completion`; use --objective lm for text"));
    }
    Ok(tokens)
}
