//! Whole tensors from the slices of all processes.
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::{Device, GpuPeers, Tensor};

use super::ProcessGroup;
use crate::error::Result;
use crate::param::Param;
use crate::params::Params;
use crate::slices::Slice;

impl ProcessGroup {
    /// The tensors of all parameters, from the own slices of each process.
    pub(crate) fn gather(&self, own: &[Tensor], params: &Params) -> Result<Vec<Tensor>> {
        let shapes: Vec<&[usize]> = params.iter().map(Param::shape).collect();
        let mut whole = Tensor::all_zeros(&self.host, &shapes)?;
        let own = own.iter().map(Tensor::to_host).collect::<Result<Vec<_>, _>>()?;
        self.gather_into(&own, whole.iter_mut())?;
        let device = params.embed.device();
        Ok(whole.iter().map(|tensor| tensor.to_device(device)).collect::<Result<_, _>>()?)
    }

    /// Replaces the weights by the slices of all processes, of which `own` are those of this one: in host memory in place.
    pub(super) fn replace(&self, params: &mut Params, own: &[Tensor]) -> Result<()> {
        if let Some(peers) = &self.peers {
            return self.replace_on_gpu(peers, params, own);
        }
        let stale = self.stale(params)?;
        if let Device::Gpu(_) = params.embed.device() {
            let whole = self.gather(own, params)?;
            for (param, whole) in params.iter_mut().zip(whole) {
                *param.value_mut()? = whole;
            }
        } else {
            let mut values = params.iter_mut().map(Param::value_mut).collect::<Result<Vec<_>>>()?;
            self.gather_into(own, values.iter_mut().map(|value| &mut **value))?;
        }
        for (param, old) in params.iter_mut().zip(stale) {
            *param.value_mut()? = old;
        }
        Ok(())
    }

    /// The weights that [`Fault::StaleWeightsOnOneProcess`] keeps.
    fn stale(&self, params: &mut Params) -> Result<Vec<Tensor>> {
        let is_last = self.comm.rank() + 1 == self.comm.size();
        let kept = usize::from(is_last && faults::on(Fault::StaleWeightsOnOneProcess));
        params.iter_mut().take(kept).map(|param| Ok(param.value_mut()?.clone())).collect()
    }

    /// Writes the slices of all processes into `whole`, of which `own` are those of this one. All are in host memory. The
    /// slices travel without a copy.
    fn gather_into<'t>(&self, own: &[Tensor], whole: impl Iterator<Item = &'t mut Tensor>) -> Result<()> {
        let message: Vec<&[u8]> = own
            .iter()
            .map(|tensor| Ok(bytemuck::cast_slice(tensor.data::<f32>()?)))
            .collect::<Result<_>>()?;
        let mut rest =
            whole.map(|tensor| Ok(tensor.data_mut::<f32>()?)).collect::<Result<Vec<&mut [f32]>>>()?;
        let mut receive: Vec<Vec<&mut [u8]>> = Vec::with_capacity(self.slices.len());
        for slices in &self.slices {
            // the rows of a parameter belong to the processes in order
            let part = |slice: &Slice| {
                let part = rest[slice.param].split_off_mut(..slice.elements().len());
                bytemuck::cast_slice_mut(part.expect("the slices divide each parameter"))
            };
            receive.push(slices.iter().map(part).collect());
        }
        for (part, own) in receive[self.comm.rank()].iter_mut().zip(&message) {
            part.copy_from_slice(own);
        }
        Ok(self.comm.transfer(&vec![message; self.slices.len()], receive)?)
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
