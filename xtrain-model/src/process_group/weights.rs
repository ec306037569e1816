//! Whole tensors from the slices of all processes.
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::{Device, GpuPeers, Tensor};

use super::ProcessGroup;
use super::message::{Values, append};
use crate::error::Result;
use crate::param::Param;
use crate::params::Params;
use crate::slices::Slice;

impl ProcessGroup {
    /// The tensors of all parameters, from the own slices of each process.
    pub(crate) fn gather(&self, own: &[Tensor], params: &Params) -> Result<Vec<Tensor>> {
        let shapes: Vec<&[usize]> = params.iter().map(Param::shape).collect();
        let mut whole = Tensor::all_zeros(&self.host, &shapes)?;
        let mut message = Vec::new();
        for tensor in own {
            append(&mut message, tensor.to_host()?.data()?);
        }
        for (slices, message) in self.slices.iter().zip(self.comm.all_gather(&message)?) {
            let mut values = Values(&message);
            for slice in slices {
                values.read_into(&mut whole[slice.param].data_mut()?[slice.elements()]);
            }
        }
        let device = params.embed.device();
        Ok(whole.iter().map(|tensor| tensor.to_device(device)).collect::<Result<_, _>>()?)
    }

    /// Replaces the weights by the slices of all processes, of which `own` are those of this one: in host memory in place.
    pub(super) fn replace(&self, params: &mut Params, own: &[Tensor]) -> Result<()> {
        if let Some(peers) = &self.peers {
            return self.replace_on_gpu(peers, params, own);
        }
        if let Device::Gpu(_) = params.embed.device() {
            let whole = self.gather(own, params)?;
            let is_last = self.comm.rank() + 1 == self.comm.size();
            let is_stale = |param: usize| {
                is_last
                    && self.slices[0].iter().any(|slice| slice.param == param)
                    && faults::on(Fault::StaleWeightsOnOneProcess)
            };
            for (at, (param, whole)) in params.iter_mut().zip(whole).enumerate() {
                if !is_stale(at) {
                    *param.value_mut()? = whole;
                }
            }
            return Ok(());
        }
        let mut message = Vec::new();
        for tensor in own {
            append(&mut message, tensor.data()?);
        }
        let messages = self.comm.all_gather(&message)?;
        let mut values = params.iter_mut().map(Param::value_mut).collect::<Result<Vec<_>>>()?;
        let is_last = self.comm.rank() + 1 == self.comm.size();
        for (rank, (slices, message)) in self.slices.iter().zip(&messages).enumerate() {
            if rank == 0 && is_last && faults::on(Fault::StaleWeightsOnOneProcess) {
                continue;
            }
            let mut received = Values(message);
            for slice in slices {
                received.read_into(&mut values[slice.param].data_mut()?[slice.elements()]);
            }
        }
        Ok(())
    }

    /// Replaces the weights on the GPU by the slices of all processes, which arrive in rows of one length for each group.
    fn replace_on_gpu(&self, peers: &GpuPeers, params: &mut Params, own: &[Tensor]) -> Result<()> {
        let mut values = params.iter_mut().map(Param::value_mut).collect::<Result<Vec<_>>>()?;
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let mut rest = own.iter();
        for group in 0..self.groups.len() {
            let slices = self.slices_of(group);
            let len = |slices: &Vec<Slice>| slices.iter().map(|slice| slice.elements().len()).sum::<usize>();
            let width = slices.iter().map(len).max().unwrap_or(0);
            let of_group: Vec<&Tensor> = rest.by_ref().take(slices[rank].len()).collect();
            let rows = peers.all_gather(&of_group, width)?;
            for (process, slices) in slices.iter().enumerate() {
                if process == 0 && rank + 1 == size && faults::on(Fault::StaleWeightsOnOneProcess) {
                    continue;
                }
                let shift = usize::from(faults::on(Fault::WeightsOfNextProcess));
                let mut at = (process + shift) % size * width;
                for slice in slices {
                    let len = slice.elements().len();
                    peers.copy(&rows, at..at + len, values[slice.param], slice.elements().start)?;
                    at += len;
                }
            }
        }
        Ok(())
    }
}
