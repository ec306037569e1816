//! What the parts of `xtrain grpo` share.
use std::sync::Arc;

use crate::cli::common::Common;
use crate::config::{GrpoSection, RunConfig};
use crate::decode::EngineOptions;
use crate::model::comm::Communicator;
use crate::model::tasks::Task;
use crate::tensor::Device;

/// What a run starts from.
pub(super) struct Setup<'a> {
    /// The configuration.
    pub(super) config: &'a RunConfig,
    /// The changes of a resume. `None`: a new run.
    pub(super) changes: Option<Changes<'a>>,
    /// Its section `[grpo]`.
    pub(super) section: &'a GrpoSection,
    /// The task of the configuration. `None`: the prompts come from a file.
    pub(super) task: Option<&'a (dyn Task + Send + Sync)>,
    /// The flags of the device.
    pub(super) common: &'a Common,
    /// The device.
    pub(super) device: &'a Device,
    /// The engine of the rollouts.
    pub(super) engine: EngineOptions,
    /// The processes of the run.
    pub(super) comm: &'a Arc<dyn Communicator>,
}

/// What a resume changes.
#[derive(Clone, Copy)]
pub(super) struct Changes<'a> {
    /// The configuration so far.
    pub(super) old: &'a RunConfig,
    /// The new `config.toml`.
    pub(super) text: &'a str,
}
