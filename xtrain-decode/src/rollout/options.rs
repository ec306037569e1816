//! How the engine works. Nothing here changes a bit of a completion.
use xtrain_model::{Config, Model};

use crate::cache::{Cache, KvKind, Room};
use crate::error::{Error, Result};

/// How the engine works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Where keys and values are kept.
    pub kv: KvKind,
    /// The most rows of one prompt in a step; none: the whole prompt.
    pub prefill_chunk: Option<usize>,
    /// The most sequences at a time.
    pub max_batch: usize,
    /// The most rows in a step; none: no bound. Without a cache one sequence runs whatever its length.
    pub max_batched_tokens: Option<usize>,
    /// Positions of the longest sequence; none: those of the model.
    pub max_seq_len: Option<usize>,
    /// Positions in the cache, all sequences together; none: room for `max_batch` longest ones.
    pub kv_capacity: Option<usize>,
    /// The rows that the head runs on.
    pub logits_rows: LogitsRows,
    /// What happens to the pages of prompts that are done.
    pub prefix_caching: PrefixCaching,
    /// On a GPU, the most steps between two looks of the host at what was drawn; a step that says its tokens one by one
    /// wants 1. A processor looks every step.
    pub steps_per_sync: usize,
}

/// What happens to the pages of a sequence when it leaves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PrefixCaching {
    /// They are free.
    #[default]
    Off,
    /// A paged cache keeps them, as long as it has other room, for prompts that begin with the same tokens:
    /// these rows do not run again.
    On,
}

/// The rows that the head runs on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogitsRows {
    /// Those that a token is drawn from.
    #[default]
    Sampled,
    /// All, for who compares logits.
    All,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            kv: KvKind::default(),
            prefill_chunk: None,
            max_batch: 32,
            max_batched_tokens: None,
            max_seq_len: None,
            kv_capacity: None,
            logits_rows: LogitsRows::Sampled,
            prefix_caching: PrefixCaching::Off,
            steps_per_sync: 8,
        }
    }
}

impl EngineOptions {
    /// Refuses what no engine for a model of `cfg` can do.
    ///
    /// # Errors
    /// The first field outside its range.
    pub fn check(&self, cfg: &Config) -> Result<()> {
        let page = if let KvKind::Paged { page } = self.kv { page } else { 1 };
        let sizes = [
            ("page", Some(page)),
            ("prefill_chunk", self.prefill_chunk),
            ("max_batch", Some(self.max_batch)),
            ("max_batched_tokens", self.max_batched_tokens),
            ("max_seq_len", self.max_seq_len),
            ("kv_capacity", self.kv_capacity),
            ("steps_per_sync", Some(self.steps_per_sync)),
        ];
        let zero = sizes.iter().find(|(_, n)| *n == Some(0));
        if let Some(&(field, _)) = zero {
            return Err(Error::Option { field, want: "at least 1", got: "0".into() });
        }
        if self.max_batch > 1 << 20 {
            let got = self.max_batch.to_string();
            return Err(Error::Option { field: "max_batch", want: "at most 1048576", got });
        }
        if let Some(n) = self.max_seq_len.filter(|&n| n > cfg.max_positions) {
            let want = "at most the positions of the model";
            return Err(Error::Option { field: "max_seq_len", want, got: n.to_string() });
        }
        let Room { positions, slots, .. } = self.room(cfg);
        match slots.filter(|&n| self.kv == KvKind::Contiguous && n < positions) {
            Some(n) => {
                let want = "at least the positions of one sequence, for a contiguous cache";
                Err(Error::Option { field: "kv_capacity", want, got: n.to_string() })
            }
            None => Ok(()),
        }
    }

    /// What the cache has room for.
    pub fn room(&self, cfg: &Config) -> Room {
        let positions = self.max_seq_len.unwrap_or(cfg.max_positions).min(cfg.max_positions);
        let sequences = match (self.kv, self.kv_capacity) {
            (KvKind::Contiguous, Some(all)) => self.max_batch.min(all / positions).max(1),
            _ => self.max_batch,
        };
        Room { sequences, positions, slots: self.kv_capacity }
    }

    /// The most steps before a look: no sequence has more than its positions.
    pub(super) fn turns(&self, cfg: &Config) -> usize {
        self.steps_per_sync.min(self.room(cfg).positions)
    }

    pub(crate) fn cache(&self, model: &Model) -> Result<Option<Box<dyn Cache>>> {
        Ok(self.kv.cache(model, self.room(model.config()))?)
    }
}
