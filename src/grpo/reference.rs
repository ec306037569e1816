//! The reference model of the KL term in the run directory.
use std::path::PathBuf;
use std::sync::Arc;

use super::Error;
use crate::config::GrpoSection;
use crate::model::Model;
use crate::model::checkpoint::{CheckpointDir, RealFs, step_path};
use crate::model::export::ExportSource;
use crate::model::store::{self, StoreError};
use crate::run::{RunDir, has_checkpoint, sha256};
use crate::tensor::Device;
use crate::tensor::faults::{self, Fault};
use crate::training;

fn dir(run: &RunDir) -> PathBuf {
    run.path().join("reference")
}

fn checkpoint_dir(run: &RunDir, section: &GrpoSection) -> Result<CheckpointDir, Error> {
    let opened = CheckpointDir::open(Arc::new(RealFs), &dir(run), section.keep);
    opened.map_err(|error| Error::Store(StoreError::from(error)))
}

/// The checkpoints of a reference model that is updated. `None`: there is no reference model, or it stays as it is.
///
/// # Errors
/// The directory cannot be created.
pub fn checkpoints(run: &RunDir, section: &GrpoSection) -> Result<Option<CheckpointDir>, Error> {
    let is_updated = section.beta > 0.0 && section.ref_model_sync_steps > 0;
    is_updated.then(|| checkpoint_dir(run, section)).transpose()
}

/// Whether the run has a reference model.
pub fn exists(run: &RunDir) -> bool {
    has_checkpoint(&dir(run))
}

/// Copies the initial model to RUN/reference, so that a resume does not depend on its files. Replaces the reference model
/// of an earlier start.
///
/// # Errors
/// The earlier one cannot be removed, or the checkpoint cannot be written.
pub fn create(run: &RunDir, section: &GrpoSection, initial: &ExportSource<'_>) -> Result<(), Error> {
    let dir = dir(run);
    if dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(|source| crate::run::Error::Io { path: dir, source })?;
    }
    let _ = store::save_model(&checkpoint_dir(run, section)?, initial, 0)?;
    Ok(())
}

/// The checkpoint of the reference model that belongs to the checkpoint of `step`.
fn path(run: &RunDir, section: &GrpoSection, step: u64) -> PathBuf {
    let forgotten = faults::on(Fault::ResumeForgetsReferenceUpdate);
    let saved = if section.ref_model_sync_steps > 0 && !forgotten { step } else { 0 };
    step_path(&dir(run), saved)
}

/// The SHA-256 of the manifest of the checkpoint that [`open`] reads. The manifest has the checksums of all files.
///
/// # Errors
/// The manifest cannot be read.
pub fn digest(run: &RunDir, section: &GrpoSection, step: u64) -> Result<String, Error> {
    Ok(sha256(&path(run, section, step).join("manifest.json"))?)
}

/// Opens the reference model that belongs to the checkpoint of `step`.
///
/// # Errors
/// The checkpoint cannot be read.
pub fn open(run: &RunDir, section: &GrpoSection, step: u64, device: &Device) -> Result<Model, Error> {
    let compute = training::compute(section.ref_dtype);
    let path = path(run, section, step);
    match section.ref_model_sync_steps > 0 {
        true => Ok(store::open(&path, compute, device)?.model),
        false => Ok(store::open_for_inference(&path, compute, device)?.model),
    }
}
