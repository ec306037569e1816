//! The weights of a Hugging Face directory: one file, or shards with an index, or a checkpoint of ours.
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::checksum::Summed;
use super::error::{CheckpointError, Result};
use super::fs::{FileSystem, Kind};
use super::header::{self, TensorInfo};
use super::json;
use super::load::{Checkpoint, open, read_config, read_small};
use super::manifest::{self, is_plain_name};
use super::options::LoadOptions;
use super::tensors::{self, Begin, NamedTensor, Sink};

/// The most bytes of an index.
const MAX_INDEX: u64 = 64 << 20;

/// A model as it stands in a directory.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights<T = NamedTensor> {
    /// config.json.
    pub config: Value,
    /// The tensors, file by file in the order of their data.
    pub tensors: Vec<T>,
}

/// model.safetensors.index.json, as far as it is needed.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// A shard, and the tensors that an index puts there.
type Shard = (PathBuf, Option<Vec<String>>);

/// Loads config.json and the weights of `dir`, widened to f32. A directory with a manifest is verified
/// against it.
///
/// # Errors
/// [`CheckpointError`], naming the file, and the tensor where one is concerned.
pub fn load_weights(fs: &dyn FileSystem, dir: &Path, options: &LoadOptions<'_>) -> Result<Weights> {
    load_weights_into(fs, dir, options, &NamedTensor::begin)
}

/// [`load_weights`], but `begin` says what takes each tensor.
///
/// # Errors
/// As [`load_weights`].
pub fn load_weights_into<T: Sink>(
    fs: &dyn FileSystem,
    dir: &Path,
    options: &LoadOptions<'_>,
    begin: Begin<'_, T>,
) -> Result<Weights<T>> {
    if is_ours(fs, dir)? {
        let checkpoint = Checkpoint::open(fs, dir)?;
        let config = checkpoint.config()?;
        let tensors = checkpoint.model(&config, options, begin)?;
        return Ok(Weights { config, tensors });
    }
    let (config, shards) = enumerate_shards(fs, dir, options)?;
    let mut tensors = Vec::new();
    for (path, _) in &shards {
        let mut file = open(fs, path, "the weights")?;
        let mut from = Summed { file: &mut *file, crc: 0 };
        for info in header::read(path, &mut from)? {
            let mut tensor = begin(&info.name, &info.shape);
            let (_, finite) = tensors::read(path, &info, (&mut from, options.non_finite), &mut tensor)?;
            finite?;
            tensors.push(tensor);
        }
    }
    Ok(Weights { config, tensors })
}

/// config.json of `dir`, compared with the headers of its weights: no tensor is read.
///
/// # Errors
/// As [`load_weights`].
pub fn describe(fs: &dyn FileSystem, dir: &Path, options: &LoadOptions<'_>) -> Result<Value> {
    match is_ours(fs, dir)? {
        true => Checkpoint::open(fs, dir)?.config(),
        false => Ok(enumerate_shards(fs, dir, options)?.0),
    }
}

/// Whether `dir` has a manifest.
fn is_ours(fs: &dyn FileSystem, dir: &Path) -> Result<bool> {
    if there(fs, &dir.join(manifest::NAME))? {
        return Ok(true);
    }
    if there(fs, &dir.join("trainer"))? {
        let what = "the manifest of a checkpoint, without which nothing in it can be verified";
        return Err(CheckpointError::Missing { path: dir.join(manifest::NAME), what });
    }
    Ok(false)
}

fn there(fs: &dyn FileSystem, path: &Path) -> Result<bool> {
    Ok(fs.kind(path).map_err(CheckpointError::io("inspect", path))? != Kind::Missing)
}

/// config.json and the shards of a directory without a manifest, whose headers are verified.
fn enumerate_shards(
    fs: &dyn FileSystem,
    dir: &Path,
    options: &LoadOptions<'_>,
) -> Result<(Value, Vec<Shard>)> {
    let config = read_config(fs, dir)?;
    let (model, index) = (dir.join("model.safetensors"), dir.join("model.safetensors.index.json"));
    let single = there(fs, &model)?;
    let shards = match (single, there(fs, &index)?) {
        (true, _) => vec![(model, None)],
        (false, true) => read_index(fs, &index)?,
        (false, false) => {
            let what = "the weights; model.safetensors.index.json is not there either";
            return Err(CheckpointError::Missing { path: model, what });
        }
    };
    let mut infos = Vec::new();
    for (path, listed) in &shards {
        let mut file = open(fs, path, "the weights")?;
        let found = header::read(path, &mut Summed { file: &mut *file, crc: 0 })?;
        if let Some(listed) = listed {
            check_listed(path, listed, &found)?;
        }
        infos.extend(found);
    }
    if let Some(check) = options.shapes {
        let file = if single { &shards[0].0 } else { &index };
        check(file, &config, &infos)?;
    }
    Ok((config, shards))
}

/// The shards of an index in the order of their names, each with the tensors that the index puts there.
fn read_index(fs: &dyn FileSystem, path: &Path) -> Result<Vec<Shard>> {
    let Index { weight_map } =
        json::decode(path, &read_small(fs, path, "the index of the shards", MAX_INDEX)?)?;
    if weight_map.is_empty() {
        let detail = "want a weight_map that names the shard of each tensor, got none".into();
        return Err(CheckpointError::Json { file: path.into(), detail });
    }
    let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, shard) in weight_map {
        if !is_plain_name(&shard) {
            return Err(CheckpointError::OutsideDirectory { file: path.into(), got: shard });
        }
        shards.entry(shard).or_default().push(tensor);
    }
    Ok(shards.into_iter().map(|(shard, tensors)| (path.with_file_name(shard), Some(tensors))).collect())
}

/// A shard holds the tensors that the index puts there, and no other.
fn check_listed(path: &Path, listed: &[String], found: &[TensorInfo]) -> Result<()> {
    let shapes: HashMap<&str, &TensorInfo> = found.iter().map(|info| (info.name.as_str(), info)).collect();
    let mut want = Vec::with_capacity(listed.len());
    for name in listed {
        let shape = shapes.get(name.as_str()).map(|info| info.shape.clone()).unwrap_or_default();
        want.push((name.clone(), shape));
    }
    tensors::require_shapes(path, &want, found)
}
