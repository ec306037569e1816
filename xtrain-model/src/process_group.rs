//! The processes that train one model: each computes the gradients of its shards of a step and updates its slice of the
//! parameters (ZeRO-1, arXiv:1910.02054). Only copies cross processes, so the bits do not depend on their number.
mod message;
mod weights;

use std::num::NonZero;
use std::ops::Range;
use std::sync::Arc;
use std::thread::available_parallelism;

use xtrain_comm::Communicator;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, LogProb, Update, Updated};
use xtrain_tensor::{Device, Dtype, GpuPeers, Simd, Tensor, sliced_adamw};

use crate::error::{Error, Result};
use crate::optim::AdamW;
use crate::param::Param;
use crate::params::Params;
use crate::processes::Processes;
use crate::shards::{Node, TreeSum, nodes};
use crate::slices::{self, Group, Slice};
use message::{Values, append};

/// The numbers that a value of a target is sent as: its kind and its three fields.
const VALUE: usize = 4;

/// The kind of a value whose token is kept. 1: its token is not kept; 0: there is none.
const KEPT: f32 = 2.0;

/// The loss and the gradients of some shards of a step, or of all. The gradients are those of all parameters in walk
/// order, or of the slices of a process.
#[derive(Debug)]
pub(crate) struct ShardTotal {
    pub(crate) loss: f32,
    pub(crate) grads: Vec<Tensor>,
}

impl ShardTotal {
    /// `left + right`, element by element.
    pub(crate) fn add(left: ShardTotal, right: &ShardTotal) -> Result<ShardTotal> {
        let ShardTotal { loss, mut grads } = left;
        for (left, right) in grads.iter_mut().zip(&right.grads) {
            ops::accumulate(left, right)?;
        }
        Ok(ShardTotal { loss: loss + right.loss, grads })
    }
}

/// The processes that train one model, and the slice of the parameters of each.
#[derive(Debug, Clone)]
pub(crate) struct ProcessGroup {
    comm: Arc<dyn Communicator>,
    shards: usize,
    /// The connection of the GPUs. `None`: totals and weights travel through host memory.
    peers: Option<Arc<GpuPeers>>,
    /// The CPU, which adds the sums of rows.
    host: Device,
    /// The device that holds the slices of gradients and moments of this process and updates its slice of the weights:
    /// its GPU if the GPUs are connected, otherwise the CPU. The bits of AdamW are the same.
    home: Device,
    /// The number of rows of each parameter.
    rows: Vec<usize>,
    /// The groups in which totals are exchanged.
    groups: Vec<Group>,
    /// The slices of each process.
    slices: Vec<Vec<Slice>>,
}

impl ProcessGroup {
    /// Number of shards of a step.
    pub(crate) fn shards(&self) -> usize {
        self.shards
    }

    /// Divides `shards` shards and the parameters among `processes`.
    ///
    /// # Errors
    /// [`Error::Processes`] if the number of processes does not divide `shards`, or if their GPUs are not connected with
    /// that of the model.
    pub(crate) fn new(processes: &Processes, shards: usize, params: &Params) -> Result<ProcessGroup> {
        let Processes { comm, gpus, host_threads } = processes.clone();
        let size = comm.size();
        if shards == 0 || !shards.is_multiple_of(size) {
            let want = format!("a number of processes that divides the {shards} shards of a step");
            return Err(Error::Processes { want, got: format!("{size} processes") });
        }
        let shapes: Vec<&[usize]> = params.iter().map(Param::shape).collect();
        let elements: Vec<usize> = shapes.iter().map(|shape| shape.iter().product()).collect();
        let groups = slices::groups(&params.parts(), &elements, size);
        let (rows, slices) = (slices::rows(&shapes), slices::divide(&shapes, &groups, size));
        let host = match params.embed.device() {
            Device::Gpu(_) => {
                let cores = || available_parallelism().map_or(1, NonZero::get);
                Device::cpu_with(host_threads.unwrap_or_else(cores), Simd::detect())
            }
            cpu => cpu.clone(),
        };
        if let Some(gpus) = gpus.as_ref().filter(|gpus| !gpus.device().is(params.embed.device())) {
            let want = format!("a connection of the device of the model, {}", params.embed.device());
            return Err(Error::Processes { want, got: format!("one of {}", gpus.device()) });
        }
        let home = gpus.as_ref().map_or_else(|| host.clone(), |peers| peers.device());
        Ok(ProcessGroup { comm, shards, peers: gpus, host, home, rows, groups, slices })
    }

