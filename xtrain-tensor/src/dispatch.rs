//! The mapping from devices to backends.
use std::ops::Deref;
use std::sync::MutexGuard;

use crate::backend::Backend;
use crate::device::Device;

/// The backend of a device for one operation. For a GPU it holds the device's issue lock: lists of indices and counters
/// on the device are not shared between operations of two threads.
pub(crate) struct Issuing<'a> {
    backend: &'a dyn Backend,
    _issue: Option<MutexGuard<'a, ()>>,
}

impl<'a> Deref for Issuing<'a> {
    type Target = dyn Backend + 'a;

    fn deref(&self) -> &Self::Target {
        self.backend
    }
}

/// The backend of `device`. Drop it before the next operation: the issue lock is not reentrant.
pub(crate) fn backend(device: &Device) -> Issuing<'_> {
    match device {
        Device::Reference(reference) => Issuing { backend: reference, _issue: None },
        Device::Cpu(cpu) => Issuing { backend: cpu, _issue: None },
        Device::Gpu(gpu) => Issuing { backend: gpu, _issue: Some(gpu.issue()) },
    }
}
