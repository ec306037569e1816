//! From layers to a validated configuration.
use std::collections::BTreeMap;

use toml::Value;

use super::check::{KnownKeys, tree};
use super::derived::Derived;
use super::error::require;
use super::{Error, GrpoSection, Layer, ModelSection, Packing, Result, RunConfig, TaskKind, preset};
use crate::decode::SampleOptions;
use crate::model::Config;

/// Keys and their values.
type Given = BTreeMap<String, Value>;

/// The values of several layers.
struct Merged {
    given: Given,
    /// The index of the layer that sets each key.
    from: BTreeMap<String, usize>,
}

/// A configuration, and the keys whose values were computed from other keys because no layer sets them.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// The configuration.
    pub config: RunConfig,
    /// The computed keys.
    pub derived: Derived,
}

impl Resolved {
    /// Merges `layers` over the defaults, computes the defaults that depend on other keys, and validates the result.
    ///
    /// # Errors
    /// As [`RunConfig::load`].
    pub fn load(layers: &[Layer]) -> Result<Resolved> {
        let Merged { given, from } = merge(layers)?;
        resolve(given).map_err(|error| located(error, layers, &from))
    }

    /// The configuration of a resumed run: this one with the changes of `layers`. Other values stay, also computed
    /// ones, with two exceptions. A computed minimum learning rate follows the learning rate. A number that exceeds its
    /// new maximum, as in a shorter run, is computed again if it was computed, or if it is a `train.decay` that the
    /// schedule does not use.
    ///
    /// # Errors
    /// As [`RunConfig::load`].
    pub fn changed(&self, layers: &[Layer]) -> Result<Resolved> {
        let Merged { given: changes, from } = merge(layers)?;
        let mut given = flat(&self.config);
        let mut derived: Vec<&'static str> =
            self.derived.keys(&self.config).filter(|key| !changes.contains_key(*key)).collect();
        if changes.contains_key("train.learning_rate") && derived.contains(&"train.min_learning_rate") {
            given.remove("train.min_learning_rate");
        }
        let keeps_decay = changes.contains_key("train.decay");
        replace(&mut given, changes);
        // only these schedules use `train.decay`
        let decays =
            given.get("train.schedule").and_then(Value::as_str).is_some_and(|name| name.starts_with("wsd"));
        let number = |given: &Given, key: &str| given.get(key).and_then(Value::as_integer);
        for (key, most) in [
            ("train.warmup", "train.steps"),
            ("train.decay", "train.steps"),
            ("train.micro_batch", "train.batch"),
        ] {
            let free = derived.contains(&key) || key == "train.decay" && !keeps_decay && !decays;
            if free && number(&given, key) > number(&given, most) {
                given.remove(key);
                if !derived.contains(&key) {
                    derived.push(key);
                }
            }
        }
        let config = resolve(given.clone()).map_err(|error| located(error, layers, &from))?.config;
        // A value that stays although its inputs changed is no longer computed.
        let values = flat(&config);
        given.retain(|key, _| !derived.contains(&key.as_str()));
        let computed = resolve(given).map(|computed| flat(&computed.config)).unwrap_or_default();
        derived.retain(|key| computed.get(*key) == values.get(*key));
        Ok(Resolved { config, derived: Derived::new(derived) })
    }

    /// The configuration of a new run with the values of `layers`, which replace those of `base`, the layers that this one
    /// was loaded from. Values that were computed are computed again.
    ///
    /// # Errors
    /// As [`RunConfig::load`].
    pub fn recomputed(&self, layers: &[Layer], base: &[Layer]) -> Result<Resolved> {
        let mut given = flat(&self.config);
        self.derived.keys(&self.config).for_each(|key| drop(given.remove(key)));
        replace(&mut given, merge(layers)?.given);
        let from = merge(base)?.from;
        resolve(given).map_err(|error| located(error, base, &from))
    }