    pub(crate) fn comm(&self) -> &Arc<dyn Communicator> {
        &self.comm
    }

    /// The connection of the GPUs. `None`: totals and weights travel through host memory.
    pub(crate) fn peers(&self) -> Option<&Arc<GpuPeers>> {
        self.peers.as_ref()
    }

    /// The shards of process `rank`.
    fn shards_of(&self, rank: usize) -> Range<usize> {
        let each = self.shards / self.comm.size();
        rank * each..(rank + 1) * each
    }

    /// The shards of this process.
    pub(crate) fn own_shards(&self) -> Range<usize> {
        self.shards_of(self.comm.rank())
    }

    /// The groups in which totals are exchanged, in walk order.
    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The device of the own slices of gradients and moments.
    pub(crate) fn home(&self) -> &Device {
        &self.home
    }

    fn own(&self) -> &[Slice] {
        &self.slices[self.comm.rank()]
    }

    /// Copies of the own slices of `tensors`, one tensor per parameter in walk order.
    pub(crate) fn slice(&self, tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
        let copy = |slice: &Slice| match &self.peers {
            None => slice.copy(tensors[slice.param], &self.home),
            Some(peers) => {
                let mut copy = Tensor::zeros(&self.home, &slice.shape(), Dtype::F32)?;
                peers.copy(tensors[slice.param], slice.elements(), &mut copy, 0)?;
                Ok(copy)
            }
        };
        self.own().iter().map(copy).collect()
    }

    /// The slices of each process in group `group`.
    pub(crate) fn slices_of(&self, group: usize) -> Vec<Vec<Slice>> {
        let params = &self.groups[group].params;
        let of_group = |slices: &Vec<Slice>| {
            slices.iter().filter(|slice| params.contains(&slice.param)).cloned().collect()
        };
        self.slices.iter().map(of_group).collect()
    }

    /// The values of the targets of all shards, from those of the shards of each process.
    pub(crate) fn gather_values(&self, own: &[Option<LogProb>]) -> Result<Vec<Option<LogProb>>> {
        let mut message = Vec::with_capacity(own.len() * 4 * VALUE);
        for value in own {
            let LogProb { lse, log_prob, entropy, kept } = value.unwrap_or_default();
            let kind = if kept { KEPT } else { f32::from(u8::from(value.is_some())) };
            append(&mut message, &[kind, lse, log_prob, entropy]);
        }
        let all: Vec<f32> =
            self.comm.all_gather(&message)?.iter().flat_map(|message| Values(message).rest()).collect();
        let value = |&[kind, lse, log_prob, entropy]: &[f32; VALUE]| {
            (kind > 0.0).then_some(LogProb { lse, log_prob, entropy, kept: kind == KEPT })
        };
        Ok(all.as_chunks().0.iter().map(value).collect())
    }

    /// The nodes of the tree of shards whose totals each process sends.
    pub(crate) fn nodes(&self) -> Vec<Vec<Node>> {
        (0..self.comm.size()).map(|rank| nodes(self.shards_of(rank))).collect()
    }

    /// The loss of all shards, from those of the nodes of each process, of which `own` are those of this one.
    ///
    /// Order: the tree of docs/numerics.md, section 4.
    pub(crate) fn sum_losses(&self, own: &[f32]) -> Result<f32> {
        let received = self.comm.all_gather(bytemuck::cast_slice(own))?;
        let add = |left: f32, right: &f32| Ok::<_, Error>(left + right);
        let mut tree = TreeSum::default();
        for (nodes, message) in self.nodes().iter().zip(&received) {
            for (node, loss) in nodes.iter().zip(Values(message).rest()) {
                tree.push(*node, loss, add)?;
            }
        }
        Ok(tree.finish(add)?.unwrap_or_default())
    }

