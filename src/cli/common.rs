//! Flags shared by several commands.
use std::num::NonZeroUsize;
use std::str::FromStr;

use clap::builder::RangedU64ValueParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};

use super::device_name::DeviceName;
use super::exit::{CliError, Exit};
use crate::config::{Layer, Precision};
use crate::decode::{self, EngineOptions, SampleOptions};
use crate::tensor::Device;
use crate::tensor::faults::{self, Fault};

/// Device flags. Only `--dtype` changes results; the others leave them bit-identical.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub(super) struct Common {
    /// Compute device: cpu, cpu:SIMD, cuda, cuda:N or emulated. cpu uses the fastest instruction set of the machine.
    /// cpu:SIMD uses the named one: portable, neon, avx2, avx512, avx512bf16 or amx. cuda selects GPU 0; with several
    /// processes on a machine, each process selects the next GPU.
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub(super) device: DeviceName,
    /// Compute dtype [default: the dtype of the run, otherwise f32].
    #[arg(long, value_name = "TYPE")]
    pub(super) dtype: Option<Precision>,
    /// CPU threads [default: number of available cores].
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(super) threads: Option<usize>,
}

/// KV cache flags. The results are bit-identical for all values, except `--kv int8` and `--kv sinks`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cache")]
pub(super) struct CacheFlags {
    /// KV cache implementation.
    #[arg(long, value_name = "KIND", default_value = "paged")]
    pub(super) kv: KvCacheArg,
    #[command(flatten)]
    pub(super) sizes: CacheSizes,
    /// Tokens at the beginning of a sequence that --kv sinks keeps, at least 0.
    #[arg(long, value_name = "TOKENS", default_value_t = decode::KvKind::SINKS, value_parser = at_least_zero)]
    pub(super) kv_sinks: usize,
    /// Last tokens of a sequence that --kv sinks keeps. --kv-sinks + --kv-window may not exceed the model's context:
    /// reduce them for a context below 1024.
    #[arg(long, value_name = "TOKENS", default_value_t = decode::KvKind::WINDOW, value_parser = at_least_one)]
    pub(super) kv_window: usize,
}

/// Page size and prefill chunk size.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cache")]
pub(super) struct CacheSizes {
    /// Tokens per page of a cache with pages.
    #[arg(long, value_name = "TOKENS", default_value_t = decode::KvKind::PAGE, value_parser = page)]
    pub(super) page_size: usize,
    /// Maximum prompt tokens per forward pass.
    #[arg(long, value_name = "TOKENS", default_value = "256", value_parser = count)]
    pub(super) prefill_chunk: NonZeroUsize,
}

/// The flag `--seed` of commands that have a configuration.
#[derive(Debug, Clone, Args)]
pub(super) struct Seed {
    /// Random seed, 0 to 2^64 - 1; alias for train.seed [default: 0].
    #[arg(long, value_name = "N", value_parser = whole)]
    pub(super) seed: Option<u64>,
}

/// The flag `--force` of commands with an output file.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Force {
    /// Replace the output file if it exists.
    #[arg(long)]
    pub(super) force: bool,
}

/// Sampling flags. The repetition penalty applies first, then the others in the order of the fields.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "Sampling")]
pub(super) struct Sampling {
    /// Softmax temperature; 0 = greedy.
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = temperature)]
    pub(super) temperature: f32,
    /// Top-k sampling: keep the K most likely tokens; 0 = keep all.
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = at_least_zero)]
    pub(super) top_k: usize,
    /// Top-p sampling: keep the smallest set of tokens with total probability P; 1 = keep all.
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = share)]
    pub(super) top_p: f32,
    /// Min-p sampling: keep tokens with at least P times the highest probability; 0 = keep all.
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = share_or_zero)]
    pub(super) min_p: f32,
    /// Repetition penalty: divide the positive logits of tokens in prompt and output by X and multiply the negative
    /// ones; 1 = no penalty. Applies before the temperature.
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = penalty)]
    pub(super) repetition_penalty: f32,
}

/// The flag `--stop`.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "Sampling")]
pub(super) struct StopFlag {
    /// End the completion when its text contains TEXT; may be repeated. The printed text ends before TEXT. The ids and
    /// log-probabilities include all tokens up to the one that completes TEXT.
    #[arg(long, value_name = "TEXT", value_parser = stop_text)]
    pub(super) stop: Vec<String>,
}

/// Configuration flags.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Configuration")]
pub(super) struct Layers {
    /// TOML configuration file; may be repeated, later files override earlier ones.
    #[arg(short, long = "config", value_name = "FILE")]
    pub(super) config: Vec<std::path::PathBuf>,
    /// Override one configuration key, for example train.steps=500; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
}

