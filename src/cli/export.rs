//! `xtrain export`: a model as others open it.
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::common::Common;
use super::{CliError, Exit, loaded, out};
use crate::model::export::{self, Subject};
use crate::model::gguf::Quant;
use crate::report::units;

/// Flags of `xtrain export`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
A Hugging Face directory holds config.json (which transformers 4 and 5 read), model.safetensors and the \
tokenizer; a GGUF file holds all of it. OUT must not exist; it is there whole or not at all.

Examples:
  xtrain export runs/shakespeare shakespeare-hf
  xtrain export runs/shakespeare shakespeare.gguf --type q8_0
  xtrain export model.gguf model-hf --format hf --type bf16")]
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
    free(&args.out)?;
    let loaded = loaded::open_whole(&args.model, &Common::of_processor())?;
    let subject = Subject { model: &loaded.model, tokenizer: loaded.tokenizer.as_ref(), eos: &loaded.eos };
    match format {
        Format::Hf => export::huggingface(&args.out, &subject, quant)?,
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
pub(super) fn say(done: &str, out: &Path, subject: &Subject<'_>) -> Result<(), CliError> {
    let parameters = units::count(subject.model.config().n_params() as u64);
    let tokenizer = match subject.tokenizer {
        Some(tokenizer) => format!("a tokenizer of {}", units::many(tokenizer.vocab_size() as u64, "id")),
        None => "no tokenizer".to_string(),
    };
    out::print(format!("{done} {}: {parameters} parameters, {tokenizer}\n", out.display()))
}
