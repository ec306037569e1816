//! Flags that commands share.
use std::num::NonZeroUsize;
use std::str::FromStr;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};
use xtrain_tensor::{Device, Schedule, Simd};

use super::{CliError, Exit};
use crate::config::{Layer, Precision};
use crate::decode::{self, EngineOptions, SampleOptions};

/// Where and how a model runs. None of these changes a bit of any result, `--dtype` apart.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct Common {
    /// Device to compute on.
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub device: DeviceName,
    /// What passes compute in [default: f32, or what the run's configuration says].
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<Precision>,
    /// Worker threads [default: the available cores].
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

/// How a rollout keeps keys and values. None of these changes a bit of any result.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cache")]
pub struct CacheFlags {
    /// Where keys and values of earlier tokens are kept; `off` computes them anew for each token.
    #[arg(long, value_name = "KIND", default_value = "paged")]
    pub kv: KvKind,
    /// The sizes.
    #[command(flatten)]
    pub sizes: CacheSizes,
}

/// The sizes of a cache's pages and of what a pass writes into it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cache")]
pub struct CacheSizes {
    /// Tokens of a page of the paged cache.
    #[arg(long, value_name = "TOKENS", default_value_t = decode::KvKind::PAGE, value_parser = page)]
    pub page_size: usize,
    /// Tokens of a prompt that one pass takes.
    #[arg(long, value_name = "TOKENS", default_value = "256")]
    pub prefill_chunk: NonZeroUsize,
}

/// The seed that all random numbers of a command are addressed from.
#[derive(Debug, Clone, Args)]
pub struct Seed {
    /// Seed of every random number, from 0 to 2^64 - 1 [default: train.seed, which is 0 unless set].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// How the next token is drawn from the logits; the filters apply in the order of these flags.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct Sampling {
    /// Divides the logits; 0 takes the largest, as does 1e-6.
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = temperature)]
    pub temperature: f32,
    /// Keeps the K largest logits; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Keeps the fewest tokens that hold this share of the probability.
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = share)]
    pub top_p: f32,
    /// Keeps the tokens that have at least this share of the largest's probability.
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = share_or_zero)]
    pub min_p: f32,
}

/// A configuration in layers.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Configuration")]
pub struct Layers {
    /// TOML file; later ones win over earlier ones.
    #[arg(short, long = "config", value_name = "FILE")]
    pub config: Vec<std::path::PathBuf>,
    /// Sets one key over all files, as train.steps=500; words need no quotes.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// A device by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// `cpu`.
    Cpu,
    /// `cuda`, or `cuda:N`.
    Cuda(u32),
    /// The kernels of `cuda`, run on this machine's processor.
    Emulated,
}

/// Where keys and values of earlier tokens are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvKind {
    /// Nowhere: every token is a pass over all before it.
    Off,
    /// In tensors that grow by concatenation.
    Growing,
    /// In one block, allocated at the start.
    Contiguous,
    /// In pages that sequences share.
    Paged,
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<DeviceName, String> {
        let number = match name.split_once(':') {
            None if name == "cpu" => return Ok(DeviceName::Cpu),
            None if name == "emulated" => return Ok(DeviceName::Emulated),
            None if name == "cuda" => Some(0),
            Some(("cuda", number)) => number.parse().ok(),
            _ => None,
        };
        number.map(DeviceName::Cuda).ok_or_else(|| "expected cpu, cuda, cuda:N or emulated".to_string())
    }
}

impl Common {
    /// The processor, for commands that read a model and compute nothing.
    pub fn of_processor() -> Common {
        Common { device: DeviceName::Cpu, dtype: None, threads: None }
    }

    /// The device, with its threads.
    ///
    /// # Errors
    /// This build or machine does not have it.
    pub fn open(&self) -> Result<Device, CliError> {
        let opened = match self.device {
            DeviceName::Cpu => return Ok(self.processor()),
            DeviceName::Cuda(number) => Device::cuda(number),
            DeviceName::Emulated => Device::emulated(Schedule::Forward),
        };
        let hint = "xtrain doctor says what this machine has; --device cpu has the same bits in f32";
        opened.map_err(|error| CliError::new(Exit::Device, error).hint(hint))
    }

