//! `xtrain export`: a model as others open it.
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::common::Common;
use super::{CliError, Exit, loaded, out};
use crate::model::export::{self, ExportSource};
use crate::model::gguf::Quant;
use crate::report::units;

/// Flags of `xtrain export`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
A Hugging Face directory holds config.json (which transformers 4 and 5 read), model.safetensors and the \
tokenizer; a GGUF file holds all of it. OUT must not exist; it is there whole or not at all. Weights beyond \
the size of a shard become model-00001-of-0000N.safetensors and so on, with model.safetensors.index.json; a \
tensor that is larger has a shard to itself.

Examples:
  xtrain export runs/shakespeare shakespeare-hf
  xtrain export runs/shakespeare shakespeare.gguf --type q8_0
  xtrain export model.gguf model-hf --format hf --type bf16
  xtrain export runs/shakespeare shards --max-shard-size 500KB")]
pub struct ExportArgs {
    /// A run (its newest checkpoint), a checkpoint, a Hugging Face directory or a GGUF file.
    pub model: PathBuf,
    /// What is written.
    pub out: PathBuf,
    /// What OUT becomes [default: gguf for a name that ends in .gguf, else hf].
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// The type of matrices; q8_0 in GGUF alone.
    #[arg(long = "type", value_name = "TYPE", default_value = "f32")]
    pub quant: Stored,
    /// The most bytes of tensors in a file of a Hugging Face directory, as 500MB or 5GB: decimal, or MiB and GiB
    /// [default: 5GB].
    #[arg(long, value_name = "SIZE", value_parser = shard_size)]
    pub max_shard_size: Option<u64>,
}

/// Bytes, from a whole number and KB, MB, GB, KiB, MiB, GiB or nothing, in letters of either case.
fn shard_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 7] = [
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("", 1),
    ];
    let lower = text.to_ascii_lowercase();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| Some((lower.strip_suffix(name)?, unit)))
        .expect("every text ends in nothing");
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let bytes = number.parse::<u64>().ok().filter(|_| digits).and_then(|n| n.checked_mul(*unit));
    bytes
        .filter(|&n| n > 0)
        .ok_or_else(|| "want a size of at least a byte, as 5GB, 500MB or 2GiB".to_string())
}

/// What a model is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A Hugging Face directory.
    Hf,
    /// A GGUF file.
    Gguf,
}

/// The type of matrices that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "each is its name")]
pub enum Stored {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8,
}

/// Writes the model.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &ExportArgs) -> Result<(), CliError> {
    let quant = match args.quant {
        Stored::F32 => Quant::F32,
        Stored::F16 => Quant::F16,
        Stored::Bf16 => Quant::BF16,
        Stored::Q8 => Quant::Q8_0,
    };
    let named = if args.out.extension().is_some_and(|e| e == "gguf") { Format::Gguf } else { Format::Hf };
    let format = args.format.unwrap_or(named);
    if format == Format::Hf && quant == Quant::Q8_0 {
        let message = "--type q8_0: want f32, f16 or bf16 in a Hugging Face directory";
        return Err(CliError::new(Exit::Usage, message).hint("--format gguf has it"));
    }
    if format == Format::Gguf && args.max_shard_size.is_some() {
        let message = "--max-shard-size: a GGUF file is one file";
        return Err(CliError::new(Exit::Usage, message).hint("leave it out, or --format hf"));
    }
    free(&args.out)?;
    let loaded = loaded::open_whole(&args.model, &Common::of_processor())?;
    let subject =
        ExportSource { model: &loaded.model, tokenizer: loaded.tokenizer.as_ref(), eos: &loaded.eos };
    match format {
        Format::Hf => {
            let most = args.max_shard_size.unwrap_or(export::MAX_SHARD);
            export::huggingface(&args.out, &subject, quant, most)?;
        }
        Format::Gguf => export::gguf(&args.out, &subject, quant)?,
    }
    say("wrote", &args.out, &subject)
}

/// Refuses a place where something is.
pub(super) fn free(out: &Path) -> Result<(), CliError> {
    if out.exists() {
        let message = format!("{}: there is something already", out.display());
        return Err(CliError::new(Exit::Usage, message).hint("name another place"));
    }
    Ok(())
}

/// Says what stands where.
pub(super) fn say(done: &str, out: &Path, subject: &ExportSource<'_>) -> Result<(), CliError> {
    let parameters = units::count(subject.model.config().n_params() as u64);
    let tokenizer = match subject.tokenizer {
        Some(tokenizer) => format!("a tokenizer of {}", units::many(tokenizer.vocab_size() as u64, "id")),
        None => "no tokenizer".to_string(),
    };
    out::print(format!("{done} {}: {parameters} parameters, {tokenizer}\n", out.display()))
}

#[cfg(test)]
mod tests {
    use super::shard_size;

    #[test]
    fn sizes_are_decimal_unless_they_say_otherwise() {
        for (text, want) in [
            ("5GB", 5_000_000_000),
            ("500mb", 500_000_000),
            ("7KB", 7000),
            ("2GiB", 2 << 30),
            ("3mib", 3 << 20),
            ("1KiB", 1024),
            ("123", 123),
        ] {
            assert_eq!(shard_size(text), Ok(want), "{text}");
        }
        for text in ["", "GB", "0", "0MB", "-1GB", "+1GB", "1.5GB", "5 GB", "5TB", "99999999999GB"] {
            assert!(shard_size(text).unwrap_err().contains("want a size"), "{text}");
        }
    }
}
