//! `xtrain export`: writes a model in Hugging Face or GGUF format.
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::byte_size::byte_size;
use super::common::{Common, Force};
use super::model_arg::ModelArg;
use super::output_dir::{OutputDir, Replaceable};
use super::{CliError, Exit, interrupt, loaded, out, output_path};
use crate::model::Param;
use crate::model::export::{self, ExportSource};
use crate::model::gguf::{self, Quant};
use crate::model::temporary::is_exported_model;
use crate::report::units;
use crate::tensor::RopeScaling;
use crate::tensor::faults::{self, Fault};

#[derive(Debug, Clone, Args)]
#[command(allow_missing_positional = true)]
#[command(after_help = "\
A Hugging Face directory has config.json (readable by transformers 4 and 5), model.safetensors and the tokenizer; a \
GGUF file contains all of them. OUT is created atomically. --force replaces an existing file, or a directory that is \
a Hugging Face model and nothing else. Weights larger than one shard are \
split into model-00001-of-0000N.safetensors and so on, with model.safetensors.index.json. A tensor larger than a \
shard gets its own shard.

Examples:
  xtrain export runs/shakespeare shakespeare-hf
  xtrain export runs/shakespeare shakespeare.gguf --type q8_0
  xtrain export model.gguf model-hf --format hf --type bf16
  xtrain export runs/shakespeare shards --max-shard-size 500KB")]
pub(super) struct ExportArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Output directory or file.
    #[arg(value_name = "OUT", required = true)]
    out: PathBuf,
    /// Output format [default: gguf if OUT ends in .gguf, otherwise hf].
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Data type of the matrices; q8_0 requires GGUF, and matrices whose row length is not a multiple of 32 become f16.
    #[arg(long = "type", value_name = "TYPE", default_value = "f32")]
    quant: WeightType,
    /// Maximum size of a safetensors file, for example 500MB, 5GB or 2GiB [default: 5GB].
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    max_shard_size: Option<u64>,
    #[command(flatten)]
    force: Force,
}

/// Output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A Hugging Face directory.
    Hf,
    /// A GGUF file.
    Gguf,
}

/// Data types of exported matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum WeightType {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8,
}

pub(super) fn run(args: &ExportArgs) -> Result<(), CliError> {
    let quant = match args.quant {
        WeightType::F32 => Quant::F32,
        WeightType::F16 => Quant::F16,
        WeightType::Bf16 => Quant::BF16,
        WeightType::Q8 => Quant::Q8_0,
    };
    let format = args.format.map_or_else(|| format_of(&args.out), Ok)?;
    if format == Format::Hf && quant == Quant::Q8_0 {
        let message = "--type q8_0 requires GGUF; a Hugging Face directory supports f32, f16 and bf16";
        return Err(CliError::new(Exit::Usage, message).hint("use --format gguf"));
    }
    if format == Format::Gguf && args.max_shard_size.is_some() {
        let message = "--max-shard-size requires a Hugging Face directory; a GGUF file has no shards";
        return Err(CliError::new(Exit::Usage, message).hint("remove it, or use --format hf"));
    }
    let directory = match format {
        Format::Hf => Some(OutputDir::check(&args.out, args.force, EXPORTED)?),
        Format::Gguf => None,
    };
    if directory.is_none() {
        check_file(&args.out, args.force)?;
        output_path::check_is_no_input(&args.out, [&args.model.path().to_path_buf()])?;
    }
    interrupt::remove_unfinished(directory.as_ref().map_or(&args.out, OutputDir::path), &args.out)?;
    let loaded = loaded::open_with_master_weights(args.model.path(), &Common::cpu())?;
    let source = loaded.export_source();
    match &directory {
        Some(directory) => {
            let shard_size = args.max_shard_size.unwrap_or(export::MAX_SHARD);
            export::huggingface(directory.path(), &source, quant, shard_size)?;
            directory.finish()?;
            if matches!(source.model.config().rope_scaling, RopeScaling::Divisors(_)) {
                eprintln!(
                    "note: config.json names the llama3 rule nearest to the model's RoPE divisors; logits may \
                     differ in the last digits (GGUF keeps the divisors)"
                );
            }
        }
        None if args.force.force => export::replace_gguf(&args.out, &source, quant)?,
        None => export::gguf(&args.out, &source, quant)?,
    }
    if directory.is_none() {
        note_of_rows(&source, quant);
        let mut rounded = gguf::rounded_numbers(source.model.config())?;
        rounded.retain(|_| !faults::on(Fault::RoundedNumbersUnnoted));
        for (key, value, stored) in rounded {
            eprintln!(
                "note: {key} {value} is {stored} in the file, as f32: logits differ in the last digits"
            );
        }
        llama_cpp_notes(&source).for_each(|note| eprintln!("note: {note}"));
    }
    print_summary("wrote", &args.out, &source)
}

