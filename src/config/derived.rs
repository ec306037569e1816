//! Values that are computed from other keys.
use std::collections::BTreeSet;

use super::error::require;
use super::{Order, Packing, Result, RunConfig, TaskKind};

/// The start of the comment with a computed value in a configuration file.
const COMMENT: &str = "# computed: ";

/// Keys whose values were computed from other keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Derived(BTreeSet<&'static str>);

impl Derived {
    pub(super) fn new(keys: impl IntoIterator<Item = &'static str>) -> Derived {
        Derived(keys.into_iter().collect())
    }

    /// The keys. The sizes of `train.init` are not computed.
    pub fn keys(&self, config: &RunConfig) -> impl Iterator<Item = &'static str> {
        let sizes_of_init = !config.train.init.is_empty();
        self.0.iter().copied().filter(move |key| !(sizes_of_init && key.starts_with("model.")))
    }

    /// The configuration as TOML with these keys as comments.
    pub(super) fn comment_out(&self, config: &RunConfig) -> String {
        let keys: BTreeSet<&str> = self.keys(config).collect();
        let (mut section, mut text) = (String::new(), String::new());
        // the quotes of a text of several lines that has not ended
        let mut open: Option<&str> = None;
        for line in config.to_toml().lines() {
            if let Some(quotes) = open {
                open = open.filter(|_| !line.contains(quotes));
                text += line;
                text.push('\n');
                continue;
            }
            let begins = |quotes: &&str| line.ends_with(*quotes) && line.matches(*quotes).count() == 1;
            open = ["\"\"\"", "'''"].into_iter().find(begins);
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = name.to_string();
            }
            let key = line.split_once(" = ").map(|(key, _)| format!("{section}.{key}"));
            if key.is_some_and(|key| keys.contains(key.as_str())) {
                text += COMMENT;
            }
            text += line;
            text.push('\n');
        }
        text
    }
}

impl RunConfig {
    /// Computes the defaults that depend on other keys. Returns the computed keys.
    pub(super) fn derive(&mut self, from_preset: bool, given: impl Fn(&str) -> bool) -> Result<Derived> {
        let mut keys = Vec::new();
        let mut free = |key: &'static str| {
            let free = !given(key);
            keys.extend(free.then_some(key));
            free
        };
        let model = &mut self.model;
        if !from_preset {
            if free("model.n_kv_heads") {
                model.n_kv_heads = model.n_heads;
            }
            if free("model.head_dim") && model.n_heads > 0 {
                let want =
                    format!("a multiple of model.n_heads = {}, or model.head_dim to be set", model.n_heads);
                require(model.dim.is_multiple_of(model.n_heads), "model.dim", model.dim, want)?;
                model.head_dim = model.dim / model.n_heads;
            }
            if free("model.ffn_dim") {
                model.ffn_dim = (model.dim.saturating_mul(8) / 3).div_ceil(32) * 32;
            }
        }
        let train = &mut self.train;
        if free("train.micro_batch") {
            train.micro_batch = train.batch;
        }
        if free("train.min_learning_rate") {
            train.min_learning_rate = train.learning_rate / 10.0;
        }
        if free("train.warmup") {
            train.warmup = (train.steps / 10).min(100);
        }
        if free("train.decay") {
            train.decay = train.steps / 5;
        }
        let conversations = train.task == TaskKind::Sft;
        if free("train.order") {
            train.order = if conversations { Order::Shuffled } else { Order::Random };
        }
        if free("data.packing") {
            self.data.packing = if conversations { Packing::Documents } else { Packing::Stream };
        }
        if !self.data.val_files.is_empty() && free("data.val_fraction") {
            self.data.val_fraction = 0.0;
        }
        if conversations && free("sample.prompt") {
            self.sample.prompt = String::new();
        }
        if let Some(grpo) = &mut self.grpo
            && free("grpo.epsilon_high")
        {
            grpo.epsilon_high = grpo.epsilon;
        }
        Ok(Derived::new(keys))
    }
}
