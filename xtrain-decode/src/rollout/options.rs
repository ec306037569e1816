//! The options of the engine.
use std::borrow::Cow;

use xtrain_model::Config;

use crate::cache::{KvKind, Room};
use crate::error::{Error, Result};

/// Options of an [`Engine`](crate::Engine). None of them changes a bit of a completion, except a lossy kind of cache
/// ([`KvKind::is_exact`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// The kind of KV cache.
    pub kv: KvKind,
    /// Maximum number of rows of one prompt in a step. `None`: the whole prompt.
    pub prefill_chunk: Option<usize>,
    /// Maximum number of running sequences.
    pub max_batch: usize,
    /// Maximum number of rows in a step. `None`: no limit. Without a cache one sequence always runs, whatever its
    /// length.
    pub max_batched_tokens: Option<usize>,
    /// Positions of the longest sequence. `None`: as many as the kind of cache allows ([`KvKind::max_positions`]).
    pub max_seq_len: Option<usize>,
    /// KV slots in the cache, for all sequences together. `None`: room for `max_batch` sequences of `max_seq_len`.
    pub kv_capacity: Option<usize>,
    /// The rows that the LM head runs on.
    pub logits_rows: LogitsRows,
    /// Whether cached rows are kept for later prompts that begin with the same tokens.
    pub prefix_caching: PrefixCaching,
    /// Whether finished sequences can be continued.
    pub continuation: Continuation,
    /// On a GPU, the maximum number of decode steps between two synchronizations of the host. 1 gives each token as
    /// soon as it is sampled. The CPU synchronizes after every step, and so does a GPU with a sinks cache.
    pub steps_per_sync: usize,
    /// Steps that a waiting sequence is ahead of later ones for each level of priority above theirs; see
    /// [`Engine::submit_prioritized`](crate::Engine::submit_prioritized). 0: priorities have no effect.
    pub ageing: usize,
    /// KV slots, rounded up to whole pages, that stay free when a sequence is admitted besides running ones and all of
    /// them have room for their tokens so far. The running sequences grow into them; each next page of a sequence takes
    /// one whole page. `Some(0)`: sequences are admitted as long as there are sequence slots, and preempted when the
    /// cache is full. `None`: with a `kv_capacity`, a sequence is admitted if the cache is expected to have room until
    /// all end: each at its length, or after the mean number of tokens that the engine has sampled for each sequence that
    /// ended before its length. Only a cache with pages has one.
    pub watermark: Option<usize>,
    /// Where drafted tokens come from.
    pub speculation: Speculation,
    /// What happens to the rows of a preempted sequence.
    pub preemption: Preemption,
}

/// What happens to the computed rows of a sequence that is preempted because the cache is full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Preemption {
    /// They are computed again when it continues.
    #[default]
    Recompute,
    /// They move to the offload store and return when it continues; see
    /// [`Engine::offload_to`](crate::Engine::offload_to). What the store has no room for is computed again.
    Offload,
    /// The cheaper of both by an estimate: floating-point operations against bytes to be moved.
    Auto,
}

/// Speculative decoding: the rows of several drafted tokens run in one pass, and those that the sampler would not have
/// sampled are dropped. Needs a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Speculation {
    /// No token is drafted.
    #[default]
    Off,
    /// Prompt lookup: a sequence whose last tokens occurred before drafts the tokens that followed them.
    PromptLookup,
}

/// What happens to the KV pages of a sequence when it leaves the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PrefixCaching {
    /// They are freed.
    #[default]
    Off,
    /// A paged cache keeps them as long as it has other free pages. A prompt that begins with the same tokens does
    /// not run these rows again.
    On,
}

/// Whether finished sequences can be continued; see [`Engine::extend`](crate::Engine::extend).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Continuation {
    /// A finished sequence is dropped.
    #[default]
    Off,
    /// A finished sequence is kept until it is continued or released. Its cached rows are kept as long as no other
    /// sequence needs their room.
    On,
}

