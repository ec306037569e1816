//! The reference model of the KL term in the run directory.
use std::path::PathBuf;
use std::sync::Arc;

use super::Error;
use crate::config::GrpoSection;
use crate::model::Model;
use crate::model::checkpoint::{CheckpointDir, RealFs};
use crate::model::export::ExportSource;
use crate::model::store::{self, StoreError};
use crate::run::{RunDir, has_checkpoint};
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

/// Copies the initial model to RUN/reference, so that a resume does not depend on its files.
///
/// # Errors
/// The checkpoint cannot be written.
pub fn create(run: &RunDir, section: &GrpoSection, initial: &ExportSource<'_>) -> Result<(), Error> {
    let _ = store::save_model(&checkpoint_dir(run, section)?, initial, 0)?;
    Ok(())
}

/// Opens the reference model that belongs to the checkpoint of `step`.
///
/// # Errors
/// The checkpoint cannot be read.
pub fn open(run: &RunDir, section: &GrpoSection, step: u64, device: &Device) -> Result<Model, Error> {
    let compute = training::compute(section.ref_dtype);
    let is_updated = section.ref_model_sync_steps > 0;
    let forgotten = faults::on(Fault::ResumeForgetsReferenceUpdate);
    let saved = if is_updated && !forgotten { step } else { 0 };
    let path = dir(run).join("checkpoints").join(format!("step_{saved:06}"));
    match is_updated {
        true => Ok(store::open(&path, compute, device)?.model),
        false => Ok(store::open_for_inference(&path, compute, device)?.model),
    }
}
