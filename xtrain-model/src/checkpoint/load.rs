//! Loading and verifying a checkpoint.
use std::path::{Path, PathBuf};

use serde_json::Value;
use xtrain_tensor::faults::{self, Fault};

use super::checksum::ChecksummedReader;
use super::control::{self, Control, Verified};
use super::dir_ops::exists;
use super::error::{CheckpointError, Result};
use super::fs::{FileSystem, Kind, ReadFile};
use super::header::{self, TensorInfo};
use super::json;
use super::manifest::{self, FileRecord, Manifest};
use super::tensors::{self, NamedTensor, NewSink, NonFinite, TensorCheck, TensorSink};

/// Maximum size in bytes of a file that is read at once.
const MAX_SMALL: u64 = 256 << 20;
/// Maximum size of config.json in bytes.
pub(super) const MAX_CONFIG: u64 = 16 << 20;

/// How to treat the trainer's state. It is verified in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TrainerPart {
    /// Load it.
    #[default]
    Load,
    /// Verify it without keeping it in memory. For inference.
    Verify,
}

/// Rejects a config.json, named by its path, before any weights are looked for.
pub type ConfigCheck<'a> = dyn Fn(&Path, &Value) -> Result<()> + 'a;

/// Compares config.json with the tensors of a file. See [`super::require_shapes`].
pub type ShapeCheck<'a> = dyn Fn(&Path, &Value, &[TensorInfo]) -> Result<()> + 'a;

/// Options of checkpoint loading.
#[derive(Default, Clone, Copy)]
pub struct LoadOptions<'a> {
    /// How to treat weights that are NaN or infinite.
    pub non_finite: NonFinite,
    /// Called before the weights of a directory without a manifest are opened. `None`: no check.
    pub config: Option<&'a ConfigCheck<'a>>,
    /// Called before any tensor of the model is allocated. `None`: no check.
    pub shapes: Option<&'a ShapeCheck<'a>>,
    /// How to treat the trainer's state.
    pub trainer: TrainerPart,
}

/// The state that an exact resume needs in addition to the model.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainerState {
    /// The scalars.
    pub control: Control,
    /// The optimizer's tensors, in the order of the file.
    pub optimizer: Vec<NamedTensor>,
}

/// A checkpoint, completely verified.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedCheckpoint<T = NamedTensor> {
    /// The checkpoint directory.
    pub path: PathBuf,
    /// config.json.
    pub config: Value,
    /// The version of the numeric contract that produced the weights.
    pub numerics: String,
    /// The compute dtype of the run.
    pub dtype: String,
    /// Number of optimizer steps completed.
    pub step: u64,
    /// The model's tensors, in the order of the file.
    pub tensors: Vec<T>,
    /// Name and content of the other files, such as tokenizer.json.
    pub files: Vec<(String, Vec<u8>)>,
    /// The trainer's state. `None`: not in the checkpoint, or not requested.
    pub trainer: Option<TrainerState>,
}

/// Loads the checkpoint in `dir` and verifies its manifest, lengths, checksums, digest and shapes. `begin` creates the
/// sink of each model tensor.
///
/// # Errors
/// [`CheckpointError`], naming the file and, where one is involved, the tensor.
pub fn load<T: TensorSink>(
    fs: &dyn FileSystem,
    dir: &Path,
    options: &LoadOptions<'_>,
    begin: NewSink<'_, T>,
) -> Result<LoadedCheckpoint<T>> {
    let checkpoint = Checkpoint::open(fs, dir)?;
    let config = checkpoint.config()?;
    let tensors = checkpoint.model(&config, options, begin)?;
    let mut files = Vec::new();
    for record in &checkpoint.manifest.files {
        let tensors = record.name.starts_with("trainer/") || record.name == "model.safetensors";
        if !tensors && record.name != "config.json" {
            files.push((record.name.clone(), checkpoint.verified(&record.name)?.into_bytes()));
        }
    }
    let trainer = checkpoint.trainer(options)?;
    let Manifest { numerics, dtype, step, .. } = checkpoint.manifest;
    Ok(LoadedCheckpoint { path: dir.into(), config, numerics, dtype, step, tensors, files, trainer })
}

