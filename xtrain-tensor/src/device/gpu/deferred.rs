//! Deferred operations: a buffer may be allocated before the kernel that writes it is queued.
use std::any::Any;
use std::fmt::Debug;

use super::handle::Gpu;
use super::launch::At;
use crate::error::Result;

/// An operation whose kernel is not queued yet.
///
/// The kernel is queued when the buffer's address is first read. An operation that finds its input deferred may queue a
/// fused kernel in its place; the result is bit-identical. The operation owns its inputs: a tensor that is changed in
/// place while another one shares its buffer is copied first, so deferred inputs keep their values.
pub(crate) trait Deferred: Any + Debug + Send + Sync {
    /// Queues the kernel that writes the buffer at `to`.
    fn launch(&self, gpu: &Gpu, to: At) -> Result<()>;
}
