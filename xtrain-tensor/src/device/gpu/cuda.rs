//! CUDA backend. The driver library is loaded when a device is opened, so the program builds and runs on machines
//! without it.
mod driver_error;
mod functions;
mod graph;
mod nccl;
mod tensor_map;

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute, CUmemPool_attribute};
use cudarc::driver::{CudaContext, CudaStream};
use cudarc::nvrtc::Ptx;
use xtrain_comm::Communicator;

use driver_error::driver_error;
use functions::Functions;
use graph::Chain;

use super::launch::{Arg, Call, Graph, Grid, Launcher, MAP_WORDS, MatrixBoxes};
use super::peak::{Peak, Widths};
use super::peers::{Member, Peers};
use crate::tensor_core::TensorCore;
use crate::{Error, Result};

/// The kernel image: cubins and PTX, PTX only, or empty; see build/image.rs.
pub(super) static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.image"));

/// The driver API version that the image was built for.
const CUDA: i32 = 13000;

/// Requirement named in errors about a missing or old driver.
const DRIVER_REQUIREMENT: &str = "xtrain needs the NVIDIA driver 580 or newer (CUDA 13)";

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

const CAPABILITY: [CUdevice_attribute; 2] = [
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
];

/// The API version of the driver; 13000 means 13.0.
///
/// # Errors
/// [`Error::Device`](crate::Error::Device) if there is no driver or it is too old.
pub(super) fn driver() -> Result<i32> {
    // SAFETY: loads the driver's library as every CUDA program does.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::device(format!(
            "no CUDA driver: libcuda.so.1 cannot be loaded; {DRIVER_REQUIREMENT}"
        )));
    }
    let mut version = 0;
    // SAFETY: the library is loaded, and the pointer is to an integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(driver_error("reading the driver version"))?;
    if version < CUDA {
        let has = format!("{}.{}", version / 1000, version % 1000 / 10);
        return Err(Error::device(format!("the CUDA driver supports CUDA {has}; {DRIVER_REQUIREMENT}")));
    }
    Ok(version)
}

/// Lists the GPUs of this machine.
///
/// # Errors
/// As [`driver`], or if the driver finds no GPU.
pub(super) fn devices() -> Result<Vec<GpuInfo>> {
    driver()?;
    let count = CudaContext::device_count().map_err(driver_error("counting devices"))?;
    // no context is created, since a context occupies device memory
    let device = |ordinal| {
        let device = result::device::get(ordinal)?;
        let [major, minor] = CAPABILITY;
        // SAFETY: the device handle was just returned by the driver.
        let (major, minor, bytes) = unsafe {
            let attribute = |attribute| result::device::get_attribute(device, attribute);
            (attribute(major)?, attribute(minor)?, result::device::total_mem(device)?)
        };
        Ok(GpuInfo {
            name: result::device::get_name(device)?,
            architecture: format!("sm_{major}{minor}"),
            bytes,
        })
    };
    (0..count).map(device).collect::<Result<_, _>>().map_err(driver_error("querying device properties"))
}

/// Launcher of a CUDA device. All work is issued in order on one stream.
pub(super) struct Cuda {
    name: String,
    tensor_core: Option<TensorCore>,
    multiprocessors: usize,
    peak: Option<Peak>,
    /// Whether the kernels of graphs start before the previous ones have finished.
    dependent: bool,
    /// Whether the device can read pageable memory, so that a copy from it may run later.
    reads_pageable: bool,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    functions: Arc<Functions>,
}