/// A checkpoint of which only the manifest is verified so far.
pub(crate) struct Checkpoint<'a> {
    fs: &'a dyn FileSystem,
    dir: &'a Path,
    pub(super) manifest: Manifest,
}

impl<'a> Checkpoint<'a> {
    pub(super) fn open(fs: &'a dyn FileSystem, dir: &'a Path) -> Result<Checkpoint<'a>> {
        let path = dir.join(manifest::NAME);
        let bytes = read_small(fs, &path, "the manifest of a checkpoint", manifest::MAX_BYTES)?;
        Ok(Checkpoint { fs, dir, manifest: Manifest::decode(&path, &bytes)? })
    }

    /// The path and the manifest record of a required file.
    fn record(&self, name: &str) -> Result<(PathBuf, &FileRecord)> {
        let path = self.dir.join(name);
        match self.manifest.files.iter().find(|file| file.name == name) {
            Some(record) => Ok((path, record)),
            None => Err(CheckpointError::Missing { path, what: "not in the manifest either" }),
        }
    }

    /// The verified bytes of a small file.
    fn verified(&self, name: &str) -> Result<Verified> {
        let (path, record) = self.record(name)?;
        let bytes = read_small(self.fs, &path, "listed in the manifest", MAX_SMALL)?;
        Verified::check(&path, bytes, record.length, record.crc32c)
    }

    /// The content of a small file, verified if the manifest lists it. `None`: it is neither listed nor there.
    pub(crate) fn file(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let listed = self.manifest.files.iter().any(|file| file.name == name);
        if listed && !faults::on(Fault::SmallFilesNotVerified) {
            return Ok(Some(self.verified(name)?.into_bytes()));
        }
        let path = self.dir.join(name);
        if !exists(self.fs, &path)? {
            return Ok(None);
        }
        read_small(self.fs, &path, "a file of the model", MAX_SMALL).map(Some)
    }

    /// config.json, checked against the digest in the manifest.
    pub(super) fn config(&self) -> Result<Value> {
        let path = self.dir.join("config.json");
        let bytes = self.verified("config.json")?.into_bytes();
        let (want, got) = (&self.manifest.config_sha256, manifest::sha256(&bytes));
        if *want != got {
            return Err(CheckpointError::field(path, "sha-256", want, got));
        }
        json::decode(&path, &bytes)
    }

    pub(super) fn model<T: TensorSink>(
        &self,
        config: &Value,
        options: &LoadOptions<'_>,
        begin: NewSink<'_, T>,
    ) -> Result<Vec<T>> {
        let check = |path: &Path, found: &[TensorInfo]| match options.shapes {
            Some(check) => check(path, config, found),
            None => Ok(()),
        };
        self.tensors("model.safetensors", options, &check, begin)
    }

    fn trainer(&self, options: &LoadOptions<'_>) -> Result<Option<TrainerState>> {
        let name = "trainer/control.bin";
        let part = if faults::on(Fault::TrainerWithoutControlDropped) { name } else { "trainer/" };
        if !self.manifest.files.iter().any(|file| file.name.starts_with(part)) {
            return Ok(None);
        }
        let path = self.dir.join(name);
        let control = control::decode(&path, &self.verified(name)?)?;
        if control.step != self.manifest.step {
            let want = self.manifest.step.to_string();
            return Err(CheckpointError::field(path, "step", want, control.step));
        }
        let check_states = |path: &Path, found: &[TensorInfo]| {
            let Some(name) = control.unknown_tensor(found.iter().map(|info| info.name.as_str())) else {
                return Ok(());
            };
            let want = format!("one of {:?}", control.optimizer_states);
            Err(CheckpointError::field(path, "tensor", want, name))
        };
        let name = "trainer/optimizer.safetensors";
        if options.trainer == TrainerPart::Verify {
            self.tensors(name, options, &check_states, &|_, _| ())?;
            return Ok(None);
        }
        let optimizer = self.tensors(name, options, &check_states, &NamedTensor::begin)?;
        Ok(Some(TrainerState { control, optimizer }))
    }

    /// The tensors of a safetensors file. Verifies each tensor and the whole file.
    fn tensors<T: TensorSink>(
        &self,
        name: &str,
        options: &LoadOptions<'_>,
        check: &TableCheck<'_>,
        begin: NewSink<'_, T>,
    ) -> Result<Vec<T>> {
        let (path, record) = self.record(name)?;
        let mut file = open(self.fs, &path, "listed in the manifest")?;
        let length = file.length();
        let mut from = ChecksummedReader::new(&mut *file);
        let found = header::read(&path, &mut from)?;
        if length != record.length {
            let what = "length in the manifest";
            return Err(CheckpointError::Length { file: path, what, want: record.length, got: length });
        }
        let want: Vec<_> =
            record.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect();
        tensors::require_shapes(&path, &want, TensorInfo::shapes(&found))?;
        check(&path, &found)?;
        let mut loaded = Vec::with_capacity(found.len());
        for (info, want) in found.into_iter().zip(&record.tensors) {
            if info.name != want.name {
                return Err(CheckpointError::field(path, "order of tensors", &want.name, info.name));
            }
            let mut tensor = begin(&info.name, &info.shape);
            let TensorCheck { crc: got, finite } =
                tensors::read(&path, &info, options.non_finite, &mut from, &mut tensor)?;
            if got != want.crc32c {
                let (tensor, want) = (Some(want.name.clone()), want.crc32c);
                return Err(CheckpointError::Checksum { file: path, tensor, want, got });
            }
            finite?;
            loaded.push(tensor);
        }
        if from.crc != record.crc32c {
            let (want, got) = (record.crc32c, from.crc);
            return Err(CheckpointError::Checksum { file: path, tensor: None, want, got });
        }
        Ok(loaded)
    }
}

