//! Export of a Hugging Face directory.
use std::io::{self, Write};
use std::path::Path;

use serde_json::json;
use xtrain_tensor::RopeScaling;
use xtrain_tensor::faults::{self, Fault};

use super::atomic::{publish, sync_dir, temporary_path, under_lock, write_file};
use super::shards;
use crate::checkpoint::{CheckpointError, safetensors_header};
use crate::config::Config;
use crate::error::Error;
use crate::export_source::ExportSource;
use crate::hf;
use crate::json::sorted;
use crate::param::Param;
use crate::quant::Quant;
use crate::rope_divisors;
use crate::store::{host_tensors, views};
use crate::store_error::StoreError;

/// The default maximum size in bytes of a weight file: the default of transformers up to version 4.
pub const MAX_SHARD: u64 = 5_000_000_000;

/// Writes a Hugging Face directory: `config.json` in both spellings, `generation_config.json`, the weights in F32,
/// F16 or BF16, and the tokenizer's files. `out` must not exist.
///
/// Divisors of RoPE frequencies that a GGUF file holds become the llama3 rule that agrees with them within the
/// rounding errors of f32: logits may differ in the last digits.
///
/// The weights are `model.safetensors`, or shards of at most `max_shard` bytes of tensors each, with
/// `model.safetensors.index.json`. A larger tensor gets its own shard.
///
/// # Errors
/// A model that no supported family can represent; divisors that no llama3 rule yields; a weight outside the range of
/// `quant`; I/O errors, naming the file.
pub fn huggingface(
    out: &Path,
    source: &ExportSource<'_>,
    quant: Quant,
    max_shard: u64,
) -> Result<(), StoreError> {
    let dtype = match quant {
        Quant::F32 => "float32",
        Quant::F16 => "float16",
        Quant::BF16 => "bfloat16",
        _ => {
            let (field, want) = ("type", "F32, F16 or BF16 in a Hugging Face directory");
            return Err(Error::Config { field, want, got: quant.to_string() }.into());
        }
    };
    let kept = &source.model.kept_fields;
    let mut config = hf::to_json(&with_named_rope(source.model.config())?, source.eos)?;
    kept.add_to(&mut config);
    config["dtype"] = json!(dtype);
    if !faults::on(Fault::TorchDtypeOfSource) {
        config["torch_dtype"] = json!(dtype);
    }
    let (config, generation) = (sorted(config), sorted(kept.generation(hf::eos_json(source.eos))));
    let draft = temporary_path(out)?;
    under_lock(|| std::fs::create_dir(&draft)).map_err(CheckpointError::io("create", out))?;
    let write = || -> Result<(), StoreError> {
        for (name, json) in [("config.json", &config), ("generation_config.json", &generation)] {
            write_file(&draft.join(name), &mut |to| Ok(writeln!(to, "{json:#}")))?;
        }
        for (name, bytes) in source.tokenizer.iter().flat_map(|tokenizer| tokenizer.files()) {
            write_file(&draft.join(name), &mut |to| Ok(to.write_all(bytes)))?;
        }
        let shards = shards::of(source.model, quant, max_shard);
        for shard in &shards {
            write_file(&draft.join(&shard.name), &mut |to| weights(to, &shard.params, quant))?;
        }
        if let Some(index) = shards::index(&shards).map(sorted) {
            write_file(&draft.join("model.safetensors.index.json"), &mut |to| Ok(writeln!(to, "{index:#}")))?;
        }
        sync_dir(&draft)
    };
    publish(write(), &draft, out)
}

/// The config with a RoPE scaling that other programs can read: for a table of divisors, the llama3 rule that agrees
/// with it within the rounding errors of f32. Its logits may differ in the last digits.
fn with_named_rope(cfg: &Config) -> Result<Config, Error> {
    let RopeScaling::Divisors(table) = &cfg.rope_scaling else { return Ok(cfg.clone()) };
    let Some(rope_scaling) = rope_divisors::rule_within_rounding(cfg, table) else {
        let (field, want) = ("rope_scaling", "divisors of a llama3 rule; export to GGUF keeps any divisors");
        return Err(Error::Config { field, want, got: "other divisors".into() });
    };
    Ok(Config { rope_scaling, ..cfg.clone() })
}

fn weights(to: &mut dyn Write, params: &[&Param], quant: Quant) -> Result<io::Result<()>, StoreError> {
    let hosts = host_tensors(params.iter().copied())?;
    let views = views(&hosts)?;
    if let Err(e) = to.write_all(&safetensors_header(&views, quant)?) {
        return Ok(Err(e));
    }
    let mut bytes = Vec::new();
    for view in views {
        bytes.clear();
        if !quant.narrow(view.data, &mut bytes) {
            let (name, want) = (view.name.into(), format!("weights within the range of {quant}"));
            return Err(Error::Parameter { name, want, got: "a weight outside the range".into() }.into());
        }
        if let Err(e) = to.write_all(&bytes) {
            return Ok(Err(e));
        }
    }
    Ok(Ok(()))
}