/// KV cache implementations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum KvCacheArg {
    /// No KV cache: recompute the prefix for every token.
    Off,
    /// Tensors that grow by concatenation.
    Growing,
    /// One preallocated block per sequence.
    Contiguous,
    /// Fixed-size pages, shared between sequences with the same prefix.
    Paged,
    /// Pages in int8, with one scale for each head vector. Lossy: other logits than those of the training forward pass.
    /// Only for generate, chat, rollout, replay, bench decode and bench trace.
    Int8,
    /// The first --kv-sinks tokens and the last --kv-window tokens of a sequence, which may be longer than the model's
    /// context. Lossy, and for the same commands as int8.
    Sinks,
}

impl Common {
    /// The CPU, for commands that read a model and compute nothing.
    pub(super) fn cpu() -> Common {
        Common { device: DeviceName::Cpu(None), dtype: None, threads: None }
    }

    /// Opens the device. The CPU has as many of the requested threads as the operating system grants.
    pub(super) fn open(&self) -> Result<Device, CliError> {
        self.device.open(self.threads())
    }

    pub(super) fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.unwrap_or_else(cores)
    }
}

impl CacheFlags {
    pub(super) fn engine(&self) -> EngineOptions {
        let kv = match self.kv {
            KvCacheArg::Off => decode::KvKind::Off,
            KvCacheArg::Growing => decode::KvKind::Growing,
            KvCacheArg::Contiguous => decode::KvKind::Contiguous,
            KvCacheArg::Paged => decode::KvKind::Paged { page: self.sizes.page_size },
            KvCacheArg::Int8 => decode::KvKind::Int8 { page: self.sizes.page_size },
            KvCacheArg::Sinks => decode::KvKind::Sinks { sinks: self.kv_sinks, window: self.kv_window },
        };
        self.sizes.engine(kv)
    }
}

impl CacheSizes {
    /// The engine options of these flags, with this kind of cache.
    pub(super) fn engine(&self, kv: decode::KvKind) -> EngineOptions {
        EngineOptions { kv, prefill_chunk: Some(self.prefill_chunk.get()), ..EngineOptions::default() }
    }
}

impl Sampling {
    pub(super) fn options(&self) -> SampleOptions {
        SampleOptions {
            repetition_penalty: self.penalty(),
            ..SampleOptions::filtered(self.temperature, self.top_k, self.top_p, self.min_p)
        }
    }

    /// The repetition penalty. `None`: there is none.
    pub(super) fn penalty(&self) -> Option<f32> {
        (self.repetition_penalty != 1.0).then_some(self.repetition_penalty)
    }
}

impl Layers {
    /// The configuration layers, lowest first: files, then `--set`.
    pub(super) fn layers(&self) -> Vec<Layer> {
        let files = self.config.iter().cloned().map(Layer::File);
        files.chain(self.set.iter().cloned().map(Layer::Set)).collect()
    }
}

/// The commands for which a cache may be lossy. The others promise the bits of the training forward pass.
const MAY_BE_LOSSY: [&str; 6] = ["generate", "chat", "rollout", "replay", "decode", "trace"];

/// Rejects a command line with a flag that has no effect on the kind of cache, or with a lossy cache and a command that
/// promises exact results.
pub(super) fn check_cache(command: &str, matches: &ArgMatches) -> Result<(), CliError> {
    if let Some((name, inner)) = matches.subcommand() {
        return check_cache(name, inner);
    }
    let Ok(Some(kind)) = matches.try_get_one::<KvCacheArg>("kv") else { return Ok(()) };
    let name = kind.to_possible_value().map_or(String::new(), |name| name.get_name().to_string());
    let is_lossy = matches!(kind, KvCacheArg::Int8 | KvCacheArg::Sinks);
    let (has_pages, has_sinks) =
        (matches!(kind, KvCacheArg::Paged | KvCacheArg::Int8), *kind == KvCacheArg::Sinks);
    // a sequence of the others has its slots from the start
    let preempts = !matches!(kind, KvCacheArg::Off | KvCacheArg::Contiguous | KvCacheArg::Sinks);
    let has_cache = *kind != KvCacheArg::Off;
    let has_pool = has_pages || *kind == KvCacheArg::Contiguous;
    for (id, has, kinds) in [
        ("kv_resident", has_pool, "contiguous, paged or int8"),
        ("page_size", has_pages, "paged or int8"),
        ("watermark", has_pages, "paged or int8"),
        ("preempt", preempts, "growing, paged or int8"),
        ("kv_capacity", has_cache, "growing, contiguous, paged, int8 or sinks"),
        ("prefill_chunk", has_cache, "growing, contiguous, paged, int8 or sinks"),
        ("kv_sinks", has_sinks, "sinks"),
        ("kv_window", has_sinks, "sinks"),
    ] {
        let typed =
            matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine);
        if typed && !has {
            let flag = id.replace('_', "-");
            let message = format!("--{flag} requires --kv {kinds}, found --kv {name}");
            let other = kinds.split([',', ' ']).next().unwrap_or(kinds);
            let hint = match matches.value_source("kv") {
                Some(ValueSource::CommandLine) => "remove one of the two flags".to_string(),
                _ if other == "sinks" && !MAY_BE_LOSSY.contains(&command) => format!("remove --{flag}"),
                _ => format!("add --kv {other}"),
            };
            return Err(CliError::new(Exit::Usage, message).hint(hint));
        }
    }
    if is_lossy && !MAY_BE_LOSSY.contains(&command) {
        let message = format!(
            "--kv {name} is lossy: {command} needs logits with the bits of the training forward pass"
        );
        return Err(CliError::new(Exit::Usage, message).hint("use --kv paged"));
    }
    let given = |id: &str| matches.try_contains_id(id).is_ok_and(|given| given);
    let (prefix, saved) = (["prefix", "paged"], ["save_prefix", "growing, contiguous or paged"]);
    let needed = if is_lossy { &[prefix, saved][..] } else { &[prefix] };
    match needed.iter().find(|[id, _]| given(id)).filter(|_| *kind != KvCacheArg::Paged) {
        None => Ok(()),
        Some([flag, kinds]) => {
            let message = format!("--{} requires --kv {kinds}, found --kv {name}", flag.replace('_', "-"));
            Err(CliError::new(Exit::Usage, message).hint("remove one of the two flags"))
        }
    }
}

