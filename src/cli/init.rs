//! Training that begins with the weights of a model.
use std::path::{Path, PathBuf};

use toml::Value;

use super::{CliError, Exit, loaded};
use crate::config::{Layer, ModelSection, RunConfig};
use crate::model::store::{self, LoadedModel};
use crate::model::{Config, Trainer};
use crate::tensor::Device;
use crate::training::{self, Source};

/// What `data.tokenizer` is where neither the model has a tokenizer nor anybody names one.
const NONE: &str = "(none)";

/// The model's own tokenizer as the lowest layer of a configuration; [`NONE`] where it has none, so that
/// [`describe`] sees whether a higher layer names one.
pub(super) fn tokenizer(model: &Path) -> Option<Layer> {
    let path = loaded::find(model).ok()?;
    let own = store::tokenizer_of(&path).map(|_| path.to_string_lossy().into_owned());
    let value = Value::String(own.unwrap_or_else(|_| NONE.into()));
    Some(Layer::Flag { flag: "--init", key: "data.tokenizer", value })
}

/// Opens the model that `train.init` names and puts its sizes into `[model]`.
///
/// # Errors
/// A model that cannot be opened; as [`describe`].
pub(super) fn open(config: &mut RunConfig, device: &Device) -> Result<Option<LoadedModel>, CliError> {
    let Some(path) = describe(config)? else { return Ok(None) };
    let opened = store::open(&path, training::compute(config.train.dtype), device)?;
    opened.refused.iter().for_each(|refused| eprintln!("warning: {refused}"));
    adopt(config, opened.model.config())?;
    if opened.tokenizer.is_none() {
        let (model, names) = (&config.train.init, &config.data.tokenizer);
        eprintln!(
            "note: {model} has no tokenizer: its ids are taken to be those of data.tokenizer = {names}"
        );
    }
    Ok(Some(opened))
}

/// Puts the sizes of the model that `train.init` names into `[model]`, from the headers of its files; returns
/// where it is.
///
/// # Errors
/// A model that is not there; one without a tokenizer where `data.tokenizer` names none; sizes in `[model]` that
/// are not its own; a context that it does not serve.
pub(super) fn describe(config: &mut RunConfig) -> Result<Option<PathBuf>, CliError> {
    if config.train.init.is_empty() {
        return Ok(None);
    }
    let path = loaded::find(Path::new(&config.train.init))?;
    let cfg = store::config_of(&path)?;
    if config.data.tokenizer == NONE {
        let message = format!("{} has no tokenizer, and `data.tokenizer` names none", config.train.init);
        return Err(CliError::new(Exit::Usage, message)
            .hint("--set data.tokenizer=FILE (a tokenizer.json), or =bytes if its ids are bytes"));
    }
    adopt(config, &cfg)?;
    Ok(Some(path))
}

fn adopt(config: &mut RunConfig, cfg: &Config) -> Result<(), CliError> {
    let own = section(cfg);
    if config.model != own && config.model != ModelSection::default() {
        let message = format!("[model] sets sizes that are not those of {}", config.train.init);
        return Err(CliError::new(Exit::Usage, message).hint("leave [model] out: --init brings its sizes"));
    }
    if config.train.context > cfg.max_positions {
        let (want, got) = (cfg.max_positions, config.train.context);
        let message = format!("`train.context` = {got}: the model serves at most {want} positions");
        return Err(CliError::new(Exit::Usage, message).hint(format_args!("--set train.context={want}")));
    }
    config.model = own;
    Ok(())
}

/// The sizes of a model as a section of the configuration.
fn section(cfg: &Config) -> ModelSection {
    ModelSection {
        preset: String::new(),
        dim: cfg.dim,
        n_layers: cfg.n_layers,
        n_heads: cfg.n_heads,
        n_kv_heads: cfg.n_kv_heads,
        head_dim: cfg.head_dim,
        ffn_dim: cfg.ffn_dim,
        vocab: cfg.vocab,
        max_positions: cfg.max_positions,
        tie_embeddings: cfg.tie_embeddings,
        qk_norm: cfg.qk_norm,
        rope_theta: cfg.rope_theta,
        norm_eps: cfg.norm_eps,
    }
}

/// A trainer at step 0 of the opened model.
///
/// # Errors
/// Tokens of another tokenizer than the model's, or beyond its vocabulary.
pub(super) fn trainer(begun: LoadedModel, config: &RunConfig, source: &Source) -> Result<Trainer, CliError> {
    let LoadedModel { model, tokenizer, .. } = begun;
    let (rows, ids) = (model.config().vocab, source.tokenizer.vocab_size());
    if tokenizer.is_some_and(|own| own.digest() != source.tokenizer.digest()) || ids > rows {
        let message = format!(
            "data.tokenizer = {} is not the tokenizer of {}, whose weights mean its own ids",
            config.data.tokenizer, config.train.init
        );
        return Err(CliError::new(Exit::Usage, message).hint("leave data.tokenizer out: --init brings it"));
    }
    Ok(Trainer::new(model, training::optim_config(config), training::schedule(config))?)
}
