//! Kernels of a module by name, with their dynamic shared memory limit raised on demand.
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{CUDA_KERNEL_NODE_PARAMS, CUfunction, CUfunction_attribute};
use cudarc::driver::{CudaFunction, CudaModule};

use super::driver_error::driver_error;
use crate::Result;
use crate::device::gpu::launch::Call;
use crate::lock::lock;

/// Shared memory that every kernel may use, static variables included. More requires a function attribute.
const SHARED: u32 = 48 << 10;

/// Lazily loaded kernels of a module.
pub(super) struct Functions {
    module: Arc<CudaModule>,
    loaded: Mutex<HashMap<&'static str, Loaded>>,
}

/// A loaded kernel and its current limit of dynamic shared memory.
struct Loaded {
    function: CudaFunction,
    shared: u32,
}

impl Functions {
    pub(super) fn of(module: Arc<CudaModule>) -> Functions {
        Functions { module, loaded: Mutex::default() }
    }

    /// Returns the kernel, allowed to use `shared` bytes of dynamic shared memory. Valid as long as the module.
    pub(super) fn get(&self, kernel: &'static str, shared: u32) -> Result<CUfunction> {
        let mut functions = lock(&self.loaded);
        if !functions.contains_key(kernel) {
            let function = self.module.load_function(kernel).map_err(driver_error(kernel))?;
            let own = function.shared_size_bytes().map_err(driver_error(kernel))?;
            functions.insert(kernel, Loaded { function, shared: SHARED.saturating_sub(own as u32) });
        }
        let loaded = functions.get_mut(kernel).expect("it was inserted above");
        if shared > loaded.shared {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let allowed = loaded.function.set_attribute(attribute, shared as i32);
            allowed.map_err(driver_error(&format!("{kernel} with {shared} bytes of shared memory")))?;
            loaded.shared = shared;
        }
        Ok(loaded.function.cu_function())
    }

    /// Kernel node parameters of a call; `addresses` are the addresses of its arguments.
    pub(super) fn node(
        &self,
        call: &Call<'_>,
        addresses: &mut [*mut c_void],
    ) -> Result<CUDA_KERNEL_NODE_PARAMS> {
        let [x, y, z] = call.grid.blocks;
        Ok(CUDA_KERNEL_NODE_PARAMS {
            func: self.get(call.kernel, call.grid.shared)?,
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: call.grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: call.grid.shared,
            kernelParams: addresses.as_mut_ptr(),
            extra: ptr::null_mut(),
            kern: ptr::null_mut(),
            ctx: ptr::null_mut(),
        })
    }
}
