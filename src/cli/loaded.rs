//! Opens the model of a command from a path.
use std::io;
use std::path::{Path, PathBuf};

use super::common::Common;
use super::exit::{CliError, Exit, shell_word};
use super::model_files;
use crate::config::{Layer, RunConfig};
use crate::model::checkpoint::Refused;
use crate::model::export::ExportSource;
use crate::model::tokenizer::{Tokenizer, TokenizerError};
use crate::model::{Model, gguf, store};
use crate::run::RunDir;
use crate::tensor::faults::{self, Fault};
use crate::tensor::{Device, Dtype};
use crate::training;

/// A model with its tokenizer and the configuration of its run.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) path: PathBuf,
    /// The file or directory with the weights. For a run: the checkpoint.
    pub(super) checkpoint: PathBuf,
    /// Newer checkpoints that are damaged.
    pub(super) refused: Vec<PathBuf>,
    pub(super) model: Model,
    /// The tokenizer. `None`: the model has none that is supported.
    pub(super) tokenizer: Option<Tokenizer>,
    /// Why the tokenizer is not supported.
    unsupported_tokenizer: Option<TokenizerError>,
    pub(super) eos: Vec<u32>,
    /// Configuration of the run. `None`: the model is not part of a run.
    pub(super) config: Option<RunConfig>,
}

/// Opens a model for inference: a run (newest valid checkpoint), a checkpoint, a Hugging Face directory or a GGUF
/// file. A bare name is also searched under runs/. Newer checkpoints that are damaged are reported as warnings. The
/// model keeps no f32 master weights of its matrices: it cannot be trained or exported.
pub(super) fn open(path: &Path, common: &Common) -> Result<Loaded, CliError> {
    open_with(path, common, store::open_for_inference)
}

/// Like [`open`], but keeps the f32 master weights, for training, export and verification.
pub(super) fn open_with_master_weights(path: &Path, common: &Common) -> Result<Loaded, CliError> {
    open_with(path, common, store::open)
}

/// Describes a model from its headers, without reading weights. Also returns the compute dtype.
pub(super) fn describe(path: &Path, common: &Common) -> Result<(store::Described, Dtype), CliError> {
    let path = find(path)?;
    let mut described = store::describe(&path)?;
    described.unsupported_tokenizer.iter().for_each(warn_unsupported);
    if described.eos.is_empty() {
        described.eos.extend(described.tokenizer.iter().flat_map(|t| t.eos_ids().iter().copied()));
    }
    Ok((described, compute_dtype(run_config(&path)?.as_ref(), common)))
}

/// Reports newer checkpoints that are damaged, and the older one that is used.
pub(super) fn warn_refused(refused: &[Refused], used: &Path) {
    refused.iter().for_each(|refused| eprintln!("warning: {refused}"));
    if !refused.is_empty() {
        eprintln!("warning: using the older checkpoint {}", used.display());
    }
}

/// The flag `--strict`: fails for a damaged newest checkpoint. `used` is the older one that `verb` names the use of,
/// for example `evaluated`.
pub(super) fn require_newest(refused: &[PathBuf], used: &Path, verb: &str) -> Result<(), CliError> {
    let damaged = refused.first().filter(|_| !faults::on(Fault::StrictIgnored));
    let Some(damaged) = damaged else { return Ok(()) };
    let message = format_args!("{}: the checkpoint is damaged", damaged.display());
    Err(CliError::new(Exit::Data, message)
        .hint(format_args!("without --strict, {} is {verb}", used.display())))
}

/// Reports a tokenizer of an unsupported kind.
pub(super) fn warn_unsupported(reason: &TokenizerError) {
    eprintln!("warning: {reason}; the model can be used with token ids only");
}

/// The compute dtype: `--dtype`, otherwise that of the run, otherwise f32.
fn compute_dtype(config: Option<&RunConfig>, common: &Common) -> Dtype {
    let dtype = common.dtype.or(config.map(|c| c.train.dtype));
    dtype.map_or(Dtype::F32, training::compute)
}

