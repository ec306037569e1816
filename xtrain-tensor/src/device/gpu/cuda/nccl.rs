//! NCCL, the library that copies between GPUs: nothing but its calls. It is opened at run time.
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};
use cudarc::nccl::result::{self, NcclError};
use cudarc::nccl::sys;
use xtrain_comm::Communicator;

use super::driver_error::driver_error;
use crate::device::gpu::peers::{Message, Peers, agreed, connected, given_up};
use crate::lock::lock;
use crate::{Error, Result};

/// The oldest version: it has all functions that are called, and no limit on the messages of a group.
const OLDEST: i32 = 21400;

/// How long NCCL may take to connect the processes.
const CONNECTS_WITHIN: Duration = Duration::from_secs(120);

/// The library with its version, such as `NCCL 2.27.3`.
///
/// # Errors
/// Why it cannot be used.
pub(super) fn version() -> Result<String, String> {
    let need = "expected NCCL 2.14 or newer: the package libnccl-dev, or a link libnccl.so to libnccl.so.2 in a \
                directory of LD_LIBRARY_PATH";
    // SAFETY: loads the library as every program that uses it does.
    if !unsafe { sys::is_culib_present() } {
        return Err(format!("libnccl.so cannot be loaded; {need}"));
    }
    let version = result::get_nccl_version()
        .map_err(|NcclError(code)| format!("reading the version of NCCL: {}", name_of(code)))?;
    let text = format!("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
    if version < OLDEST { Err(format!("found {text}; {need}")) } else { Ok(text) }
}

/// The name of a result, by the library.
fn name_of(code: sys::ncclResult_t) -> String {
    // SAFETY: returns a static string.
    text(unsafe { sys::ncclGetErrorString(code) })
}

fn text(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: the library returns strings that end with a zero byte and stay until its next call.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// The error of an operation, named with process, operation, result and the library's last message.
fn error(what: &str, [rank, size]: [usize; 2], NcclError(code): NcclError) -> Error {
    // SAFETY: the library ignores the communicator.
    let last = text(unsafe { sys::ncclGetLastError(std::ptr::null_mut()) });
    let last = if last.trim().is_empty() { String::new() } else { format!(" ({})", last.trim()) };
    Error::device(format!("NCCL, {what}, process {rank} of {size}: {}{last}", name_of(code)))
}

/// The communicator of a process. One thread at a time calls NCCL with it.
struct Handle(sys::ncclComm_t);

// SAFETY: NCCL allows any thread to use a communicator, one at a time.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // not ncclCommDestroy, which may wait for a process that has ended
        // SAFETY: the communicator is open, and nothing uses it later. Its error is ignored.
        let _ = unsafe { result::comm_abort(self.0) };
    }
}

/// The connection of a device: transfers run on a stream of their own, beside the kernels.
pub(super) struct Nccl {
    handle: Mutex<Handle>,
    ranks: [usize; 2],
    context: Arc<CudaContext>,
    kernels: Arc<CudaStream>,
    transfers: Arc<CudaStream>,
    /// Whether a transfer may never end, so that `drop` must not wait and no operation may follow.
    abandoned: AtomicBool,
}

