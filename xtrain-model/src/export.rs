//! A model as others open it: a Hugging Face directory or a GGUF file, there whole or not at all.
mod shards;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use xtrain_tensor::Tensor;

use crate::checkpoint::{CheckpointError, TensorView, safetensors_header};
use crate::error::Error;
use crate::gguf::{self, Quant};
use crate::hf;
use crate::model::Model;
use crate::param::Param;
use crate::store::StoreError;
use crate::tokenizer::Tokenizer;

/// What is exported.
#[derive(Debug, Clone, Copy)]
pub struct ExportSource<'a> {
    /// The model.
    pub model: &'a Model,
    /// Its tokenizer, where it has one.
    pub tokenizer: Option<&'a Tokenizer>,
    /// The ids that end a text.
    pub eos: &'a [u32],
}

/// The most bytes of a file of weights, unless somebody says otherwise: what transformers wrote up to its version 4.
pub const MAX_SHARD: u64 = 5_000_000_000;

/// Writes a Hugging Face directory: `config.json` in both spellings, `generation_config.json`, the weights in F32,
/// F16 or BF16, and the tokenizer's files. `out` must not exist.
///
/// The weights are `model.safetensors`, or shards of at most `max_shard` bytes of tensors each, with
/// `model.safetensors.index.json`. A tensor that is larger has a shard to itself.
///
/// # Errors
/// A model that no family has; a weight beyond the range of `quant`; the file system, naming the file.
pub fn huggingface(
    out: &Path,
    subject: &ExportSource<'_>,
    (quant, max_shard): (Quant, u64),
) -> Result<(), StoreError> {
    let dtype = match quant {
        Quant::F32 => "float32",
        Quant::F16 => "float16",
        Quant::BF16 => "bfloat16",
        Quant::Q8_0 | Quant::Q4_0 => {
            let (field, want) = ("type", "F32, F16 or BF16 in a Hugging Face directory");
            return Err(Error::Config { field, want, got: quant.to_string() }.into());
        }
    };
    let mut config = hf::to_json(subject.model.config(), subject.eos)?;
    (config["dtype"], config["torch_dtype"]) = (json!(dtype), json!(dtype));
    let generation = json!({"eos_token_id": hf::eos_json(subject.eos)});
    let draft = draft(out)?;
    std::fs::create_dir(&draft).map_err(CheckpointError::io("create", &draft))?;
    let write = || -> Result<(), StoreError> {
        for (name, json) in [("config.json", &config), ("generation_config.json", &generation)] {
            file(&draft.join(name), &mut |to| Ok(writeln!(to, "{json:#}")))?;
        }
        for (name, bytes) in subject.tokenizer.iter().flat_map(|tokenizer| tokenizer.files()) {
            file(&draft.join(name), &mut |to| Ok(to.write_all(bytes)))?;
        }
        let shards = shards::of(subject.model, (quant, max_shard));
        for shard in &shards {
            file(&draft.join(&shard.name), &mut |to| weights(to, &shard.params, quant))?;
        }
        if let Some(index) = shards::index(&shards) {
            file(&draft.join("model.safetensors.index.json"), &mut |to| Ok(writeln!(to, "{index:#}")))?;
        }
        sync(&draft)
    };
    publish(write(), &draft, out)
}

/// Tensors as a safetensors file.
fn weights(to: &mut dyn Write, params: &[&Param], quant: Quant) -> Result<std::io::Result<()>, StoreError> {
    let hosts: Vec<(&str, Tensor)> =
        params.iter().map(|p| Ok((p.name(), p.value()?.to_host()?))).collect::<Result<_, Error>>()?;
    let mut views = Vec::with_capacity(hosts.len());
    for (name, host) in &hosts {
        views.push(TensorView { name, shape: host.shape(), data: host.data().map_err(Error::from)? });
    }
    if let Err(e) = to.write_all(&safetensors_header(&views, quant)?) {
        return Ok(Err(e));
    }
    let mut bytes = Vec::new();
    for view in views {
        bytes.clear();
        if !quant.narrow(view.data, &mut bytes) {
            let (name, want) = (view.name.into(), format!("weights within the range of {quant}"));
            return Err(Error::Parameter { name, want, got: "one beyond it".into() }.into());
        }
        if let Err(e) = to.write_all(&bytes) {
            return Ok(Err(e));
        }
    }
    Ok(Ok(()))
}

/// Writes a GGUF file; see [`gguf::write`]. `out` must not exist.
///
/// # Errors
/// As [`gguf::write`].
pub fn gguf(out: &Path, subject: &ExportSource<'_>, quant: Quant) -> Result<(), StoreError> {
    let name = out.file_stem().map_or("model".into(), |stem| stem.to_string_lossy().into_owned());
    let draft = draft(out)?;
    let done = file(&draft, &mut |to| gguf::write(to, subject, (&name, quant)).map(Ok));
    publish(done, &draft, out)
}

/// Where `out` is written before it has its name.
fn draft(out: &Path) -> Result<PathBuf, StoreError> {
    if out.exists() {
        let (what, got) = ("the export", format!("{}, which is there", out.display()));
        return Err(CheckpointError::Argument { what, want: "a path where nothing is", got }.into());
    }
    let mut name = out.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".tmp-{}", std::process::id()));
    Ok(out.with_file_name(name))
}

/// A write whose failure to reach the file system is told apart from what was to be written.
type Fill<'a> = &'a mut dyn FnMut(&mut dyn Write) -> Result<std::io::Result<()>, StoreError>;

/// Writes a file and makes it durable.
fn file(path: &Path, fill: Fill<'_>) -> Result<(), StoreError> {
    let file = File::create_new(path).map_err(CheckpointError::io("create", path))?;
    let mut to = BufWriter::new(file);
    fill(&mut to)?.map_err(CheckpointError::io("write", path))?;
    let file = to.into_inner().map_err(|e| CheckpointError::io("write", path)(e.into_error()))?;
    Ok(file.sync_all().map_err(CheckpointError::io("sync", path))?)
}

fn sync(dir: &Path) -> Result<(), StoreError> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    Ok(synced.map_err(CheckpointError::io("sync", dir))?)
}

/// Gives what is whole its name; removes what is not.
fn publish(done: Result<(), StoreError>, draft: &Path, out: &Path) -> Result<(), StoreError> {
    let done = done.and_then(|()| {
        std::fs::rename(draft, out).map_err(CheckpointError::io("rename", draft))?;
        sync(out.parent().unwrap_or(Path::new(".")))
    });
    if done.is_err() {
        // the first error is the one to report
        let _ = if draft.is_dir() { std::fs::remove_dir_all(draft) } else { std::fs::remove_file(draft) };
    }
    done
}
