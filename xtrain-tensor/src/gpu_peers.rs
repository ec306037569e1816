//! The GPUs of the processes of a run, connected: values travel from device to device.
use std::ops::Range;
use std::sync::Arc;

use xtrain_comm::Communicator;

use crate::device::gpu::{self, Member, Message, Peers};
use crate::device::{Device, Gpu};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::faults::{self, Fault};
use crate::gpu::rows;
use crate::operands::SlotRange;
use crate::tensor::Tensor;

/// The connection of the GPU of this process with those of the others: NCCL, or the emulator in its place. All f32.
/// Every process calls the same operations in the same order. After an error of a transfer, or a [`Transfer`] that was
/// dropped, every exchange is refused.
pub struct GpuPeers {
    gpu: Gpu,
    peers: Arc<dyn Peers>,
    library: String,
    size: usize,
}

/// Elements of a tensor that are sent to a process.
#[derive(Debug, Clone)]
pub struct Sent<'t> {
    /// The receiver. A process may send to itself.
    pub process: usize,
    /// The tensor.
    pub tensor: &'t Tensor,
    /// Its elements, row-major.
    pub elements: Range<usize>,
}

/// A running exchange. Dropped without [`Transfer::finish`], it ends the connection; then, and after an error, its
/// tensors keep their memory, because the other processes may still read and write it.
pub struct Transfer {
    gpu: Gpu,
    /// What is sent stays as it is until the end.
    sent: Vec<Tensor>,
    received: Vec<Tensor>,
    peers: Arc<dyn Peers>,
    is_running: bool,
}

impl GpuPeers {
    /// Connects `device`, the GPU of this process, with those of the other processes of `comm`. Collective.
    ///
    /// # Errors
    /// [`Error::Device`], the same in all processes: one of them has no GPU or cannot load NCCL, two of them have
    /// different versions or use one GPU, or NCCL cannot connect them.
    pub fn connect(device: &Device, comm: &Arc<dyn Communicator>) -> Result<GpuPeers> {
        let own = match device {
            Device::Gpu(gpu) => gpu.member(),
            cpu => Member::without(cpu.to_string(), format!("expected a GPU, found the CPU ({cpu})")),
        };
        let ended = |error: xtrain_comm::Error| Error::device(error.to_string());
        let members = comm.all_gather(&own.to_bytes()).map_err(ended)?;
        let members: Option<Vec<Member>> = members.iter().map(|bytes| Member::from_bytes(bytes)).collect();
        gpu::check_members(&members.ok_or_else(|| Error::device("a process describes no device"))?)
            .map_err(Error::device)?;
        let connected = match device {
            Device::Gpu(gpu) => gpu.connect(comm).map(|peers| (gpu.clone(), peers)),
            _ => Err(Error::device("expected a GPU")),
        };
        let (gpu, peers) = gpu::agreed(comm.as_ref(), connected)?;
        let library = own.library.unwrap_or_default();
        Ok(GpuPeers { gpu, peers: peers.into(), library, size: comm.size() })
    }

    /// The library that copies, with its version.
    pub fn library(&self) -> &str {
        &self.library
    }

    /// The device of this process.
    pub fn device(&self) -> Device {
        Device::Gpu(self.gpu.clone())
    }

