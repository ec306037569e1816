//! Access of tests to the emulator.
use std::ffi::c_void;

use super::EmulatorBuild;
use super::kernels::Kernels;

unsafe extern "C" {
    fn xtemu_watch(at: *const c_void, bytes: usize);
    fn xtemu_watched() -> u64;
}

/// Starts counting the bytes that kernels on checked devices read from `bytes` bytes at `at`; see [`watched`].
pub(crate) fn watch(at: u64, bytes: usize) {
    // SAFETY: the address is only compared, never dereferenced.
    unsafe { xtemu_watch(at as *const c_void, bytes) };
}

/// The bytes read since [`watch`].
pub(crate) fn watched() -> u64 {
    // SAFETY: reads a counter.
    unsafe { xtemu_watched() }
}

/// The names of all kernels.
pub(crate) fn kernel_names() -> Vec<&'static str> {
    Kernels::of(EmulatorBuild::Plain).by_name.keys().copied().collect()
}