/// A function of this file that opens the model of a command.
pub(super) type Opener = fn(&Path, &Common) -> Result<Loaded, CliError>;

/// A function that opens a model with a compute dtype on a device.
type StoreOpener = fn(&Path, Dtype, &Device) -> Result<store::LoadedModel, store::StoreError>;

fn open_with(path: &Path, common: &Common, opener: StoreOpener) -> Result<Loaded, CliError> {
    let device = common.open()?;
    let path = find(path)?;
    let config = run_config(&path)?;
    let loaded = opener(&path, compute_dtype(config.as_ref(), common), &device)?;
    let store::LoadedModel { model, tokenizer, unsupported_tokenizer, mut eos, path: checkpoint, refused } =
        loaded;
    warn_refused(&refused, &checkpoint);
    let refused = refused.into_iter().map(|refused| refused.path).collect();
    unsupported_tokenizer.iter().for_each(warn_unsupported);
    if eos.is_empty() {
        eos.extend(tokenizer.iter().flat_map(|t| t.eos_ids().iter().copied()));
    }
    let tokenizer = tokenizer.map(|tokenizer| tokenizer.with_eos_ids(&eos));
    // a run of an earlier version has no chat template in its checkpoints
    let tokenizer = match (&config, tokenizer) {
        (Some(config), Some(own)) => Some(training::with_trained_template(config, &own).into_owned()),
        (_, tokenizer) => tokenizer,
    };
    Ok(Loaded { path, checkpoint, refused, model, tokenizer, unsupported_tokenizer, eos, config })
}

pub(super) fn find(path: &Path) -> Result<PathBuf, CliError> {
    let shown = path.display();
    if path.is_file() {
        let is_gguf = path.extension().is_some_and(|extension| extension == "gguf") || gguf::recognises(path);
        let message = format_args!("{shown}: expected a model, found a file that is not GGUF");
        return match is_gguf {
            true => Ok(path.to_path_buf()),
            false => Err(CliError::new(Exit::Data, message).hint(instead_of(path))),
        };
    }
    let no_model = |message: &str| CliError::new(Exit::Missing, format_args!("{shown}: {message}"));
    let Ok(run) = RunDir::open(path) else {
        let absent = || no_model("model not found").hint(missing(path));
        return Err(denied(path, path).unwrap_or_else(absent));
    };
    let dir = run.path();
    if !is_model(dir) {
        let other = || no_model("expected a model, found another directory").hint(instead_of(dir));
        return Err(denied(dir, &dir.join("config.json")).unwrap_or_else(other));
    }
    Ok(dir.to_path_buf())
}

/// The error for `path` if the operating system denies access to `probe`, which is this path or a file in it. `None`:
/// it does not.
fn denied(path: &Path, probe: &Path) -> Option<CliError> {
    let error = probe.metadata().err().filter(|error| error.kind() == io::ErrorKind::PermissionDenied)?;
    Some(CliError::io(path, &error))
}

/// What a model is.
const MODELS: &str =
    "expected a run, one of its checkpoints, a directory with config.json and weights, or a GGUF file";

/// Whether a directory is a run, or has a model's configuration. Its files may still be damaged or missing.
fn is_model(dir: &Path) -> bool {
    let names =
        ["checkpoints", "config.json", "config.toml", "model.safetensors", "model.safetensors.index.json"];
    names.iter().any(|name| dir.join(name).exists())
}

/// The hint for a path that is no model: the directory that contains it, if that is one; a model in the directory, such
/// as a snapshot in the cache of the Hugging Face Hub or a GGUF file.
fn instead_of(path: &Path) -> String {
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty() && is_model(dir)) {
        return format!("to use the model in this directory: {}", shell_word(dir));
    }
    let entries = |dir: PathBuf| dir.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let snapshots = entries(path.join("snapshots")).filter(|dir| is_model(dir));
    let files = entries(path.to_path_buf()).filter(|file| file.extension().is_some_and(|e| e == "gguf"));
    match snapshots.chain(files).min() {
        Some(model) => format!("to use a model in this directory: {}", shell_word(&model)),
        None => MODELS.to_string(),
    }
}

