//! `xtrain train --init`: training that starts from the weights of an existing model.
use std::path::{Path, PathBuf};

use toml::Value;

use super::{CliError, Exit, loaded};
use crate::config::check::tree;
use crate::config::{Layer, ModelSection, RunConfig};
use crate::model::store::{self, LoadedModel, StoreError};
use crate::model::tokenizer::TokenizerError;
use crate::model::{Config, Trainer};
use crate::tensor::Device;
use crate::training::{self, Source};

/// Value of `data.tokenizer` if the model has no tokenizer and the configuration names none.
const NO_TOKENIZER: &str = "(none)";

/// The tokenizer of the model as the lowest layer of a configuration. If it has none, the value is [`NO_TOKENIZER`],
/// so that [`describe`] can detect whether a higher layer names one.
pub(super) fn tokenizer(model: &Path) -> Option<Layer> {
    let path = loaded::find(model).ok()?;
    let own = store::tokenizer_of(&path).map(|_| path.to_string_lossy());
    Some(Layer::string("--init", "data.tokenizer", own.unwrap_or(NO_TOKENIZER.into())))
}

/// Opens the model that `train.init` names and copies its sizes into `[model]`. `None`: `train.init` is empty. Fails as
/// [`describe`].
pub(super) fn open(config: &mut RunConfig, device: &Device) -> Result<Option<LoadedModel>, CliError> {
    let Some(path) = describe(config)? else { return Ok(None) };
    let loaded = store::open(&path, training::compute(config.train.dtype), device)?;
    loaded::warn_refused(&loaded.refused, &loaded.path);
    loaded.unsupported_tokenizer.iter().for_each(loaded::warn_unsupported);
    copy_sizes(config, loaded.model.config())?;
    if loaded.tokenizer.is_none() {
        let (model, name) = (&config.train.init, &config.data.tokenizer);
        eprintln!("note: {model} has no tokenizer; using data.tokenizer = {name}");
    }
    Ok(Some(loaded))
}

/// Copies the sizes of the model that `train.init` names into `[model]`, from the headers of its files. Returns the
/// path of the model. `None`: `train.init` is empty. Fails for a model without a tokenizer if `data.tokenizer` is not
/// set, if `[model]` sets other sizes, and if `train.context` exceeds the context of the model.
pub(super) fn describe(config: &mut RunConfig) -> Result<Option<PathBuf>, CliError> {
    if config.train.init.is_empty() {
        return Ok(None);
    }
    let path = loaded::find(Path::new(&config.train.init))?;
    let cfg = store::config_of(&path)?;
    if config.data.tokenizer == NO_TOKENIZER {
        let reason = match store::tokenizer_of(&path) {
            Err(StoreError::Tokenizer(reason @ TokenizerError::Unsupported { .. })) => reason.to_string(),
            _ => format!("{} has no tokenizer", config.train.init),
        };
        let message = format!("{reason}, and `data.tokenizer` is not set");
        return Err(CliError::new(Exit::Usage, message).hint(
            "--set data.tokenizer=FILE (a tokenizer.json), or data.tokenizer=bytes if the ids are bytes",
        ));
    }
    copy_sizes(config, &cfg)?;
    Ok(Some(path))
}

fn copy_sizes(config: &mut RunConfig, cfg: &Config) -> Result<(), CliError> {
    let own = section(cfg);
    if let Some((key, set, size)) = other_size(&config.model, &own) {
        let message = format!("`model.{key}` = {set}: expected {size}, the value of {}", config.train.init);
        return Err(CliError::new(Exit::Usage, message)
            .hint("remove [model]: the sizes are those of --init; keys that are not set have defaults"));
    }
    if config.train.context > cfg.max_positions {
        let (want, got) = (cfg.max_positions, config.train.context);
        let message = format!("`train.context` = {got}: expected at most {want}, the context of the model");
        return Err(CliError::new(Exit::Usage, message).hint(format_args!("--set train.context={want}")));
    }
    config.model = own;
    Ok(())
}

/// A key of `[model]` whose value is not that of `own`, and both values. A key that does not have its default value was set
/// and comes first. A vocabulary and a context of 0, which stand for those of the tokenizer and of the run, agree with every
/// model; a section of defaults only was not set.
fn other_size(set: &ModelSection, own: &ModelSection) -> Option<(String, Value, Value)> {
    if *set == ModelSection::default() {
        return None;
    }
    let or_own = |size, own| if size == 0 { own } else { size };
    let set = ModelSection {
        preset: String::new(),
        vocab: or_own(set.vocab, own.vocab),
        max_positions: or_own(set.max_positions, own.max_positions),
        ..set.clone()
    };
    let table = |model: &ModelSection| {
        let mut all = tree(&RunConfig { model: model.clone(), ..RunConfig::default() });
        all.remove("model").and_then(|section| section.as_table().cloned()).unwrap_or_default()
    };
    let (own, default) = (table(own), table(&ModelSection::default()));
    let differing = |(key, value): (String, Value)| {
        let size = own.get(&key).filter(|size| **size != value)?.clone();
        Some((key, value, size))
    };
    let all: Vec<_> = table(&set).into_iter().filter_map(differing).collect();
    all.iter().find(|(key, value, _)| default.get(key) != Some(value)).or(all.first()).cloned()
}

/// The sizes of a model as a `[model]` section.
pub(super) fn section(cfg: &Config) -> ModelSection {
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

/// A trainer at step 0 with the weights of the model. Fails if the tokenizer of `source` is not the model's, or its
/// vocabulary is larger.
pub(super) fn trainer(loaded: LoadedModel, config: &RunConfig, source: &Source) -> Result<Trainer, CliError> {
    let LoadedModel { model, tokenizer, .. } = loaded;
    let (rows, ids) = (model.config().vocab, source.tokenizer.vocab_size());
    if tokenizer.is_some_and(|own| own.digest() != source.tokenizer.digest()) || ids > rows {
        let (tokenizer, init) = (&config.data.tokenizer, &config.train.init);
        let message = format!("data.tokenizer = {tokenizer} does not match the tokenizer of {init}");
        return Err(CliError::new(Exit::Usage, message)
            .hint("remove data.tokenizer: the tokenizer is that of --init"));
    }
    Ok(Trainer::new(model, training::optim_config(config), training::schedule(config))?)
}
