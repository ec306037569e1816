//! Rollouts that are bitwise equal to the training forward: KV caches, samplers and the engine.
//!
//! # Example
//!
//! ```
//! use xtrain_decode::{EngineOptions, Request, generate, generate_greedy_cached};
//! use xtrain_model::{Config, Model};
//! use xtrain_tensor::{Device, Dtype};
//!
//! let cfg = Config {
//!     vocab: 64, dim: 16, ffn_dim: 32, n_layers: 2, n_heads: 2, n_kv_heads: 1, head_dim: 8,
//!     max_positions: 128, rope_theta: 1e4, norm_eps: 1e-6, ..Config::default()
//! };
//! let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 0)?;
//!
//! // One greedy completion of 8 new tokens.
//! let greedy = generate_greedy_cached(&model, &[1, 2, 3], 8)?;
//! assert_eq!(greedy.tokens.len(), 8);
//!
//! // A batch. Temperature 0.8, seed 42. The id makes each request its own random sequence.
//! let requests = (0..4).map(|id| Request { id, ..Request::sampled(&[1, 2, 3], 8, 0.8, 42) }).collect();
//! for completion in generate(&model, requests, EngineOptions::default())? {
//!     println!("{}: {:?} ({})", completion.id, completion.tokens, completion.finish_reason);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to start reading
//!
//! 1. [`generate_naive`] (`rollout/naive.rs`): the definition of a completion. Every token recomputes the whole
//!    sequence. [`generate_naive_repeat_kv`] does the same with keys and values expanded to the query heads.
//! 2. [`cache::Growing`] (`cache/growing.rs`): the simplest cache. [`rope_at`](xtrain_tensor::ops::rope_at) rotates
//!    the new rows, [`cat_seq`](xtrain_tensor::ops::cat_seq) appends them to the sequence, and attention reads the
//!    result. On a GPU, a decode row (the only row of its sequence in the pass) uses the kernels of
//!    [`decode_attention`](xtrain_tensor::ops::decode_attention).
//! 3. [`cache::Paged`] (`cache/paged.rs`): the default. It writes in place and shares pages.
//! 4. [`Engine`] (`rollout/engine.rs`): continuous batching over any of the caches. A scheduler writes the plan of
//!    each step, a runner executes it.
//! 5. [`constraint`]: completions whose text has to match, for example, a regular expression.
//!
//! With exact caches, all of them give the same tokens and log-probabilities, bit for bit. Two caches are lossy, int8
//! and sinks; [`generate_naive_int8`] and [`generate_naive_sinks`] define their results. [`sampler`] defines the choice
//! of a token.
#![forbid(unsafe_code)]
#![warn(clippy::pedantic)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "token ids, positions and slots are u32; Request::check and EngineOptions::check bound them"
)]
#![allow(clippy::float_cmp, reason = "equality of floats is exact here: results are bitwise reproducible")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the sampler's conversions between integer weights and floats are those of docs/numerics.md, section 7"
)]
#![allow(
    clippy::must_use_candidate,
    reason = "most public functions are getters; the attribute on each is noise"
)]
#![allow(clippy::missing_panics_doc, reason = "`expect` states an internal invariant; no input reaches it")]

pub mod cache;
pub mod constraint;
mod error;
mod offload;
mod prefix_file;
mod rollout;
pub mod sampler;
mod storage;
mod tensor_bytes;

pub use cache::{Cache, CacheShape, KvDtype, KvKind, KvMemory, KvRows, KvSnapshot, LayerOffload, Room};
pub use error::{Error, Result};
pub use offload::OffloadStore;
pub use prefix_file::{KvPrefix, PrefixIdentity};
pub use rollout::{
    Completion, Continuation, Counters, Engine, EngineOptions, Event, FinishReason, LogitRow, LogitsRows,
    ModelHandle, Preemption, PrefixCaching, Request, SnapshotId, Speculation, Step, StopConditions,
    TextStops, generate, generate_cached, generate_cached_batch, generate_greedy_cached, generate_naive,
    generate_naive_int8, generate_naive_repeat_kv, generate_naive_sinks, int8_kv, sinks_kv,
};
pub use sampler::SampleOptions;