    /// [`AdamW::step`] with the gradients and the moments of the own slices.
    ///
    /// Order: the row sums of all processes in walk order, then as in [`AdamW::step`].
    pub(crate) fn step(
        &self,
        optimizer: &mut AdamW,
        params: &mut Params,
        grads: &[Tensor],
        lr: f64,
    ) -> Result<Updated> {
        let norm = self.norm(grads)?;
        if !norm.is_finite() {
            return Ok(Updated { norm, finite: true });
        }
        let values = params.iter().map(Param::value).collect::<Result<Vec<_>>>()?;
        let mut own = self.slice(&values)?;
        let (scalars, powers) = optimizer.scalars(lr);
        let max_norm = optimizer.max_norm();
        let times = if faults::on(Fault::SliceUpdatedTwice) && self.comm.rank() == 1 { 2 } else { 1 };
        let mut finite = true;
        for _ in 0..times {
            let AdamW { m, v, .. } = &mut *optimizer;
            let parts = own.iter_mut().zip(grads).zip(m).zip(v);
            let mut updates: Vec<Update<'_>> = parts.map(|(((w, g), m), v)| Update { w, g, m, v }).collect();
            finite = sliced_adamw::update(&self.home, &mut updates, [norm, max_norm], &scalars)?;
        }
        optimizer.powers = powers;
        self.replace(params, &own)?;
        let flags = self.comm.all_gather(&[u8::from(finite)])?;
        Ok(Updated { norm, finite: flags.iter().all(|flag| flag == &[1]) })
    }

    /// The global norm of the gradients of which this process has the own slices.
    fn norm(&self, grads: &[Tensor]) -> Result<f32> {
        let squares = sliced_adamw::row_squares(&self.home, &grads.iter().collect::<Vec<_>>())?;
        let mut message = Vec::new();
        append(&mut message, &squares);
        let messages = self.comm.all_gather(&message)?;
        if faults::on(Fault::NormSummedByProcess) {
            let sum = |message: &Vec<u8>| Values(message).rest().iter().fold(0f32, |sum, x| sum + x);
            return Ok(messages.iter().map(sum).fold(0f32, |total, sum| total + sum).sqrt());
        }
        let mut all = vec![0f32; self.rows.iter().sum()];
        for (slices, message) in self.slices.iter().zip(&messages) {
            let mut squares = Values(message);
            for Slice { param, rows, .. } in slices {
                let start = self.rows[..*param].iter().sum::<usize>() + rows.start;
                squares.read_into(&mut all[start..start + rows.len()]);
            }
        }
        if faults::on(Fault::SquaresInOrderOfProcesses) {
            all = messages.iter().flat_map(|message| Values(message).rest()).collect();
        }
        Ok(sliced_adamw::global_norm(&self.host, &all, &self.rows)?)
    }

    /// The first parameter in walk order of which any process has a slice that is not finite.
    pub(crate) fn first_non_finite(&self, own: &[Tensor]) -> Result<Option<usize>> {
        let first = ops::first_non_finite(&own.iter().collect::<Vec<_>>())?;
        let param = first.map_or(u64::MAX, |at| self.own()[at].param as u64);
        let found = self.comm.all_gather(&param.to_le_bytes())?;
        let params =
            found.iter().filter_map(|bytes| bytes.as_slice().try_into().ok().map(u64::from_le_bytes));
        if faults::on(Fault::OtherProcessTakenAsFinite) {
            return Ok(first.map(|at| self.own()[at].param));
        }
        Ok(params.min().filter(|&param| param != u64::MAX).map(|param| param as usize))
    }
}

#[cfg(test)]
mod tests {
    use xtrain_comm::ThreadProcess;
    use xtrain_tensor::Dtype;

    use super::*;
    use crate::config::Config;
    use crate::model::Model;
    use crate::optim::OptimConfig;

