//! Hints for model files that cannot be opened: downloads that are incomplete, and formats of other programs.
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::exit::shell_word;
use crate::model::checkpoint::CheckpointError;
use crate::model::durable::parent;
use crate::model::store::StoreError;
use crate::model::tokenizer::TokenizerError;
use crate::run::has_checkpoint;

/// The beginning of the text file that Git writes in place of a large file.
const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// The hint for an error of opening a model. `None`: its files do not explain it.
pub(super) fn hint(error: &StoreError) -> Option<String> {
    match error {
        StoreError::Checkpoint(error) => of_checkpoint(error),
        StoreError::Tokenizer(error) => of_tokenizer(error),
        _ => None,
    }
}

/// [`hint`] for an error of the weights or of the configuration.
pub(super) fn of_checkpoint(error: &CheckpointError) -> Option<String> {
    match error {
        CheckpointError::Missing { path, .. } => instead_of_weights(path).or_else(|| base_model(path)),
        CheckpointError::Limit { file, .. }
        | CheckpointError::Length { file, .. }
        | CheckpointError::Malformed { file, .. }
        | CheckpointError::Field { file, .. } => of_pointer(file),
        CheckpointError::Checksum { .. } => {
            Some("the file is damaged: use another checkpoint or copy".into())
        }
        _ => None,
    }
}

/// [`hint`] for an error of the tokenizer.
pub(super) fn of_tokenizer(error: &TokenizerError) -> Option<String> {
    match error {
        TokenizerError::Format { file, .. } | TokenizerError::Unsupported { file, .. } => of_pointer(file),
        TokenizerError::Io { file, source, .. } if source.kind() == ErrorKind::NotFound => {
            other_tokenizer(parent(file))
        }
        _ => None,
    }
}

/// The hint for a file that contains the pointer of Git LFS.
pub(super) fn of_pointer(file: &Path) -> Option<String> {
    // a pipe would block
    file.metadata().ok().filter(|found| found.is_file())?;
    let mut start = Vec::new();
    File::open(file).ok()?.take(LFS_POINTER.len() as u64).read_to_end(&mut start).ok()?;
    let directory = parent(file);
    let hint = "the file is a pointer of Git LFS without the content; to download it:";
    (start == LFS_POINTER).then(|| format!("{hint} git -C {} lfs pull", shell_word(directory)))
}

/// The hint for a model directory without a supported tokenizer. `None`: it has no other tokenizer either.
pub(super) fn other_tokenizer(dir: &Path) -> Option<String> {
    let found = ["tokenizer.model", "vocab.json"].into_iter().find(|name| dir.join(name).is_file())?;
    let save = save_again("AutoTokenizer");
    Some(format!("{found} alone is not read; transformers writes tokenizer.json: {save}"))
}

/// The hint for weights that do not exist: those of another format, or an incomplete download.
fn instead_of_weights(missing: &Path) -> Option<String> {
    let (name, dir) = (missing.file_name()?.to_str()?, missing.parent()?);
    if !name.starts_with("model") || !name.ends_with(".safetensors") {
        return None;
    }
    if name != "model.safetensors" || is_in(dir, |name| name.starts_with("model-00001-of-")) {
        let file = if name == "model.safetensors" { "model.safetensors.index.json" } else { name };
        return Some(format!("the model is incomplete: also copy or download {file}"));
    }
    if is_in(dir, |name| name.starts_with("consolidated.")) {
        let hint = "weights with names of Mistral or Meta are not read; get those for transformers:";
        return Some(format!("{hint} model*.safetensors"));
    }
    if is_in(dir, |name| name.starts_with("pytorch_model")) {
        let save = save_again("AutoModelForCausalLM");
        return Some(format!("weights of PyTorch are not read; transformers writes safetensors: {save}"));
    }
    None
}

/// The hint for the missing checkpoints of a run of `xtrain grpo` whose base model is being trained.
fn base_model(missing: &Path) -> Option<String> {
    let names = ["checkpoints", "config.json"];
    let base = missing.parent().filter(|_| names.iter().any(|name| missing.ends_with(name)))?.join("base");
    has_checkpoint(&base).then(|| format!("only its base model has a checkpoint: {}", shell_word(&base)))
}

/// Python code that writes a directory with the class `class` of transformers.
fn save_again(class: &str) -> String {
    format!("{class}.from_pretrained(IN).save_pretrained(OUT)")
}

fn is_in(dir: &Path, matches: impl Fn(&str) -> bool) -> bool {
    let mut names = dir.read_dir().into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.any(|name| name.to_str().is_some_and(&matches))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_of_git_lfs_is_named_and_a_pipe_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (pointer, other, pipe) = (dir.join("pointer"), dir.join("other"), dir.join("pipe"));
        std::fs::write(&pointer, "version https://git-lfs.github.com/spec/v1\n").unwrap();
        std::fs::write(&other, "version").unwrap();
        assert!(of_pointer(&pointer).is_some_and(|hint| hint.contains("lfs pull")));
        assert_eq!((of_pointer(&other), of_pointer(dir), of_pointer(&dir.join("none"))), (None, None, None));
        if cfg!(unix) {
            assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            assert_eq!(of_pointer(&pipe), None);
        }
    }
}