    /// Starts to send values to processes, and to receive new tensors of the shapes `received`, each from a process.
    /// Values from one process to another are matched in order. Kernels that are queued until
    /// [`Transfer::finish`] run beside the transfers.
    ///
    /// # Errors
    /// [`Error::Device`] for tensors on another device, or from NCCL; [`Error::Memory`].
    ///
    /// # Panics
    /// If elements are outside their tensor.
    pub fn exchange(&self, sent: &[Sent<'_>], received: &[(usize, Vec<usize>)]) -> Result<Transfer> {
        let _issue = self.gpu.issue();
        let send = |Sent { process, tensor, elements }: &Sent<'_>| {
            assert!(elements.end <= tensor.len(), "{elements:?} of {}", tensor.len());
            let at = tensor.at(&self.gpu, Dtype::F32)?.0 + 4 * elements.start as u64;
            Ok(Message { process: *process, at, bytes: 4 * elements.len() })
        };
        let sends = sent.iter().map(send).collect::<Result<Vec<_>>>()?;
        let new = |(_, shape): &(usize, Vec<usize>)| Tensor::on_gpu(&self.gpu, shape, Dtype::F32);
        let tensors = received.iter().map(new).collect::<Result<Vec<_>>>()?;
        let receive = |((process, _), tensor): (&(usize, Vec<usize>), &Tensor)| {
            let at = tensor.at(&self.gpu, Dtype::F32)?.0;
            Ok(Message { process: *process, at, bytes: 4 * tensor.len() })
        };
        let receives = received.iter().zip(&tensors).map(receive).collect::<Result<Vec<_>>>()?;
        self.gpu.end_step()?;
        let transfer = self.transfer(sent.iter().map(|sent| sent.tensor.clone()).collect(), tensors);
        self.peers.exchange(&sends, &receives)?;
        Ok(transfer)
    }

    /// A transfer between these tensors that is being started. If that fails, it is dropped: a part may be running.
    fn transfer(&self, sent: Vec<Tensor>, received: Vec<Tensor>) -> Transfer {
        let (gpu, peers) = (self.gpu.clone(), Arc::clone(&self.peers));
        Transfer { gpu, sent, received, peers, is_running: true }
    }

    /// The values of `own`, one tensor after the other, in a row of `width` values, of every process: `[R, width]`. The
    /// end of a row is zero.
    ///
    /// # Errors
    /// As [`GpuPeers::exchange`].
    pub fn all_gather(&self, own: &[&Tensor], width: usize) -> Result<Tensor> {
        let mut row = Tensor::zeros(&self.device(), &[width], Dtype::F32)?;
        let mut to = 0;
        for tensor in own {
            self.copy(tensor, 0..tensor.len(), &mut row, to)?;
            to += tensor.len();
        }
        let _issue = self.gpu.issue();
        let all = Tensor::on_gpu(&self.gpu, &[self.size, width], Dtype::F32)?;
        let [from, to] = [row.at(&self.gpu, Dtype::F32)?.0, all.at(&self.gpu, Dtype::F32)?.0];
        self.gpu.end_step()?;
        let transfer = self.transfer(vec![row], vec![all]);
        self.peers.all_gather(from, to, 4 * width)?;
        Ok(transfer.join()?.remove(0))
    }

    /// Copies elements of a tensor to those of another one from `at` on, on the device of this process.
    ///
    /// # Errors
    /// [`Error::Device`] for tensors on another device.
    ///
    /// # Panics
    /// If elements are outside their tensor.
    pub fn copy(&self, from: &Tensor, elements: Range<usize>, to: &mut Tensor, at: usize) -> Result<()> {
        let _issue = self.gpu.issue();
        let len = elements.len();
        assert!(elements.end <= from.len() && at + len <= to.len(), "{elements:?} of {} at {at}", from.len());
        rows::copy_elements(&self.gpu, from, to, SlotRange { from: elements.start, to: at, len })
    }
}

impl std::fmt::Debug for GpuPeers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} processes", self.library, self.size)
    }
}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "transfer of {} and {} tensors", self.sent.len(), self.received.len())
    }
}

