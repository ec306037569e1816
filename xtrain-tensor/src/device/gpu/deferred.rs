//! Deferred operations: a buffer may be allocated before the kernel that writes it is queued.
use std::any::Any;
use std::fmt::Debug;

use super::handle::Gpu;
use super::launch::At;
use crate::error::Result;

/// An operation whose kernel is not queued yet.
///
/// The kernel is queued when the buffer's address is first read. An operation whose input is deferred may queue a
/// fused kernel instead; the result is bit-identical. The deferred operation holds clones of its inputs. A tensor
/// that shares its buffer is copied before it is changed in place, so these inputs keep their values.
pub(crate) trait Deferred: Any + Debug + Send + Sync {
    /// Queues the kernel that writes the buffer at `to`.
    fn launch(&self, gpu: &Gpu, to: At) -> Result<()>;
}
