//! Writing a model to a GGUF file.
use std::io::Write;

use super::config::{self, Arch};
use super::encode;
use super::metadata::Value;
use super::names::{gguf_name, interleave, is_interleaved};
use super::tokenizer;
use crate::checkpoint::CheckpointError;
use crate::error::Error;
use crate::export_source::ExportSource;
use crate::quant::Quant;
use crate::rope_divisors;
use crate::store_error::StoreError;

/// Writes a GGUF file with the model name `name`: matrices as `quant`, vectors in F32. The numbers of
/// the config are stored as f32; see [`rounded_numbers`](super::rounded_numbers).
///
/// # Errors
/// A model or a tokenizer that GGUF cannot represent; a weight outside the range of `quant`, by name; I/O errors.
pub fn write(
    to: &mut dyn Write,
    source: &ExportSource<'_>,
    name: &str,
    quant: Quant,
) -> Result<(), StoreError> {
    let ExportSource { model, tokenizer, eos } = *source;
    let cfg = model.config();
    let arch = Arch::of(cfg)?;
    let text = |text: &str| Value::String(text.to_string());
    let mut values = vec![
        ("general.architecture".to_string(), text(arch.name())),
        ("general.type".to_string(), text("model")),
        ("general.name".to_string(), text(name)),
        ("general.file_type".to_string(), Value::Int(file_type(quant)?)),
        ("general.quantization_version".to_string(), Value::Int(2)),
    ];
    values.extend(config::write(cfg, arch));
    match tokenizer {
        Some(tokenizer) => values.extend(tokenizer::write(tokenizer, cfg.vocab)?),
        None => values.push(tokenizer::write_none()),
    }
    values.extend(tokenizer::write_eos_ids(tokenizer, eos)?);
    let mut tensors: Vec<(String, Vec<usize>, Quant)> = Vec::new();
    let divisors = rope_divisors::divisors(cfg)?;
    if let Some(divisors) = &divisors {
        tensors.push((config::DIVISORS.into(), vec![divisors.len()], Quant::F32));
    }
    for p in model.params.iter() {
        let shape = p.shape();
        tensors.push((gguf_name(p.name()), shape.to_vec(), element_type(shape, quant)));
    }
    let io = |e| StoreError::from(CheckpointError::Io { op: "write", path: name.into(), source: e });
    to.write_all(&encode::header(&values, &tensors)).map_err(io)?;
    if let Some(divisors) = &divisors {
        let bytes: Vec<u8> = divisors.iter().flat_map(|x| x.to_le_bytes()).collect();
        encode::data(to, &bytes).map_err(io)?;
    }
    for p in model.params.iter() {
        let host = p.value()?.to_host().map_err(Error::from)?;
        let (shape, data) = (host.shape(), host.data::<f32>().map_err(Error::from)?);
        let values = if is_interleaved(arch, p.name()) {
            interleave(data, cfg.head_dim, shape.get(1).copied().unwrap_or(1))
        } else {
            data.to_vec()
        };
        let (quant, mut bytes) = (element_type(shape, quant), Vec::new());
        if !quant.narrow(&values, &mut bytes) {
            let (name, want) = (p.name().into(), format!("weights within the range of {quant}"));
            return Err(Error::Parameter { name, want, got: "a weight outside the range".into() }.into());
        }
        encode::data(to, &bytes).map_err(io)?;
    }
    Ok(())
}

/// The element type of a tensor of shape `shape` in a file of `quant`: F32 for vectors, F16 if a row is not a
/// whole number of blocks.
pub fn element_type(shape: &[usize], quant: Quant) -> Quant {
    match shape {
        [_] => Quant::F32,
        [.., row] if row % quant.block().elements != 0 => Quant::F16,
        _ => quant,
    }
}

/// The value of `general.file_type`.
fn file_type(quant: Quant) -> Result<i64, Error> {
    match quant {
        Quant::F32 => Ok(0),
        Quant::F16 => Ok(1),
        Quant::Q8_0 => Ok(7),
        Quant::BF16 => Ok(32),
        _ => {
            let (field, want) = ("type", "F32, F16, BF16 or Q8_0 for writing");
            Err(Error::Config { field, want, got: quant.to_string() })
        }
    }
}
