//! A CUDA device, by way of its driver. The driver is looked for when a device is opened, so that this
//! compiles and runs on machines without one.
mod functions;
mod graph;

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute, CUmemPool_attribute};
use cudarc::driver::{CudaContext, CudaStream};
use cudarc::nvrtc::Ptx;

use functions::Functions;
use graph::Chain;

use super::peak::Widths;
use super::{Arg, Call, GpuInfo, Graph, Launcher, Peak};
use crate::{Error, Result};

/// The kernels: machine code and PTX, or PTX, or nothing; see build/image.rs.
pub(super) static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.image"));

/// The driver's interface that the image was built for.
const CUDA: i32 = 13000;

/// What to do about a driver that is missing or old.
const NEEDS: &str = "xtrain needs the NVIDIA driver 580 or newer (CUDA 13)";

/// The two numbers of an architecture.
const CAPABILITY: [CUdevice_attribute; 2] = [
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
];

fn error(what: String) -> Error {
    Error::Device { what }
}

/// The driver's error, with what was asked of it.
fn refused(what: &str) -> impl FnOnce(DriverError) -> Error {
    move |refusal| error(format!("CUDA, {what}: {refusal}"))
}

/// The version of the driver's interface, as 13000 for 13.0.
///
/// # Errors
/// There is no driver, or it is too old.
pub(super) fn driver() -> Result<i32> {
    // SAFETY: loads the driver's library as every CUDA program does.
    if !unsafe { sys::is_culib_present() } {
        return Err(error(format!("no CUDA driver: libcuda.so.1 cannot be loaded; {NEEDS}")));
    }
    let mut version = 0;
    // SAFETY: the library is there, and the pointer is to an integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(refused("version of the driver"))?;
    if version < CUDA {
        let has = format!("{}.{}", version / 1000, version % 1000 / 10);
        return Err(error(format!("the CUDA driver is for CUDA {has}; {NEEDS}")));
    }
    Ok(version)
}

/// The GPUs of this machine.
///
/// # Errors
/// As [`driver`]; the driver finds none.
pub(super) fn devices() -> Result<Vec<GpuInfo>> {
    driver()?;
    let count = CudaContext::device_count().map_err(refused("counting devices"))?;
    // without a context: one would take memory of the device
    let device = |ordinal| {
        let device = result::device::get(ordinal)?;
        let [major, minor] = CAPABILITY;
        // SAFETY: the driver has just given the device.
        let (major, minor, bytes) = unsafe {
            let asked = |attribute| result::device::get_attribute(device, attribute);
            (asked(major)?, asked(minor)?, result::device::total_mem(device)?)
        };
        Ok(GpuInfo {
            name: result::device::get_name(device)?,
            architecture: format!("sm_{major}{minor}"),
            bytes,
        })
    };
    (0..count).map(device).collect::<Result<_, _>>().map_err(refused("asking a device for its name"))
}

/// The launcher of a real GPU: one stream, on which everything is in order.
pub(super) struct Cuda {
    name: String,
    wgmma: bool,
    peak: Option<Peak>,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    functions: Arc<Functions>,
}

impl Cuda {
    /// The GPU of that number.
    ///
    /// # Errors
    /// There is no driver, no such device, or no image in this build that the device can run.
    pub(super) fn open(ordinal: u32) -> Result<Cuda> {
        driver()?;
        if IMAGE.is_empty() {
            let what = format!(
                "this build has no kernels for GPUs ({}): install nvcc and build again",
                env!("XTRAIN_IMAGE")
            );
            return Err(error(what));
        }
        let count = CudaContext::device_count().map_err(refused("counting devices"))?;
        if i64::from(ordinal) >= i64::from(count) {
            return Err(error(format!("cuda:{ordinal}: this machine has {count} GPUs, counted from 0")));
        }
        let opened = refused("opening the device");
        let context = CudaContext::new(ordinal as usize).map_err(opened)?;
        // SAFETY: events would order streams among each other; there is one.
        unsafe { context.disable_event_tracking() };
        let name = context.name().map_err(refused("name of the device"))?;
        let (major, minor) = context.compute_capability().map_err(refused("kind of the device"))?;
        keep_memory(&context).map_err(refused("its memory pool"))?;
        let stream = context.new_stream().map_err(refused("a stream"))?;
        let module = context.load_module(Ptx::from_binary(IMAGE.to_vec()));
        let module = module.map_err(refused(&format!(
            "loading the kernels ({}) for sm_{major}{minor}",
            env!("XTRAIN_IMAGE")
        )))?;
        let peak = widths(&context, (major, minor)).ok().and_then(Peak::of);
        Ok(Cuda {
            name,
            wgmma: major == 9,
            peak,
            context,
            stream,
            functions: Arc::new(Functions::of(module)),
        })
    }

    fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(refused("its context"))
    }
}

/// Clocks and widths, as the driver tells them.
fn widths(context: &CudaContext, capability: (i32, i32)) -> Result<Widths, DriverError> {
    use CUdevice_attribute as A;
    Ok(Widths {
        capability,
        multiprocessors: context.attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        clock_khz: context.attribute(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_khz: context.attribute(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        bus_bits: context.attribute(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
    })
}

/// Freed memory stays with the process: by default the pool gives it back at every synchronisation.
fn keep_memory(context: &CudaContext) -> Result<(), DriverError> {
    let mut most = u64::MAX;
    let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device is open, and the attribute is a u64.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device())?;
        sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut most).cast()).result()
    }
}

impl Launcher for Cuda {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn has_wgmma(&self) -> bool {
        self.wgmma
    }

    fn peak(&self) -> Option<Peak> {
        self.peak
    }

    fn wait(&self) -> Result<()> {
        self.bind()?;
        self.stream.synchronize().map_err(refused("waiting for its kernels"))
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.bind()?;
        // SAFETY: the memory is used on this stream alone.
        let at = unsafe { result::malloc_async(self.stream.cu_stream(), bytes.max(1)) };
        at.map_err(refused(&format!("{bytes} bytes of memory")))
    }

    fn free(&self, at: u64) {
        // An error here is one of an earlier launch, which the next call reports.
        if self.bind().is_ok() {
            // SAFETY: `at` came from `allocate`, and what uses it was launched before on this stream.
            let _ = unsafe { result::free_async(at, self.stream.cu_stream()) };
        }
    }

    fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's buffer holds as many bytes. The source is pageable: the driver has copied
        // it when this returns.
        let copied = unsafe { result::memcpy_htod_async(to, bytes, self.stream.cu_stream()) };
        copied.map_err(refused("a copy to the device"))
    }

    fn download(&self, to: &mut [u8], from: u64) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's buffer holds as many bytes, and `to` is awaited below.
        let copied = unsafe { result::memcpy_dtoh_async(to, from, self.stream.cu_stream()) };
        let awaited = copied.and_then(|()| self.stream.synchronize());
        awaited.map_err(refused("a copy from the device"))
    }

    fn zero(&self, at: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the caller's buffer holds as many bytes.
        let set = unsafe { result::memset_d8_async(at, 0, bytes, self.stream.cu_stream()) };
        set.map_err(refused("setting memory to zero"))
    }

    unsafe fn launch(&self, Call { kernel, grid, args }: Call<'_>) -> Result<()> {
        self.bind()?;
        let function = self.functions.get(kernel, grid.shared)?;
        let mut addresses: Vec<*mut c_void> = args.iter().map(Arg::address).collect();
        let ([x, y, z], block) = (grid.blocks, (grid.threads, 1, 1));
        let stream = self.stream.cu_stream();
        // SAFETY: as promised by the caller; the driver copies the arguments before it returns.
        let launched =
            unsafe { result::launch_kernel(function, (x, y, z), block, grid.shared, stream, &mut addresses) };
        launched.map_err(refused(kernel))
    }

    unsafe fn graph(&self, calls: &[Call<'_>]) -> Result<Box<dyn Graph>> {
        // SAFETY: as promised by the caller.
        let chain = unsafe { Chain::new(self.stream.clone(), self.functions.clone(), calls)? };
        Ok(Box::new(chain))
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("name", &self.name).finish_non_exhaustive()
    }
}