impl Transfer {
    /// The received tensors, in the order of the shapes: kernels that are queued from now on run after the transfer.
    ///
    /// # Errors
    /// [`Error::Device`] from NCCL, for example if it has noticed that a process has ended. NCCL reports errors until
    /// this call: if a process ends later, before the transfer has ended, no error follows, and the next operation that
    /// waits for the device does not return. The launcher of the processes ends them then.
    pub fn finish(mut self) -> Result<Vec<Tensor>> {
        if !faults::on(Fault::KernelsBehindTransfer) {
            // the kernels queued so far do not wait for the transfer
            let _issue = self.gpu.issue();
            self.gpu.end_step()?;
        }
        if faults::on(Fault::AddedBeforeReceived) {
            // the memory stays, because the transfer ends later
            self.is_running = false;
            let received = std::mem::take(&mut self.received);
            std::mem::forget((std::mem::take(&mut self.sent), received.clone()));
            return Ok(received);
        }
        self.join()
    }

    /// Waits on the device for the end of the transfer. After an error it counts as running.
    fn join(mut self) -> Result<Vec<Tensor>> {
        self.peers.join()?;
        self.is_running = false;
        Ok(std::mem::take(&mut self.received))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.is_running {
            self.peers.abandon();
            std::mem::forget((std::mem::take(&mut self.sent), std::mem::take(&mut self.received)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use xtrain_comm::ThreadProcess;

    use super::*;
    use crate::device::gpu::Buffer;
    use crate::testing::emulated;
    use crate::{Device, ThreadSchedule};

    /// A process that is connected with itself.
    fn alone() -> (Device, GpuPeers) {
        let device = emulated(ThreadSchedule::Forward);
        let comm: Arc<dyn Communicator> = Arc::new(ThreadProcess::group(1).remove(0));
        let peers = GpuPeers::connect(&device, &comm).unwrap();
        (device, peers)
    }

    /// A transfer of four values of `tensor` into `received` values, and the memory of the latter.
    fn begin(peers: &GpuPeers, tensor: &Tensor, received: usize) -> (Transfer, Weak<Buffer>) {
        let sent = [Sent { process: 0, tensor, elements: 0..4 }];
        let transfer = peers.exchange(&sent, &[(0, vec![received])]).unwrap();
        let memory = transfer.received[0].weak_buffer();
        (transfer, memory)
    }

    fn values(device: &Device) -> Tensor {
        Tensor::new(device, &[4], vec![1f32, 2.0, 3.0, 4.0]).unwrap()
    }

    /// Every operation names the reason why it is refused.
    #[track_caller]
    fn assert_given_up(device: &Device, peers: &GpuPeers) {
        let values = values(device);
        let sent = [Sent { process: 0, tensor: &values, elements: 0..4 }];
        let refused =
            [peers.exchange(&sent, &[(0, vec![4])]).map(drop), peers.all_gather(&[&values], 4).map(drop)];
        for refused in refused {
            let error = refused.expect_err("an operation of a connection that was given up").to_string();
            assert!(error.contains("the connection was given up"), "{error}");
        }
    }

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn a_transfer_that_ends_returns_its_values_and_frees_the_memory() {
        let (device, peers) = alone();
        let values = values(&device);
        let (transfer, memory) = begin(&peers, &values, 4);
        let received = transfer.finish().unwrap();
        assert_eq!(received[0].to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
        drop(received);
        assert_eq!(memory.strong_count(), 0);
        assert_eq!(peers.all_gather(&[&values], 4).unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn a_transfer_that_is_dropped_keeps_its_memory_and_ends_the_connection() {
        let (device, peers) = alone();
        let values = values(&device);
        let sent = values.weak_buffer();
        let (transfer, memory) = begin(&peers, &values, 4);
        drop((transfer, values));
        assert_eq!([sent.strong_count(), memory.strong_count()], [1, 1]);
        assert_given_up(&device, &peers);
    }

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn a_transfer_that_fails_keeps_its_memory_and_ends_the_connection() {
        let (device, peers) = alone();
        let (transfer, memory) = begin(&peers, &values(&device), 3);
        let error = transfer.finish().unwrap_err().to_string();
        assert!(error.contains("different lengths"), "{error}");
        assert_eq!(memory.strong_count(), 1);
        assert_given_up(&device, &peers);
    }
}
