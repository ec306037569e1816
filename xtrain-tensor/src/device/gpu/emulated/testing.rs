//! Access of tests to the emulator.
use std::ffi::c_void;

use super::EmulatorBuild;
use super::kernels::Kernels;

unsafe extern "C" {
    fn xtemu_watch(at: *const c_void, bytes: usize);
    fn xtemu_watched() -> u64;
    fn xtemu_mma_dot16(a: *const u16, b: *const u16, c: f32) -> f32;
}

/// `c + sum over 16 k of a[k] * b[k]` (bf16 bit patterns), as one k-step of a Hopper tensor core.
pub(crate) fn mma_dot16(a: &[u16; 16], b: &[u16; 16], c: f32) -> f32 {
    // SAFETY: 16 values each.
    unsafe { xtemu_mma_dot16(a.as_ptr(), b.as_ptr(), c) }
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
