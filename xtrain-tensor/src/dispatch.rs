//! The mapping from devices to backends.
use crate::backend::Backend;
use crate::device::Device;

/// The backend of `device`.
pub(crate) fn backend(device: &Device) -> &dyn Backend {
    match device {
        Device::Reference(reference) => reference,
        Device::Cpu(cpu) => cpu,
        Device::Gpu(gpu) => gpu,
    }
}