/// Checks the header entries of a file before its tensors are allocated.
pub(super) type TableCheck<'a> = dyn Fn(&Path, &[TensorInfo]) -> Result<()> + 'a;

/// Reads an optional small JSON file. `None`: the file does not exist.
pub(crate) fn read_json(fs: &dyn FileSystem, path: &Path) -> Result<Option<Value>> {
    if !exists(fs, path)? {
        return Ok(None);
    }
    decode_json(path, &read_small(fs, path, "generation settings", MAX_CONFIG)?).map(Some)
}

/// The JSON in `bytes`, the content of `path`.
pub(crate) fn decode_json(path: &Path, bytes: &[u8]) -> Result<Value> {
    json::decode(path, bytes)
}

/// Opens a regular file. `what` describes its content, for the error if it is missing.
pub(super) fn open(fs: &dyn FileSystem, path: &Path, what: &'static str) -> Result<Box<dyn ReadFile>> {
    match fs.kind(path).map_err(CheckpointError::io("inspect", path))? {
        Kind::File => fs.open(path).map_err(CheckpointError::io("open", path)),
        Kind::Missing => Err(CheckpointError::Missing { path: path.into(), what }),
        Kind::Directory | Kind::Other => Err(CheckpointError::NotAFile { path: path.into() }),
    }
}

/// Reads a whole file of at most `max` bytes.
pub(super) fn read_small(fs: &dyn FileSystem, path: &Path, what: &'static str, max: u64) -> Result<Vec<u8>> {
    let mut file = open(fs, path, what)?;
    let got = file.length();
    if got > max {
        return Err(CheckpointError::Limit { file: path.into(), what: "bytes of the file", max, got });
    }
    let mut bytes = vec![0; got as usize];
    file.read(&mut bytes).map_err(CheckpointError::io("read", path))?;
    Ok(bytes)
}