impl Cuda {
    /// Opens the device with this ordinal. With `dependent`, the kernels of graphs start before the previous ones have
    /// finished, if those of the image wait for the previous ones.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no driver, no such device, or no kernel image in this build that the device can
    /// run.
    pub(super) fn open(ordinal: u32, dependent: bool) -> Result<Cuda> {
        driver()?;
        if IMAGE.is_empty() {
            let image = env!("XTRAIN_IMAGE");
            return Err(Error::device(format!(
                "this build has no GPU kernels ({image}): install nvcc and rebuild with XTRAIN_NVCC set to its path"
            )));
        }
        let count = CudaContext::device_count().map_err(driver_error("counting devices"))?;
        if i64::from(ordinal) >= i64::from(count) {
            return Err(Error::device(format!(
                "cuda:{ordinal}: no such device; this machine has {count} GPUs, numbered from 0"
            )));
        }
        let context = CudaContext::new(ordinal as usize).map_err(driver_error("opening the device"))?;
        // SAFETY: events order work between streams; there is only one stream.
        unsafe { context.disable_event_tracking() };
        let name = context.name().map_err(driver_error("reading the device name"))?;
        let (major, minor) =
            context.compute_capability().map_err(driver_error("compute capability of the device"))?;
        keep_memory(&context).map_err(driver_error("configuring the memory pool"))?;
        let stream = context.new_stream().map_err(driver_error("creating a stream"))?;
        let module = context.load_module(Ptx::from_binary(IMAGE.to_vec()));
        let module = module.map_err(driver_error(&format!(
            "loading the kernels ({}) for sm_{major}{minor}",
            env!("XTRAIN_IMAGE")
        )))?;
        let multiprocessors = context
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(driver_error("reading the number of multiprocessors"))?
            as usize;
        let reads_pageable = context
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)
            .map_err(driver_error("reading whether the device can read pageable memory"))?
            != 0;
        let peak = widths(&context, (major, minor)).ok().and_then(Peak::of);
        let cuda = Cuda {
            name,
            tensor_core: TensorCore::of(major),
            multiprocessors,
            peak,
            dependent: false,
            reads_pageable,
            context,
            stream,
            functions: Arc::new(Functions::of(module)),
        };
        let dependent = dependent && cuda.image_has_dependent_launch()?;
        Ok(Cuda { dependent, ..cuda })
    }

    /// Whether the loaded kernels wait for the previous kernel of a graph. Those of PTX, and of machine code below
    /// sm_90, do not.
    fn image_has_dependent_launch(&self) -> Result<bool> {
        let mut has = [0; 4];
        let at = self.allocate(has.len())?;
        let grid = Grid::blocks([1, 1, 1], 1);
        // SAFETY: the kernel writes one u32.
        let launched =
            unsafe { self.launch(Call { kernel: "image_has_dependent_launch", grid, args: &[Arg::At(at)] }) };
        let read = launched.and_then(|()| self.download(&mut has, at));
        self.free(at);
        read.map(|()| u32::from_ne_bytes(has) == 1)
    }

    fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(driver_error("binding the context"))
    }
}

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

/// Keeps freed memory in the pool. By default the pool is trimmed at every synchronization.
fn keep_memory(context: &CudaContext) -> Result<(), DriverError> {
    let mut no_limit = u64::MAX;
    let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device is open, and the attribute is a u64.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device())?;
        sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut no_limit).cast()).result()
    }
}

impl Launcher for Cuda {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn tensor_core(&self) -> Option<TensorCore> {
        self.tensor_core
    }
    fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    fn tensor_map(&self, matrix: &MatrixBoxes) -> Result<[u32; MAP_WORDS]> {
        self.bind()?;
        tensor_map::encode(matrix)
    }

    fn peak(&self) -> Option<Peak> {
        self.peak
    }

    fn wait(&self) -> Result<()> {
        self.bind()?;
        self.stream.synchronize().map_err(driver_error("synchronizing"))
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.bind()?;
        // SAFETY: the memory is used on this stream alone.
        let at = unsafe { result::malloc_async(self.stream.cu_stream(), bytes.max(1)) };
        at.map_err(|cause| match cause.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::Memory { bytes, on_gpu: true },
            _ => driver_error(&format!("allocating {bytes} bytes"))(cause),
        })
    }

    fn free(&self, at: u64) {
        // an error here stems from an earlier launch, and the next call reports it
        if self.bind().is_ok() {
            // SAFETY: `at` came from `allocate`, and all its users were launched earlier on this stream.
            let _ = unsafe { result::free_async(at, self.stream.cu_stream()) };
        }
    }

    fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's buffer has at least this many bytes. The source is pageable. A driver that has to stage
        // it does so before this returns ("API synchronization behavior" of the CUDA driver API promises no more than
        // that); a device that can read pageable memory (with the page tables of the host, or by heterogeneous memory
        // management) may read it later, so the end of the copy is awaited.
        let copied = unsafe { result::memcpy_htod_async(to, bytes, self.stream.cu_stream()) };
        let awaited =
            copied.and_then(|()| if self.reads_pageable { self.stream.synchronize() } else { Ok(()) });
        awaited.map_err(driver_error("copying to the device"))
    }

    fn download(&self, to: &mut [u8], from: u64) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's buffer has at least this many bytes, and the copy is synchronized below.
        let copied = unsafe { result::memcpy_dtoh_async(to, from, self.stream.cu_stream()) };
        let awaited = copied.and_then(|()| self.stream.synchronize());
        awaited.map_err(driver_error("copying from the device"))
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
        launched.map_err(driver_error(kernel))
    }

    unsafe fn graph(&self, calls: &[Call<'_>]) -> Result<Box<dyn Graph>> {
        // SAFETY: as promised by the caller.
        let chain =
            unsafe { Chain::new(self.stream.clone(), self.functions.clone(), calls, self.dependent)? };
        Ok(Box::new(chain))
    }

    fn member(&self) -> Member {
        let name = self.name.clone();
        let id = self.context.uuid().map_err(driver_error("reading the id of the device"));
        match id {
            Ok(id) => Member { name, id: format!("{:02x?}", id.bytes), library: nccl::version() },
            Err(error) => Member::without(name, error.to_string()),
        }
    }

    fn connect(&self, comm: &Arc<dyn Communicator>) -> Result<Box<dyn Peers>> {
        Ok(Box::new(nccl::Nccl::connect(&**comm, &self.context, &self.stream)?))
    }
}