    fn params() -> Params {
        Model::init(&Config::tiny(), Dtype::F32, &Device::cpu(), 1).unwrap().params
    }

    /// Runs `work` in each of two processes, with the planted fault of this thread.
    fn on_two<T: Send>(work: impl Fn(ProcessGroup, Params) -> T + Sync) -> Vec<T> {
        let fault = faults::current();
        std::thread::scope(|scope| {
            let start = |process: ThreadProcess| {
                let work = &work;
                scope.spawn(move || {
                    let params = params();
                    let group = ProcessGroup::new(&Processes::new(Arc::new(process)), 2, &params).unwrap();
                    fault.enter(|| work(group, params))
                })
            };
            let threads: Vec<_> = ThreadProcess::group(2).into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn values_of_targets_arrive_as_they_were_sent() {
        let value = |x: f32, kept: bool| Some(LogProb { lse: x, log_prob: -x, entropy: x / 3.0, kept });
        let own = [vec![value(1.5, true), None, value(-0.0, false)], vec![None, value(7.0, false)]];
        let want = own.concat();
        for found in on_two(|group, _| group.gather_values(&own[group.comm().rank()]).unwrap()) {
            assert_eq!(format!("{found:?}"), format!("{want:?}"));
        }
    }

    #[test]
    fn an_update_that_is_not_finite_in_one_process_is_reported_by_all() {
        let update = |overflows: bool| {
            on_two(|group, mut params| {
                if overflows {
                    params.embed.value_mut().unwrap().data_mut::<f32>().unwrap()[0] = f32::MAX;
                }
                let config = OptimConfig { weight_decay: 0.0, ..OptimConfig::default() };
                let mut optimizer = AdamW::new(config, &params).unwrap();
                let grads: Vec<Tensor> = params
                    .iter()
                    .map(|p| {
                        Tensor::new(&Device::cpu(), p.shape(), vec![-1e-3; p.shape().iter().product()])
                            .unwrap()
                    })
                    .collect();
                let own = |tensors: &[Tensor]| group.slice(&tensors.iter().collect::<Vec<_>>()).unwrap();
                (optimizer.m, optimizer.v) = (own(&optimizer.m), own(&optimizer.v));
                group.step(&mut optimizer, &mut params, &own(&grads), 1e35).unwrap().finite
            })
        };
        assert_eq!(update(false), [true, true]);
        assert_eq!(update(true), [false, false]);
    }

    #[test]
    fn the_first_parameter_that_is_not_finite_in_any_process_is_found_by_all() {
        // index of the slice with a NaN, of each process
        type At = fn(&[Slice]) -> Option<usize>;
        let none: At = |_| None;
        let first: At = |_| Some(0);
        let last: At = |own| Some(own.len() - 1);
        let found = |at: [At; 2]| {
            on_two(|group, params| {
                let values = params.iter().map(|p| p.value().unwrap()).collect::<Vec<_>>();
                let mut own = group.slice(&values).unwrap();
                if let Some(slice) = at[group.comm().rank()](group.own()) {
                    own[slice].data_mut::<f32>().unwrap()[0] = f32::NAN;
                }
                let of_process = |rank: usize| {
                    let slices = &group.slices[rank];
                    at[rank](slices).map(|slice| slices[slice].param)
                };
                let want = (0..2).filter_map(of_process).min();
                (group.first_non_finite(&own).unwrap(), want)
            })
        };
        for at in [[none, first], [first, none], [last, first], [none, none]] {
            for (got, want) in found(at) {
                assert_eq!(got, want);
            }
        }
    }

    #[cfg(feature = "faults")]
    #[test]
    fn a_process_that_checks_only_its_own_slices_is_detected() {
        let test = the_first_parameter_that_is_not_finite_in_any_process_is_found_by_all;
        let fault = Fault::OtherProcessTakenAsFinite;
        let found = faults::with(fault, || xtrain_tensor::testing::failure(test));
        assert!(found.is_some_and(|text| text.contains("left == right")));
    }
}
