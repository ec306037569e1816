//! C interface of the emulator: kernels/emu/api.cpp and device.hpp.
use std::ffi::{c_char, c_int, c_void};

use crate::faults;

/// A node of the kernel list; mirrors `xtemu::Kernel`.
#[repr(C)]
pub(super) struct Kernel {
    pub(super) next: *const Kernel,
    pub(super) name: *const c_char,
    pub(super) call: *const c_void,
    pub(super) parameters: *const u32,
    pub(super) count: u32,
    pub(super) max_threads: u32,
}

/// Flags added to a parameter's size.
pub(super) const POINTER: u32 = 0x100;
pub(super) const FLOAT: u32 = 0x200;

/// Launch configuration; mirrors `xtemu_config`.
#[repr(C)]
pub(super) struct Config {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared: u32,
    pub(super) order: c_int,
    pub(super) seed: u64,
    pub(super) fault: u64,
    pub(super) workers: u32,
    pub(super) checked: c_int,
    pub(super) tensor_core: u32,
    pub(super) wgmma: c_int,
}

/// The planted fault that is switched on, as kernels know it: FNV-1a of its name. 0: none.
pub(super) fn fault() -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    faults::active().map_or(0, |fault| format!("{fault:?}").bytes().fold(0xcbf2_9ce4_8422_2325, hash))
}

unsafe extern "C" {
    pub(super) fn xtemu_plain() -> *const Kernel;
    pub(super) fn xtemu_checked() -> *const Kernel;
    pub(super) fn xtemu_launch(
        kernel: *const Kernel,
        config: *const Config,
        args: *mut *mut c_void,
        error: *mut c_char,
        size: usize,
    ) -> c_int;
    pub(super) fn xtemu_allocate(bytes: usize, checked: c_int) -> *mut c_void;
    pub(super) fn xtemu_free(at: *mut c_void);
    pub(super) fn xtemu_write(to: *mut c_void, from: *const c_void, bytes: usize) -> usize;
    pub(super) fn xtemu_read(to: *mut c_void, from: *const c_void, bytes: usize) -> usize;
    pub(super) fn xtemu_on_fault(note: extern "C" fn());
}
