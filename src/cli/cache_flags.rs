//! The flags of the KV cache.
use std::ffi::OsStr;
use std::num::NonZeroUsize;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, ValueEnum};

use super::common::{at_least_one, at_least_zero, count, number};
use super::exit::{CliError, Exit};
use crate::decode::{self, EngineOptions};

/// KV cache flags of commands whose results may depend on the cache. They are bit-identical for all values, except
/// `--kv int8` and `--kv sinks`.
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

/// KV cache flags of commands that promise the bits of the training forward pass. The results are bit-identical for all
/// values.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cache")]
pub(super) struct ExactCacheFlags {
    /// KV cache implementation.
    #[arg(long, value_name = "KIND", default_value = "paged", value_parser = ExactKinds)]
    kv: KvCacheArg,
    #[command(flatten)]
    sizes: CacheSizes,
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
    Int8,
    /// The first --kv-sinks tokens and the last --kv-window tokens of a sequence, which may be longer than the model's
    /// context. Lossy.
    Sinks,
}

impl KvCacheArg {
    fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |name| name.get_name().to_string())
    }

    fn is_exact(self) -> bool {
        !matches!(self, KvCacheArg::Int8 | KvCacheArg::Sinks)
    }
}

/// Parses any kind of cache, and lists the exact ones in the help. [`check`] refuses the others with a reason.
#[derive(Debug, Clone, Copy)]
struct ExactKinds;

impl TypedValueParser for ExactKinds {
    type Value = KvCacheArg;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<KvCacheArg, clap::Error> {
        // A later --kv may replace a lossy kind, so it is not an error yet.
        if let Ok(kind) = KvCacheArg::from_str(&value.to_string_lossy(), false) {
            return Ok(kind);
        }
        let name = PossibleValuesParser::new(exact()).parse_ref(command, arg, value)?;
        Ok(KvCacheArg::from_str(&name, false).expect("a possible value"))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(exact()))
    }
}

/// The kinds of cache that are exact.
fn exact() -> impl Iterator<Item = PossibleValue> {
    let exact = KvCacheArg::value_variants().iter().filter(|kind| kind.is_exact());
    exact.filter_map(ValueEnum::to_possible_value)
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

impl ExactCacheFlags {
    pub(super) fn engine(&self) -> EngineOptions {
        let sizes = self.sizes.clone();
        CacheFlags { kv: self.kv, sizes, kv_sinks: decode::KvKind::SINKS, kv_window: decode::KvKind::WINDOW }
            .engine()
    }
}

impl CacheSizes {
    /// The engine options of these flags, with this kind of cache.
    pub(super) fn engine(&self, kv: decode::KvKind) -> EngineOptions {
        EngineOptions { kv, prefill_chunk: Some(self.prefill_chunk.get()), ..EngineOptions::default() }
    }
}

/// Rejects a command line with a flag that has no effect on the kind of cache, or with a lossy cache and a command that
/// promises exact results.
pub(super) fn check(command: &str, matches: &ArgMatches) -> Result<(), CliError> {
    if let Some((name, inner)) = matches.subcommand() {
        return check(name, inner);
    }
    let Ok(Some(kind)) = matches.try_get_one::<KvCacheArg>("kv") else { return Ok(()) };
    let name = kind.name();
    // Commands without this flag have ExactCacheFlags.
    let may_be_lossy = matches.try_contains_id("kv_sinks").is_ok();
    if !kind.is_exact() && !may_be_lossy {
        let message = format!(
            "--kv {name} is lossy: {command} needs logits with the bits of the training forward pass"
        );
        return Err(CliError::new(Exit::Usage, message).hint("use --kv paged"));
    }
    let (has_pages, has_sinks) =
        (matches!(kind, KvCacheArg::Paged | KvCacheArg::Int8), *kind == KvCacheArg::Sinks);
    // A sequence of the others has its slots from the start.
    let preempts = !matches!(kind, KvCacheArg::Off | KvCacheArg::Contiguous | KvCacheArg::Sinks);
    let has_cache = *kind != KvCacheArg::Off;
    let has_pool = has_pages || *kind == KvCacheArg::Contiguous;
    let all = &["growing", "contiguous", "paged", "int8", "sinks"][..];
    for (id, has, kinds) in [
        ("kv_resident", has_pool, &["contiguous", "paged", "int8"][..]),
        ("page_size", has_pages, &["paged", "int8"]),
        ("watermark", has_pages, &["paged", "int8"]),
        ("preempt", preempts, &["growing", "paged", "int8"]),
        ("kv_capacity", has_cache, all),
        ("prefill_chunk", has_cache, all),
        ("kv_sinks", has_sinks, &["sinks"]),
        ("kv_window", has_sinks, &["sinks"]),
    ] {
        let typed =
            matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine);
        if typed && !has {
            let flag = id.replace('_', "-");
            let lossy = ["int8", "sinks"];
            let kinds: Vec<&str> =
                kinds.iter().copied().filter(|kind| may_be_lossy || !lossy.contains(kind)).collect();
            let message = format!("--{flag} requires --kv {}, found --kv {name}", choice(&kinds));
            let hint = match matches.value_source("kv") {
                Some(ValueSource::CommandLine) => "remove one of the two flags".to_string(),
                _ => format!("add --kv {}", kinds[0]),
            };
            return Err(CliError::new(Exit::Usage, message).hint(hint));
        }
    }
    let given = |id: &str| matches.try_contains_id(id).is_ok_and(|given| given);
    let (prefix, saved) = (["prefix", "paged"], ["save_prefix", "growing, contiguous or paged"]);
    let needed = if kind.is_exact() { &[prefix][..] } else { &[prefix, saved] };
    match needed.iter().find(|[id, _]| given(id)).filter(|_| *kind != KvCacheArg::Paged) {
        None => Ok(()),
        Some([flag, kinds]) => {
            let message = format!("--{} requires --kv {kinds}, found --kv {name}", flag.replace('_', "-"));
            Err(CliError::new(Exit::Usage, message).hint("remove one of the two flags"))
        }
    }
}

/// `a, b or c`.
fn choice(words: &[&str]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => words.concat(),
    }
}

fn page(text: &str) -> Result<usize, String> {
    number(text, |n| (1..=65_536).contains(n), "expected a number from 1 to 65536")
}