    /// The configuration as a TOML file. Computed values are comments.
    pub fn to_toml(&self) -> String {
        self.derived.comment_out(&self.config)
    }
}

/// The values of `layers`; later layers override earlier ones. A preset replaces `[model]` of earlier layers. All flags
/// are one layer, in which a flag and a `--set` before it must not contradict each other.
fn merge(layers: &[Layer]) -> Result<Merged> {
    let known = KnownKeys::new();
    let is_flag = |layer: &Layer| matches!(layer, Layer::Set(_) | Layer::Flag { .. });
    let (mut given, mut from, mut index) = (Given::new(), BTreeMap::new(), 0);
    for layer in layers.chunk_by(|a, b| is_flag(a) && is_flag(b)) {
        let mut values = Given::new();
        let (mut set, mut from_parts) = (BTreeMap::new(), BTreeMap::new());
        for part in layer {
            for (key, value) in part.leaves(&known)? {
                match part {
                    Layer::Set(text) => drop(set.insert(key.clone(), text)),
                    Layer::Flag { flag, .. } if values.get(&key).is_some_and(|old| *old != value) => {
                        require_no_set(flag, &key, &set)?;
                    }
                    _ => {}
                }
                from_parts.insert(key.clone(), index);
                values.insert(key, value);
            }
            index += 1;
        }
        if values.get("model.preset").is_some_and(|name| name.as_str() != Some("")) {
            given.retain(|key, _| !key.starts_with("model."));
            from.retain(|key: &String, _| !key.starts_with("model."));
        }
        replace(&mut given, values);
        from.extend(from_parts);
    }
    Ok(Merged { given, from })
}

/// Adds the values of a later layer. Files for validation replace the fraction of an earlier layer.
fn replace(given: &mut Given, values: Given) {
    let names_files = |files: &Value| files.as_array().is_some_and(|files| !files.is_empty());
    if values.get("data.val_files").is_some_and(names_files) {
        given.remove("data.val_fraction");
    }
    given.extend(values);
}

/// Checks that no `--set` gives `key`, which `flag` sets to another value.
fn require_no_set(flag: &str, key: &str, set: &BTreeMap<String, &String>) -> Result<()> {
    let Some(text) = set.get(key) else { return Ok(()) };
    let place = format!("{flag} and --set {text}");
    Err(Error::Syntax { place, reason: format!("expected one value of `{key}`, found two") })
}

/// The values over the defaults, with those that depend on others.
fn resolve(given: Given) -> Result<Resolved> {
    let base = given.get("model.preset").and_then(Value::as_str).and_then(preset);
    let model = base.map_or_else(ModelSection::default, |preset| preset.section());
    let grpo = given.keys().any(|key| key.starts_with("grpo.")).then(GrpoSection::default);
    let mut all = tree(&RunConfig { model, grpo, ..RunConfig::default() });
    for (key, value) in &given {
        let (section, last) = key.split_once('.').expect("every known key has a section");
        all[section][last] = value.clone();
    }
    let mut config: RunConfig = all.try_into().expect("every value was checked against its key");
    let derived = config.derive(base.is_some(), |key| given.contains_key(key))?;
    config.validate()?;
    Ok(Resolved { config, derived })
}

/// Adds the file and line of an invalid value that a file sets.
fn located(error: Error, layers: &[Layer], from: &BTreeMap<String, usize>) -> Error {
    match error {
        Error::Invalid { place: None, key, got, want } => {
            let place = from.get(key).and_then(|&index| layers[index].place_of(key));
            Error::Invalid { place, key, got, want }
        }
        other => other,
    }
}

/// All keys of a configuration with their values.
pub(crate) fn flat(config: &RunConfig) -> Given {
    let mut all = Given::new();
    for (section, values) in tree(config) {
        let Value::Table(values) = values else { continue };
        all.extend(values.into_iter().map(|(key, value)| (format!("{section}.{key}"), value)));
    }
    all
}

