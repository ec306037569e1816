//! Properties of a GPU.

/// A GPU of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    /// Device name.
    pub name: String,
    /// Architecture, such as `sm_90`.
    pub architecture: String,
    /// Total memory in bytes.
    pub bytes: usize,
}