impl Nccl {
    /// Connects the devices of all processes. Process 0 creates the id of the connection, which `comm` broadcasts.
    ///
    /// # Errors
    /// [`Error::Device`] with the operation, the process and NCCL's result, the same in all processes; a process is not
    /// connected within two minutes.
    pub(super) fn connect(
        comm: &dyn Communicator,
        context: &Arc<CudaContext>,
        kernels: &Arc<CudaStream>,
    ) -> Result<Nccl> {
        let ranks @ [rank, size] = [comm.rank(), comm.size()];
        let prepare = || {
            context.bind_to_thread().map_err(driver_error("binding the context"))?;
            let transfers = context.new_stream().map_err(driver_error("creating a stream for transfers"))?;
            let id = match rank {
                0 => {
                    let id = result::get_uniqueid().map_err(|code| error("creating the id", ranks, code))?;
                    id.internal.to_vec()
                }
                _ => Vec::new(),
            };
            Ok::<_, Error>((transfers, id))
        };
        let (transfers, id) = agreed(comm, prepare())?;
        let bytes =
            comm.broadcast(0, bytemuck::cast_slice(&id)).map_err(|error| Error::device(error.to_string()))?;
        let Ok(internal) = bytemuck::cast_slice::<u8, c_char>(&bytes).try_into() else {
            return Err(Error::device("NCCL: process 0 has no id of the connection"));
        };
        let own_context = Arc::clone(context);
        // a process that fails leaves the others waiting in ncclCommInitRank
        let handle = connected(comm, CONNECTS_WITHIN, move || {
            own_context.bind_to_thread().map_err(driver_error("binding the context"))?;
            let mut handle = MaybeUninit::uninit();
            let id = sys::ncclUniqueId { internal };
            // SAFETY: the pointer is to a communicator that NCCL initializes unless it fails.
            unsafe {
                result::comm_init_rank(handle.as_mut_ptr(), size as i32, id, rank as i32)
                    .map_err(|code| error("connecting", ranks, code))?;
                Ok(Handle(handle.assume_init()))
            }
        })?;
        let (context, kernels) = (Arc::clone(context), Arc::clone(kernels));
        let abandoned = AtomicBool::new(false);
        Ok(Nccl { handle: Mutex::new(handle), ranks, context, kernels, transfers, abandoned })
    }

    fn check(&self, what: &str, done: Result<result::NcclStatus, NcclError>) -> Result<()> {
        done.map(drop).map_err(|code| {
            self.abandon();
            error(what, self.ranks, code)
        })
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Later transfers begin after the kernels launched so far.
    fn after_kernels(&self) -> Result<()> {
        if self.is_abandoned() {
            return Err(given_up());
        }
        self.context.bind_to_thread().map_err(driver_error("binding the context"))?;
        self.transfers.join(&self.kernels).map_err(driver_error("waiting for kernels before a transfer"))
    }
}

impl Peers for Nccl {
    fn exchange(&self, sends: &[Message], receives: &[Message]) -> Result<()> {
        self.after_kernels()?;
        let handle = lock(&self.handle);
        let (byte, stream) = (sys::ncclDataType_t::ncclChar, self.transfers.cu_stream().cast());
        self.check("beginning a group", result::group_start())?;
        let mut queued = Ok(());
        for &Message { process, at, bytes } in sends {
            // SAFETY: the caller's memory has these bytes and does not change until the transfer has ended.
            let sent = unsafe { result::send(at as *const _, bytes, byte, process as i32, handle.0, stream) };
            queued = queued.and(self.check(&format!("sending {bytes} bytes to process {process}"), sent));
        }
        for &Message { process, at, bytes } in receives {
            // SAFETY: the caller's memory has room for these bytes and is not read until the transfer has ended.
            let received =
                unsafe { result::recv(at as *mut _, bytes, byte, process as i32, handle.0, stream) };
            let what = format!("receiving {bytes} bytes from process {process}");
            queued = queued.and(self.check(&what, received));
        }
        let ended = self.check("exchanging a group of messages", result::group_end());
        queued.and(ended)
    }

    fn all_gather(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.after_kernels()?;
        let handle = lock(&self.handle);
        let (byte, stream) = (sys::ncclDataType_t::ncclChar, self.transfers.cu_stream().cast());
        // SAFETY: the caller's memory has these bytes, and room for those of all processes.
        let done =
            unsafe { result::all_gather(from as *const _, to as *mut _, bytes, byte, handle.0, stream) };
        self.check(&format!("gathering {bytes} bytes of each process"), done)
    }

    fn join(&self) -> Result<()> {
        if self.is_abandoned() {
            return Err(given_up());
        }
        self.context.bind_to_thread().map_err(driver_error("binding the context"))?;
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: the communicator is open, and the pointer is to a result.
        let read = unsafe { sys::ncclCommGetAsyncError(lock(&self.handle).0, &mut state) };
        self.check("reading the state of transfers", read.result())?;
        self.check("a transfer", state.result())?;
        self.kernels.join(&self.transfers).map_err(driver_error("waiting for a transfer"))
    }

    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() && !self.is_abandoned() {
            let _ = self.transfers.synchronize();
        }
    }
}
