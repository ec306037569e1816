//! Writing one checkpoint durably into its own directory.
use std::path::{Path, PathBuf};

use xtrain_tensor::faults::{self, Fault};

use super::checksum::ChecksummedWriter;
use super::control;
use super::dir_ops::sync_dir;
use super::error::{CheckpointError, Result};
use super::fs::FileSystem;
use super::header::{self, TensorView};
use super::manifest::{self, FileRecord, Manifest, TensorRecord};
use super::snapshot::{CheckpointContents, TrainerView};
use super::tensors;
use crate::quant::Quant;

/// A step of a save. An observer is called after each step, so that tests can interrupt a save.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaveStep {
    /// The temporary directory exists.
    Started,
    /// A file is written, but not durable yet.
    Written(&'static str),
    /// A file of the caller is written, but not durable yet.
    WrittenFile(String),
    /// Every file except the manifest is durable.
    FilesSynced,
    /// The manifest is durable.
    ManifestSynced,
    /// The names inside the temporary directory are durable.
    DirectorySynced,
    /// The directory has its final name, which is not durable yet.
    Renamed,
    /// The save is durable.
    Acknowledged,
    /// Older checkpoints are removed.
    Pruned,
}

/// Called after each step of a save.
pub(super) type Observer<'a> = dyn FnMut(&SaveStep) + 'a;

/// Writes the files of a checkpoint.
pub(super) struct Writer<'a> {
    fs: &'a dyn FileSystem,
    dir: &'a Path,
    observe: &'a mut Observer<'a>,
    /// The files that are written, but not durable yet.
    written: Vec<(PathBuf, ChecksummedWriter)>,
    subdirectory: Option<PathBuf>,
    manifest: Manifest,
}

/// Creates `dir` and writes every file of `snapshot` except the manifest. The snapshot has been checked. Fails with
/// [`CheckpointError::Argument`] for a header or a control record that is too large.
pub(super) fn write<'a>(
    fs: &'a dyn FileSystem,
    dir: &'a Path,
    snapshot: &CheckpointContents<'_>,
    observe: &'a mut Observer<'a>,
) -> Result<Writer<'a>> {
    fs.create_dir(dir).map_err(CheckpointError::io("create", dir))?;
    observe(&SaveStep::Started);
    let manifest = Manifest::new(snapshot.numerics, snapshot.dtype, snapshot.step);
    let mut writer = Writer { fs, dir, observe, written: Vec::new(), subdirectory: None, manifest };
    let mut config = serde_json::to_vec_pretty(snapshot.config).expect("a JSON value always serializes");
    config.push(b'\n');
    writer.manifest.config_sha256 = manifest::sha256(&config);
    writer.file("config.json", &config)?;
    writer.notify(&SaveStep::Written("config.json"));
    for (name, bytes) in snapshot.files {
        writer.file(name, bytes)?;
        writer.notify(&SaveStep::WrittenFile((*name).to_owned()));
    }
    writer.tensors("model.safetensors", snapshot.model)?;
    if let Some(TrainerView { control, optimizer }) = snapshot.trainer {
        let trainer = dir.join("trainer");
        fs.create_dir(&trainer).map_err(CheckpointError::io("create", &trainer))?;
        writer.subdirectory = Some(trainer);
        writer.tensors("trainer/optimizer.safetensors", optimizer)?;
        writer.file("trainer/control.bin", &control::encode(control)?)?;
        writer.notify(&SaveStep::Written("trainer/control.bin"));
    }
    Ok(writer)
}

impl Writer<'_> {
    fn create(&self, name: &str) -> Result<(PathBuf, ChecksummedWriter)> {
        let path = self.dir.join(name);
        let file = self.fs.create(&path).map_err(CheckpointError::io("create", &path))?;
        Ok((path, ChecksummedWriter { file, length: 0, crc: 0 }))
    }

    /// Adds a completely written file to the manifest.
    fn record(&mut self, name: &str, path: PathBuf, file: ChecksummedWriter, tensors: Vec<TensorRecord>) {
        let (name, length, crc32c) = (name.to_owned(), file.length, file.crc);
        self.manifest.files.push(FileRecord { name, length, crc32c, tensors });
        self.written.push((path, file));
    }

    fn file(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let (path, mut file) = self.create(name)?;
        file.write(bytes).map_err(CheckpointError::io("write", &path))?;
        self.record(name, path, file, Vec::new());
        Ok(())
    }

    fn tensors(&mut self, name: &'static str, tensors: &[TensorView<'_>]) -> Result<()> {
        let header = header::encode(tensors, Quant::F32)?;
        let (path, mut file) = self.create(name)?;
        file.write(&header).map_err(CheckpointError::io("write", &path))?;
        let mut records = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let crc32c = tensors::write(tensor, &mut file).map_err(CheckpointError::io("write", &path))?;
            records.push(TensorRecord { name: tensor.name.to_owned(), shape: tensor.shape.to_vec(), crc32c });
        }
        self.record(name, path, file, records);
        self.notify(&SaveStep::Written(name));
        Ok(())
    }

    /// Makes every file durable.
    pub(super) fn sync_files(&mut self) -> Result<()> {
        for (path, file) in &mut self.written {
            file.file.sync().map_err(CheckpointError::io("sync", &*path))?;
        }
        self.notify(&SaveStep::FilesSynced);
        Ok(())
    }

    /// Writes the manifest and makes it and all names durable.
    pub(super) fn seal(&mut self) -> Result<()> {
        let path = self.dir.join(manifest::NAME);
        let mut file = self.fs.create(&path).map_err(CheckpointError::io("create", &path))?;
        file.write(&self.manifest.encode()).map_err(CheckpointError::io("write", &path))?;
        file.sync().map_err(CheckpointError::io("sync", &path))?;
        self.notify(&SaveStep::ManifestSynced);
        let not_synced = faults::on(Fault::TrainerDirectoryNotSynced);
        if let Some(subdirectory) = self.subdirectory.as_ref().filter(|_| !not_synced) {
            sync_dir(self.fs, subdirectory)?;
        }
        sync_dir(self.fs, self.dir)?;
        self.notify(&SaveStep::DirectorySynced);
        Ok(())
    }

    pub(super) fn notify(&mut self, step: &SaveStep) {
        (self.observe)(step);
    }
}
