//! The weights of a Hugging Face directory: one file, shards with an index, or an xtrain checkpoint.
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::checksum::ChecksummedReader;
use super::dir_ops::exists;
use super::error::{CheckpointError, Result};
use super::fs::FileSystem;
use super::header::{self, TensorInfo};
use super::implied::{TiedHead, is_implied};
use super::json;
use super::load::{Checkpoint, LoadOptions, MAX_CONFIG, open, read_small};
use super::manifest::{self, is_plain_name};
use super::tensors::{self, NamedTensor, NewSink, NonFinite, TensorSink};

/// Maximum size of an index in bytes.
const MAX_INDEX: u64 = 64 << 20;

/// The config and weights of a directory.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights<T = NamedTensor> {
    /// config.json.
    pub config: Value,
    /// The tensors, file by file in the order of their data.
    pub tensors: Vec<T>,
}

/// The used part of model.safetensors.index.json.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

struct WeightFile {
    path: PathBuf,
    /// The tensors that the index lists for this file. `None`: there is no index.
    listed: Option<Vec<String>>,
}

/// Loads config.json and the weights of `dir`. `begin` creates the sink of each tensor. A directory with a manifest is
/// verified against it. Of one without, tensors that follow from the others are skipped: the head of a tied model, which
/// has to equal the table, and RoPE frequencies.
///
/// # Errors
/// [`CheckpointError`], naming the file and, where one is involved, the tensor.
pub fn load_weights<T: TensorSink>(
    fs: &dyn FileSystem,
    dir: &Path,
    options: &LoadOptions<'_>,
    begin: NewSink<'_, T>,
) -> Result<Weights<T>> {
    if has_manifest(fs, dir)? {
        let checkpoint = Checkpoint::open(fs, dir)?;
        let config = checkpoint.config()?;
        let tensors = checkpoint.model(&config, options, begin)?;
        return Ok(Weights { config, tensors });
    }
    let (config, shards) = enumerate_shards(fs, dir, options)?;
    let (mut tensors, mut tied) = (Vec::new(), TiedHead::default());
    for WeightFile { path, .. } in &shards {
        let mut file = open(fs, path, "the weights")?;
        let mut from = ChecksummedReader::new(&mut *file);
        for info in header::read(path, &mut from)? {
            if is_implied(&config, &info.name) {
                let read = tensors::read(path, &info, NonFinite::Allow, &mut from, &mut ())?;
                tied.record_implied(path, &info, read.crc);
                continue;
            }
            let mut tensor = begin(&info.name, &info.shape);
            let read = tensors::read(path, &info, options.non_finite, &mut from, &mut tensor)?;
            read.finite?;
            tied.record(&info, read.crc);
            tensors.push(tensor);
        }
    }
    tied.check()?;
    Ok(Weights { config, tensors })
}

/// config.json of `dir`, checked against the headers of the weights. Reads no tensor.
///
/// # Errors
/// As [`load_weights`].
pub fn describe(fs: &dyn FileSystem, dir: &Path, options: &LoadOptions<'_>) -> Result<Value> {
    if has_manifest(fs, dir)? {
        return Checkpoint::open(fs, dir)?.config();
    }
    Ok(enumerate_shards(fs, dir, options)?.0)
}

/// The checkpoint in `dir`, to read its small files. `None`: `dir` has no manifest.
pub(crate) fn with_manifest<'a>(fs: &'a dyn FileSystem, dir: &'a Path) -> Result<Option<Checkpoint<'a>>> {
    if has_manifest(fs, dir)? { Checkpoint::open(fs, dir).map(Some) } else { Ok(None) }
}

/// Whether `dir` is an xtrain checkpoint, which has a manifest.
fn has_manifest(fs: &dyn FileSystem, dir: &Path) -> Result<bool> {
    if exists(fs, &dir.join(manifest::NAME))? {
        return Ok(true);
    }
    if exists(fs, &dir.join("trainer"))? {
        let what = "the manifest of a checkpoint, required to verify the other files";
        return Err(CheckpointError::Missing { path: dir.join(manifest::NAME), what });
    }
    Ok(false)
}

/// config.json and the shards of a directory without a manifest. Verifies the headers of the shards.
fn enumerate_shards(
    fs: &dyn FileSystem,
    dir: &Path,
    options: &LoadOptions<'_>,
) -> Result<(Value, Vec<WeightFile>)> {
    let path = dir.join("config.json");
    let config = json::decode(&path, &read_small(fs, &path, "the model's configuration", MAX_CONFIG)?)?;
    if let Some(check) = options.config {
        check(&path, &config)?;
    }
    let (model, index) = (dir.join("model.safetensors"), dir.join("model.safetensors.index.json"));
    let single = exists(fs, &model)?;
    let shards = match (single, exists(fs, &index)?) {
        (true, _) => vec![WeightFile { path: model, listed: None }],
        (false, true) => read_index(fs, &index)?,
        (false, false) => {
            let what = "the weights; model.safetensors.index.json does not exist either";
            return Err(CheckpointError::Missing { path: model, what });
        }
    };
    let mut infos = Vec::new();
    for WeightFile { path, listed } in &shards {
        let mut file = open(fs, path, "the weights")?;
        let found = header::read(path, &mut ChecksummedReader::new(&mut *file))?;
        if let Some(listed) = listed {
            check_listed(path, listed, &found)?;
        }
        infos.extend(found.into_iter().filter(|info| !is_implied(&config, &info.name)));
    }
    if let Some(check) = options.shapes {
        let file = if single { &shards[0].path } else { &index };
        check(file, &config, &infos)?;
    }
    Ok((config, shards))
}

/// The shards of an index, sorted by name, each with the tensors that the index lists for it.
fn read_index(fs: &dyn FileSystem, path: &Path) -> Result<Vec<WeightFile>> {
    let Index { weight_map } =
        json::decode(path, &read_small(fs, path, "the index of the shards", MAX_INDEX)?)?;
    if weight_map.is_empty() {
        let detail = "expected a weight_map that names the shard of each tensor, found none".into();
        return Err(CheckpointError::Malformed { file: path.into(), detail, source: None });
    }
    let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, shard) in weight_map {
        if !is_plain_name(&shard) {
            return Err(CheckpointError::OutsideDirectory { file: path.into(), got: shard });
        }
        shards.entry(shard).or_default().push(tensor);
    }
    let file =
        |(shard, tensors)| WeightFile { path: path.with_file_name::<String>(shard), listed: Some(tensors) };
    Ok(shards.into_iter().map(file).collect())
}

/// Checks that a shard contains exactly the tensors that the index lists for it.
fn check_listed(path: &Path, listed: &[String], found: &[TensorInfo]) -> Result<()> {
    let shapes: HashMap<&str, &[usize]> = TensorInfo::shapes(found).collect();
    let shape = |name: &str| shapes.get(name).map(|shape| shape.to_vec()).unwrap_or_default();
    let want: Vec<_> = listed.iter().map(|name| (name.clone(), shape(name))).collect();
    tensors::require_shapes(path, &want, TensorInfo::shapes(found))
}