impl RunConfig {
    /// Merges `layers` over the defaults, computes the defaults that depend on other keys, and validates the result.
    ///
    /// # Errors
    /// A file cannot be read or is not TOML; a key is unknown; a value has the wrong type or is invalid.
    pub fn load(layers: &[Layer]) -> Result<RunConfig> {
        Ok(Resolved::load(layers)?.config)
    }

    /// Checks that all values are in range and do not contradict each other.
    ///
    /// # Errors
    /// [`Error::Invalid`](super::Error::Invalid) for the first invalid value, with its key and the accepted range.
    pub fn validate(&self) -> Result<()> {
        self.model.validate()?;
        self.grpo.iter().try_for_each(GrpoSection::validate)?;
        let train = &self.train;
        let positive = |x: f64| x > 0.0 && x.is_finite();
        let from_zero = |x: f64| x >= 0.0 && x.is_finite();
        for (key, n, max) in [
            ("train.context", train.context, 1 << 20),
            ("train.batch", train.batch, 1 << 20),
            ("train.steps", train.steps, 1 << 31),
            ("sample.count", self.sample.count, 1 << 12),
        ] {
            require((1..=max).contains(&n), key, n, format!("a whole number from 1 to {max}"))?;
        }
        let (batch, steps, peak) = (train.batch, train.steps, train.learning_rate);
        let parts = (1..=batch).contains(&train.micro_batch);
        require(parts, "train.micro_batch", train.micro_batch, format!("1 to {batch} (train.batch)"))?;
        let (most, of) = match &self.grpo {
            Some(grpo) if !train.init.is_empty() => {
                (grpo.completions_per_step(), "the completions of a step")
            }
            _ => (batch, "train.batch"),
        };
        let shards = (1..=most).contains(&train.shards);
        require(shards, "train.shards", train.shards, format!("1 to {most} ({of})"))?;
        require(positive(peak), "train.learning_rate", peak, "a finite number above 0")?;
        for (key, rate) in [
            ("train.initial_learning_rate", train.initial_learning_rate),
            ("train.min_learning_rate", train.min_learning_rate),
        ] {
            require((0.0..=peak).contains(&rate), key, rate, format!("0 to {peak} (train.learning_rate)"))?;
        }
        for (key, n) in [("train.warmup", train.warmup), ("train.decay", train.decay)] {
            require(n <= steps, key, n, format!("at most {steps} (train.steps)"))?;
        }
        for (key, x) in [("train.beta1", train.beta1), ("train.beta2", train.beta2)] {
            require((0.0..1.0).contains(&x), key, x, "a number from 0 to below 1")?;
        }
        require(positive(train.eps), "train.eps", train.eps, "a finite number above 0")?;
        let sample = &self.sample;
        for (key, x) in [("train.weight_decay", train.weight_decay), ("train.clip", train.clip)] {
            require(from_zero(x), key, x, "a number of at least 0")?;
        }
        let t = sample.temperature;
        let divides = t == 0.0 || (SampleOptions::COLDEST..=f32::MAX).contains(&(t as f32));
        require(divides, "sample.temperature", t, "0, or a number of at least 1e-30")?;
        require(sample.max_new > 0, "sample.max_new", sample.max_new, "at least 1")?;
        require(train.keep >= 2, "train.keep", train.keep, "at least 2 checkpoints")?;
        let evaluated = train.patience == 0 || train.eval_every > 0;
        require(evaluated, "train.patience", train.patience, "0, or train.eval_every to be at least 1")?;
        let packs = train.task == TaskKind::Lm || self.data.packing == Packing::Documents;
        let want = "documents (train.task = sft does not split conversations)";
        require(packs, "data.packing", "stream", want)?;
        let share = self.data.val_fraction;
        require((0.0..1.0).contains(&share), "data.val_fraction", share, "a number from 0 to below 1")?;
        let replaced = share == 0.0 || self.data.val_files.is_empty();
        require(replaced, "data.val_fraction", share, "0 with data.val_files")?;
        let named = !self.data.tokenizer.is_empty();
        require(named, "data.tokenizer", "\"\"", "`bytes` or the path of a tokenizer.json")?;
        let top_p = sample.top_p as f32 > 0.0 && sample.top_p <= 1.0;
        require(top_p, "sample.top_p", sample.top_p, "a number above 0 and at most 1")?;
        require((0.0..=1.0).contains(&sample.min_p), "sample.min_p", sample.min_p, "a number from 0 to 1")
    }

