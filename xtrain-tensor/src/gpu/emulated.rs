//! The emulator: the kernels' own source, compiled for this processor, a fiber for each CUDA thread.
use std::ffi::{CStr, CString, c_char, c_int, c_void};

use super::{Arg, Grid, Launcher, Schedule};
use crate::{Error, Result};

unsafe extern "C" {
    fn xtemu_launch(
        name: *const c_char,
        grid: *const u32,
        block: *const u32,
        shared: u32,
        cooperative: c_int,
        args: *mut *mut c_void,
        seed: u64,
        order: c_int,
        workers: c_int,
    ) -> c_int;
    fn xtemu_error() -> *const c_char;
    fn xtemu_nparams(name: *const c_char, sizes: *mut *const u32) -> c_int;
    fn xtemu_malloc(bytes: usize) -> *mut c_void;
    fn xtemu_free(at: *mut c_void);
    fn xtemu_copy_in(to: *mut c_void, from: *const c_void, bytes: usize);
    fn xtemu_copy_out(to: *mut c_void, from: *const c_void, bytes: usize);
    fn xtemu_memset(at: *mut c_void, value: c_int, bytes: usize);
    fn xtemu_kernels_anchor();
}

/// The launcher that needs no GPU.
#[derive(Debug)]
pub(super) struct Emulated {
    schedule: Schedule,
}

impl Emulated {
    pub(super) fn new(schedule: Schedule) -> Emulated {
        // SAFETY: an empty function; calling it keeps the kernels in the binary.
        unsafe { xtemu_kernels_anchor() };
        Emulated { schedule }
    }

    fn order(&self) -> (c_int, u64) {
        match self.schedule {
            Schedule::Forward => (0, 1),
            Schedule::Backward => (1, 1),
            Schedule::Random(seed) => (2, seed),
            Schedule::Priorities(seed) => (3, seed),
        }
    }
}

impl Launcher for Emulated {
    fn name(&self) -> String {
        format!("emulated, schedule {:?}", self.schedule)
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        // SAFETY: any size may be asked for.
        let at = unsafe { xtemu_malloc(bytes) };
        if at.is_null() {
            return Err(Error::Device { what: format!("out of memory: {bytes} bytes") });
        }
        Ok(at as u64)
    }

    fn free(&self, at: u64) {
        // SAFETY: `at` came from `allocate`.
        unsafe { xtemu_free(at as *mut c_void) };
    }

    fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller's buffer holds as many bytes.
        unsafe { xtemu_copy_in(to as *mut c_void, bytes.as_ptr().cast(), bytes.len()) };
        Ok(())
    }

    fn download(&self, to: &mut [u8], from: u64) -> Result<()> {
        // SAFETY: the caller's buffer holds as many bytes.
        unsafe { xtemu_copy_out(to.as_mut_ptr().cast(), from as *const c_void, to.len()) };
        Ok(())
    }

    fn zero(&self, at: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's buffer holds as many bytes.
        unsafe { xtemu_memset(at as *mut c_void, 0, bytes) };
        Ok(())
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: as promised by the caller; device memory of the emulator is host memory.
        unsafe { xtemu_copy_in(to as *mut c_void, from as *const c_void, bytes) };
        Ok(())
    }

    unsafe fn launch(&self, kernel: &'static str, grid: Grid, args: &[Arg]) -> Result<()> {
        let name = CString::new(kernel).expect("a kernel's name holds no zero");
        let mut sizes = std::ptr::null();
        // SAFETY: a C string and a place for one pointer.
        let n = unsafe { xtemu_nparams(name.as_ptr(), &mut sizes) };
        if n < 0 {
            return Err(Error::Device { what: format!("no kernel named {kernel}") });
        }
        // SAFETY: the table of the emulator holds `n` sizes, for as long as the program runs.
        let want = unsafe { std::slice::from_raw_parts(sizes, n as usize) };
        let got: Vec<u32> = args.iter().map(Arg::bytes).collect();
        if want != got {
            let what = format!("{kernel}: want parameters of {want:?} bytes, got {got:?}");
            return Err(Error::Device { what });
        }
        let mut addresses: Vec<*mut c_void> = args.iter().map(Arg::address).collect();
        let (order, seed) = self.order();
        let block = [grid.threads, 1, 1];
        // SAFETY: the sizes agree with the signature; that the pointers hold is the caller's promise.
        let status = unsafe {
            xtemu_launch(
                name.as_ptr(),
                grid.blocks.as_ptr(),
                block.as_ptr(),
                grid.shared,
                0,
                addresses.as_mut_ptr(),
                seed,
                order,
                1,
            )
        };
        if status == 0 {
            return Ok(());
        }
        // SAFETY: a C string of this thread, until its next launch.
        let what = unsafe { CStr::from_ptr(xtemu_error()) }.to_string_lossy().into_owned();
        Err(Error::Device { what })
    }
}