/// The rows that the LM head runs on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogitsRows {
    /// Rows that a token is sampled from.
    #[default]
    Sampled,
    /// All rows, to compare logits.
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
            continuation: Continuation::Off,
            steps_per_sync: 8,
            ageing: 32,
            watermark: None,
            speculation: Speculation::Off,
            preemption: Preemption::Recompute,
        }
    }
}

impl EngineOptions {
    /// Checks the options for a model of `cfg`.
    ///
    /// # Errors
    /// The first field outside its range.
    pub fn check(&self, cfg: &Config) -> Result<()> {
        let require = |holds: bool, field, want: Cow<'static, str>, got: usize| {
            if holds { Ok(()) } else { Err(Error::option(field, want, got)) }
        };
        let page = self.kv.page().unwrap_or(1);
        for (field, size) in [
            ("page", Some(page)),
            ("prefill_chunk", self.prefill_chunk),
            ("max_batch", Some(self.max_batch)),
            ("max_batched_tokens", self.max_batched_tokens),
            ("max_seq_len", self.max_seq_len),
            ("kv_capacity", self.kv_capacity),
            ("steps_per_sync", Some(self.steps_per_sync)),
        ] {
            require(size != Some(0), field, "at least 1".into(), 0)?;
        }
        let (max, want) = (Config::MAX_POSITIONS, format!("at most {}", Config::MAX_POSITIONS));
        require(page <= max, "page", want.into(), page)?;
        require(self.max_batch <= 1 << 20, "max_batch", "at most 1048576".into(), self.max_batch)?;
        if let Some(n) = self.max_seq_len {
            let max = self.kv.max_positions(cfg);
            let want = format!("at most {max}, the maximum number of positions of the model");
            require(n <= max, "max_seq_len", want.into(), n)?;
        }
        if let KvKind::Sinks { sinks, window } = self.kv {
            require(window > 0, "window", "at least 1".into(), 0)?;
            let want = "sinks and a window of at most the model's maximum number of positions together";
            let is_small = sinks.checked_add(window).is_some_and(|slots| slots <= cfg.max_positions);
            if !is_small {
                let got = format!("{} and a model of {} positions", self.kv, cfg.max_positions);
                return Err(Error::option("kv", want, got));
            }
        }
        let excludes_drafts = match self.kv {
            KvKind::Off => Some("off, without a cache"),
            KvKind::Sinks { .. } => Some("off, with a sinks cache"),
            _ => None,
        };
        if let Some(want) = excludes_drafts.filter(|_| self.speculation != Speculation::Off) {
            let got = format!("{:?}", self.speculation);
            return Err(Error::option("speculation", want, got));
        }
        if let (KvKind::Contiguous | KvKind::Sinks { .. }, Some(n)) = (self.kv, self.kv_capacity) {
            let least = self.kv.slots(self.room(cfg).positions);
            let want = format!("at least {least} for one sequence of a {} cache", self.kv);
            require(n >= least, "kv_capacity", want.into(), n)?;
        }
        Ok(())
    }

    /// The room of the cache.
    pub fn room(&self, cfg: &Config) -> Room {
        let longest = self.kv.max_positions(cfg);
        let positions = self.max_seq_len.unwrap_or(longest).min(longest);
        let sequences = match (self.kv, self.kv_capacity) {
            (KvKind::Contiguous | KvKind::Sinks { .. }, Some(all)) => {
                self.max_batch.min(all / self.kv.slots(positions).max(1)).max(1)
            }
            _ => self.max_batch,
        };
        Room { sequences, positions, slots: self.kv_capacity }
    }

    /// Maximum number of decode steps between two synchronizations. No sequence has more tokens than positions.
    pub(super) fn max_steps(&self, cfg: &Config) -> usize {
        self.steps_per_sync.min(self.room(cfg).positions)
    }
}