    /// Checks that a run with `train.patience`, `train.keep_best` or `train.eval_tokens` has a validation split, and
    /// that the first two have an evaluation before the run ends. Not part of [`RunConfig::validate`]: runs of earlier
    /// versions, where these keys had no effect, stay readable.
    ///
    /// # Errors
    /// [`Error::Invalid`](super::Error::Invalid) for `data.val_fraction`, `train.eval_tokens` or `train.eval_every`.
    pub fn require_validation(&self) -> Result<()> {
        let share = self.data.val_fraction;
        let want =
            |key| format!("a number above 0 and below 1, or data.val_files ({key} needs a validation loss)");
        let (train, validated) = (&self.train, share > 0.0 || !self.data.val_files.is_empty());
        require(validated || train.patience == 0, "data.val_fraction", share, want("train.patience"))?;
        require(validated || !train.keep_best, "data.val_fraction", share, want("train.keep_best"))?;
        let (tokens, want) = (train.eval_tokens, "0 without data.val_fraction or data.val_files");
        require(validated || tokens == 0, "train.eval_tokens", tokens, want)?;
        let (every, steps) = (train.eval_every, train.steps);
        let compares = train.keep_best || train.patience > 0;
        let want = format!("1 to {steps} (train.steps) with train.keep_best or train.patience");
        require(!compares || (1..=steps).contains(&every), "train.eval_every", every, want)
    }

    /// The configuration as a TOML file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("every field is a TOML type")
    }
}

impl ModelSection {
    /// Checks that a model can have these sizes. Their products then fit in 64 bits.
    ///
    /// # Errors
    /// [`Error::Invalid`](super::Error::Invalid) for the first invalid size, with its key and the accepted range.
    pub fn validate(&self) -> Result<()> {
        for (key, n, max) in [
            ("model.dim", self.dim, 1 << 16),
            ("model.n_layers", self.n_layers, 1 << 10),
            ("model.n_heads", self.n_heads, 1 << 10),
            ("model.ffn_dim", self.ffn_dim, 1 << 18),
        ] {
            require((1..=max).contains(&n), key, n, format!("a whole number from 1 to {max}"))?;
        }
        let heads = self.n_heads;
        let divides = self.n_kv_heads > 0 && heads.is_multiple_of(self.n_kv_heads);
        let want = format!("a divisor of model.n_heads = {heads}");
        require(divides, "model.n_kv_heads", self.n_kv_heads, want)?;
        let even = (2..=256).contains(&self.head_dim) && self.head_dim.is_multiple_of(2);
        require(even, "model.head_dim", self.head_dim, "an even number from 2 to 256")?;
        let max = Config::MAX_VOCAB;
        require(self.vocab <= max, "model.vocab", self.vocab, format!("at most {max}"))?;
        let (positions, max) = (self.max_positions, Config::MAX_POSITIONS);
        require(positions <= max, "model.max_positions", positions, format!("at most {max}"))?;
        let base = self.rope_theta > 1.0 && self.rope_theta.is_finite();
        require(base, "model.rope_theta", self.rope_theta, "a number above 1")?;
        let eps = self.norm_eps > 0.0 && self.norm_eps < 1.0;
        require(eps, "model.norm_eps", self.norm_eps, "a number above 0 and below 1")
    }
}