    /// The processor, with as many of the threads as the system gives.
    fn processor(&self) -> Device {
        let device = Device::cpu_with(self.threads(), Simd::detect());
        if device.threads() < self.threads() {
            eprintln!("note: {} of {} threads, the system refuses more", device.threads(), self.threads());
        }
        device
    }

    /// Threads to compute with.
    pub fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.unwrap_or_else(cores)
    }
}

impl CacheFlags {
    /// How the engine works.
    pub fn engine(&self) -> EngineOptions {
        let kv = match self.kv {
            KvKind::Off => decode::KvKind::Off,
            KvKind::Growing => decode::KvKind::Growing,
            KvKind::Contiguous => decode::KvKind::Contiguous,
            KvKind::Paged => decode::KvKind::Paged { page: self.sizes.page_size },
        };
        self.sizes.engine(kv)
    }
}

impl CacheSizes {
    /// How the engine works with a cache of that kind.
    pub fn engine(&self, kv: decode::KvKind) -> EngineOptions {
        EngineOptions { kv, prefill_chunk: Some(self.prefill_chunk.get()), ..EngineOptions::default() }
    }
}

impl Sampling {
    /// How tokens are drawn; a filter that keeps everything is none.
    pub fn options(&self) -> SampleOptions {
        SampleOptions {
            temperature: self.temperature,
            top_k: (self.top_k > 0).then_some(self.top_k),
            top_p: (self.top_p < 1.0).then_some(self.top_p),
            min_p: (self.min_p > 0.0).then_some(self.min_p),
            repetition_penalty: None,
        }
    }
}

impl Layers {
    /// The layers from the lowest: files, then `--set`.
    pub fn layers(&self) -> Vec<Layer> {
        let files = self.config.iter().cloned().map(Layer::File);
        files.chain(self.set.iter().cloned().map(Layer::Set)).collect()
    }
}

/// Refuses `--page-size` beside a cache that has no pages.
///
/// # Errors
/// The command line of `matches`, or of a command in it, has both.
pub(super) fn check_page_size(matches: &ArgMatches) -> Result<(), CliError> {
    if let Some((_, inner)) = matches.subcommand() {
        return check_page_size(inner);
    }
    let typed = matches.try_contains_id("page_size").is_ok()
        && matches.value_source("page_size") == Some(ValueSource::CommandLine);
    match matches.try_get_one::<KvKind>("kv") {
        Ok(Some(kind)) if typed && *kind != KvKind::Paged => {
            let kind = kind.to_possible_value().map_or(String::new(), |name| name.get_name().to_string());
            let message = format!("--page-size is of the paged cache, and --kv {kind} has no pages");
            Err(CliError::new(Exit::Usage, message).hint("leave one of the two flags out"))
        }
        _ => Ok(()),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=1024).contains(n))
        .ok_or_else(|| "expected a number from 1 to 1024".into())
}

fn page(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=65_536).contains(n))
        .ok_or_else(|| "expected a number from 1 to 65536".into())
}

fn temperature(text: &str) -> Result<f32, String> {
    let divides = |t: f32| t == 0.0 || t >= SampleOptions::COLDEST && t.is_finite();
    number(text, divides, "expected 0, or a number from 1e-30")
}

fn share(text: &str) -> Result<f32, String> {
    number(text, |x| x > 0.0 && x <= 1.0, "expected a number above 0, at most 1")
}

fn share_or_zero(text: &str) -> Result<f32, String> {
    number(text, |x| (0.0..=1.0).contains(&x), "expected a number from 0 to 1")
}

fn number(text: &str, holds: impl Fn(f32) -> bool, want: &str) -> Result<f32, String> {
    text.parse().ok().filter(|&x| holds(x)).ok_or_else(|| want.to_string())
}
