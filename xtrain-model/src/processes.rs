//! The processes that train one model, as the caller describes them.
use std::sync::Arc;

use xtrain_comm::{Communicator, SingleProcess};
use xtrain_tensor::GpuPeers;

/// The processes of [`Trainer::join`](crate::Trainer::join), and what this one uses besides the device of the model. The
/// result does not depend on them.
#[derive(Debug, Clone)]
pub struct Processes {
    /// The operations between them.
    pub comm: Arc<dyn Communicator>,
    /// The connection of their GPUs. With it, gradients and weights travel between GPUs, and each GPU updates its slice
    /// and has its moments. `None`: they travel through host memory, and the CPU updates the slice.
    pub gpus: Option<Arc<GpuPeers>>,
    /// Number of threads of the CPU that updates the slice of a model on a GPU. `None`: the available cores.
    pub host_threads: Option<usize>,
}

impl Processes {
    /// Processes whose gradients and weights travel through host memory.
    pub fn new(comm: Arc<dyn Communicator>) -> Processes {
        Processes { comm, gpus: None, host_threads: None }
    }
}

impl Default for Processes {
    /// This process alone.
    fn default() -> Processes {
        Processes::new(Arc::new(SingleProcess))
    }
}