/// Prints how many matrices are not stored as `quant`, because their rows are no whole number of blocks.
fn note_of_rows(source: &ExportSource<'_>, quant: Quant) {
    let shapes = source.model.params.iter().map(Param::shape).filter(|shape| shape.len() > 1);
    let (others, all) = shapes.fold((0, 0), |(others, all), shape| {
        (others + usize::from(gguf::element_type(shape, quant) != quant), all + 1)
    });
    if others > 0 {
        let block = quant.block().elements;
        eprintln!(
            "note: {others} of {all} matrices are stored as f16: their row length is not a multiple of {block}"
        );
    }
}

/// What llama.cpp does with a GGUF file of `source` and xtrain does not.
fn llama_cpp_notes(source: &ExportSource<'_>) -> impl Iterator<Item = &'static str> {
    let default_yarn = match &source.model.config().rope_scaling {
        RopeScaling::Yarn(yarn) => (yarn.beta_fast, yarn.beta_slow) == (32.0, 1.0),
        _ => true,
    };
    let without_end = source.eos.is_empty() && source.tokenizer.is_some_and(|t| t.eos_ids().is_empty());
    let yarn = "llama.cpp ignores beta_fast and beta_slow of YaRN and computes with 32 and 1";
    let end =
        "the model has no end-of-text token; llama.cpp ends a text at id 11, and with SentencePiece at id 2";
    [(!default_yarn, yarn), (without_end, end)]
        .into_iter()
        .filter_map(|(applies, note)| applies.then_some(note))
}

/// Endings of files of other programs, which are no names of directories.
const OTHER_FILES: [&str; 8] = ["safetensors", "bin", "pt", "pth", "onnx", "ggml", "tflite", "zip"];

/// The format that the name of the output stands for.
fn format_of(out: &Path) -> Result<Format, CliError> {
    let ending = out.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
    if OTHER_FILES.contains(&ending.as_str()) {
        let message =
            format_args!("{}: expected the name of a directory or of a GGUF file, *.gguf", out.display());
        return Err(CliError::new(Exit::Usage, message)
            .hint("--format hf writes a directory with this name, and model.safetensors in it"));
    }
    Ok(if ending == "gguf" { Format::Gguf } else { Format::Hf })
}

/// What `--force` replaces: a Hugging Face directory as this command writes it.
const EXPORTED: Replaceable =
    Replaceable { holds: is_exported_model, what: "a Hugging Face model without other files" };

/// Checks that a GGUF file may be written.
fn check_file(path: &Path, force: Force) -> Result<(), CliError> {
    if path.is_dir() {
        let message = format_args!("{}: expected a path for a GGUF file, found a directory", path.display());
        return Err(CliError::new(Exit::Usage, message).hint("choose another path, or use --format hf"));
    }
    output_path::check_absent(path, force)
}

/// Prints path, parameter count and vocabulary size of the written model.
pub(super) fn print_summary(action: &str, out: &Path, source: &ExportSource<'_>) -> Result<(), CliError> {
    let parameters = units::count(source.model.config().n_params() as u64);
    let tokenizer = match source.tokenizer {
        Some(tokenizer) => format!("tokenizer with {}", units::many(tokenizer.vocab_size() as u64, "token")),
        None => "no tokenizer".to_string(),
    };
    out::print(format!("{action} {}: {parameters} parameters, {tokenizer}\n", out.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tokenizer::Tokenizer;
    use crate::model::{Config, Model};
    use crate::tensor::{Device, Dtype};

    #[test]
    fn a_tokenizer_without_an_end_of_text_token_has_a_note() {
        let model = Model::init(&Config::tiny(), Dtype::F32, &Device::cpu(), 0).unwrap();
        let notes = |tokenizer: Option<&Tokenizer>, eos: &[u32]| {
            llama_cpp_notes(&ExportSource { model: &model, tokenizer, eos }).collect::<Vec<_>>()
        };
        let text = String::from_utf8(Tokenizer::byte().files()[0].1.to_vec()).unwrap();
        let other = text.replace("<|endoftext|>", "<other>");
        let without_end = Tokenizer::from_json(other.into_bytes(), Path::new("tokenizer.json")).unwrap();
        assert_eq!(notes(Some(&without_end), &[]).len(), 1);
        assert!(notes(Some(&without_end), &[])[0].contains("no end-of-text token"));
        for (tokenizer, eos) in
            [(Some(&without_end), &[256][..]), (Some(&Tokenizer::byte()), &[]), (None, &[])]
        {
            assert!(notes(tokenizer, eos).is_empty());
        }
    }
}