/// The hint for a model that does not exist.
fn missing(path: &Path) -> String {
    download(path, "").unwrap_or_else(|| MODELS.to_string())
}

/// The hint for a path that does not exist and is probably a name of the Hugging Face Hub: `OWNER/NAME` without a
/// directory `OWNER`. `files`: what to download of it, each after a space; empty: all.
pub(super) fn download(path: &Path, files: &str) -> Option<String> {
    let shown = path.to_string_lossy();
    let is_word = |word: &str| {
        let rest = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        word.starts_with(|c: char| c.is_ascii_alphanumeric()) && word.chars().all(rest)
    };
    match shown.split('/').collect::<Vec<_>>()[..] {
        [owner, name]
            if is_word(owner)
                && is_word(name)
                && owner != "runs"
                && ![".gguf", ".safetensors", ".json", ".model", ".bin", ".txt", ".tok"]
                    .iter()
                    .any(|ending| name.ends_with(ending))
                && !Path::new(owner).exists() =>
        {
            Some(format!(
                "nothing is downloaded; to download it first: hf download {shown}{files} --local-dir {name}"
            ))
        }
        _ => None,
    }
}

/// The configuration of a run, or of the run that contains a checkpoint. `None`: the path is not part of a run.
fn run_config(path: &Path) -> Result<Option<RunConfig>, CliError> {
    let above = path.parent().filter(|dir| dir.file_name().is_some_and(|name| name == "checkpoints"));
    let runs = [Some(path), above.and_then(Path::parent)];
    let file = runs.into_iter().flatten().map(|run| run.join("config.toml")).find(|file| file.is_file());
    file.map(|file| Ok(RunConfig::load(&[Layer::File(file)])?)).transpose()
}

impl Loaded {
    pub(super) fn export_source(&self) -> ExportSource<'_> {
        ExportSource { model: &self.model, tokenizer: self.tokenizer.as_ref(), eos: &self.eos }
    }

    /// The BOS token of the tokenizer, or of the model's `config.json`. `None`: there is none.
    ///
    /// # Errors
    /// The tokenizer cannot encode the text of the token.
    pub(super) fn bos(&self) -> Result<Option<u32>, CliError> {
        let own = self
            .tokenizer
            .iter()
            .flat_map(|tokenizer| tokenizer.special_tokens().iter().map(move |t| (tokenizer, t)));
        for (tokenizer, (name, text)) in own {
            if name == "bos_token"
                && !faults::on(Fault::BosOfConfigFirst)
                && let [id] = tokenizer.encode_continuation(text)?[..]
            {
                return Ok(Some(id));
            }
        }
        let vocab = self.model.config().vocab;
        Ok(self.model.kept_fields.bos_token_id().filter(|&id| (id as usize) < vocab))
    }

    /// The tokenizer of the model. If it has none, the error names `feature`, the part of the command that requires
    /// one, and has the hint `hint`.
    pub(super) fn require_tokenizer(&self, feature: &str, hint: &str) -> Result<&Tokenizer, CliError> {
        self.tokenizer.as_ref().ok_or_else(|| {
            let missing =
                if self.unsupported_tokenizer.is_some() { "supported tokenizer" } else { "tokenizer.json" };
            let message = format!("{}: no {missing}; {feature} requires one", self.path.display());
            let absent = self.unsupported_tokenizer.is_none();
            let other = absent.then(|| model_files::other_tokenizer(&self.path)).flatten();
            CliError::new(Exit::Missing, message).hint(other.as_deref().unwrap_or(hint))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_the_hub_leads_to_a_download() {
        let want =
            "nothing is downloaded; to download it first: hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B";
        assert_eq!(missing(Path::new("Qwen/Qwen3-0.6B")), want);
        // `src` exists
        for path in [
            "runs/a",
            "a",
            "a/b/c",
            "/a/b",
            "./a",
            "a/",
            "../a",
            "src/a",
            "a b/c",
            "a;b/c",
            "models/a.gguf",
            "a/b.model",
        ] {
            assert_eq!(download(Path::new(path), ""), None, "{path}");
        }
    }
}