fn threads(text: &str) -> Result<usize, String> {
    number(text, |n| (1..=1024).contains(n), "expected a number from 1 to 1024")
}

fn page(text: &str) -> Result<usize, String> {
    number(text, |n| (1..=65_536).contains(n), "expected a number from 1 to 65536")
}

pub(super) fn temperature(text: &str) -> Result<f32, String> {
    // a number that is too small for f32 is not 0
    let digits = text.split(['e', 'E']).next().unwrap_or(text);
    let is_zero = !digits.contains(|digit: char| ('1'..='9').contains(&digit));
    let is_zero = is_zero || faults::on(Fault::ColdTemperatureIsGreedy);
    let divides = |&t: &f32| t == 0.0 && is_zero || t >= SampleOptions::COLDEST && t.is_finite();
    number(text, divides, "expected 0, or a number of at least 1e-30")
}

pub(super) fn share(text: &str) -> Result<f32, String> {
    number(text, |&x| x > 0.0 && x <= 1.0, "expected a number above 0 and at most 1")
}

pub(super) fn share_or_zero(text: &str) -> Result<f32, String> {
    number(text, |x| (0.0..=1.0).contains(x), "expected a number from 0 to 1")
}

pub(super) fn penalty(text: &str) -> Result<f32, String> {
    number(text, |&x| x > 0.0 && f32::is_finite(x), "expected a number above 0")
}

fn stop_text(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("expected a text of at least one character".into()) } else { Ok(text.into()) }
}

/// Parses a number of new tokens.
pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    number(text, |&n| n >= 1, "expected a whole number of at least 1")
}

pub(super) fn at_least_zero(text: &str) -> Result<usize, String> {
    number(text, |_| true, "expected a whole number of at least 0")
}

/// Parses a token id.
pub(super) fn token_id(text: &str) -> Result<u32, String> {
    number(text, |_| true, "expected token ids, such as 82,79,77")
}

/// Parses a number of at least 1.
pub(super) fn count(text: &str) -> Result<NonZeroUsize, String> {
    number(text, |_| true, "expected a whole number of at least 1")
}

/// Parses a number from 1 to `max`.
pub(super) fn up_to(max: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=max)
}

/// Parses a whole number.
pub(super) fn whole(text: &str) -> Result<u64, String> {
    number(text, |_| true, "expected a whole number from 0 to 2^64 - 1")
}

/// Parses a number that fulfills a condition. A whole number may have an exponent: 1e3.
pub(super) fn number<T: FromStr>(text: &str, holds: impl Fn(&T) -> bool, want: &str) -> Result<T, String> {
    let number = text.parse().ok().or_else(|| without_exponent(text)?.parse().ok());
    number.filter(holds).ok_or_else(|| want.to_string())
}

/// The digits of a whole number with an exponent. `None`: it has none, is not whole, or is not exact in f64.
fn without_exponent(text: &str) -> Option<String> {
    let value: f64 = text.parse().ok().filter(|_| text.contains(['e', 'E']))?;
    (value.fract() == 0.0 && (0.0..9e15).contains(&value)).then(|| format!("{value:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temperature_is_0_or_divides() {
        for (text, want) in [("0", 0.0), ("-0.0", 0.0), ("0e5", 0.0), ("1e-30", 1e-30), ("0.5", 0.5)] {
            assert_eq!(temperature(text), Ok(want), "{text}");
        }
        for text in ["1e-31", "1e-46", "1e-400", "inf", "nan", "-1", ""] {
            assert!(temperature(text).is_err(), "{text}");
        }
        #[cfg(feature = "faults")]
        assert_eq!(faults::with(Fault::ColdTemperatureIsGreedy, || temperature("1e-46")), Ok(0.0));
    }
}
