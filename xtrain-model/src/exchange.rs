//! The exchange of the totals of shards between processes, on a thread of its own: the totals of a layer travel while the
//! backward pass computes the gradients of the layers before it.
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use xtrain_comm::Communicator;
use xtrain_tensor::{Device, Tensor, faults};

use crate::error::Result;
use crate::process_group::{ProcessGroup, ShardTotal};
use crate::shards::{Node, TreeSum};
use crate::slices::Slice;

/// How long the exchange of gradients of a step took through host memory. Between GPUs both are zero: a measurement
/// would synchronize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExchangeTime {
    /// In all its operations, each of which waits for the slowest process.
    pub total: Duration,
    /// The part after the end of the backward pass. The rest was hidden behind it.
    pub exposed: Duration,
}

/// A running exchange. Without [`Exchange::finish`] it ends when the operation that its thread is in has ended.
#[derive(Debug)]
pub(crate) struct Exchange {
    totals: Sender<GroupTotals>,
    sums: Receiver<(Result<Vec<Tensor>>, Duration)>,
    /// Number of groups that were sent.
    sent: usize,
    /// The losses of the totals that this process has sent.
    losses: Vec<f32>,
}

/// The sum of the totals of all shards, whose terms other processes hold.
struct ShardSum {
    comm: Arc<dyn Communicator>,
    /// The nodes of the tree of shards whose totals each process sends.
    nodes: Vec<Vec<Node>>,
    /// The device of the sums.
    home: Device,
}

/// The totals of a group of parameters. They travel without a copy: the slices of each process are sent from the
/// gradients, and received as tensors.
struct GroupTotals {
    /// The gradients of the group, in host memory, of each node of this process.
    grads: Vec<Vec<Tensor>>,
    /// The first parameter of the group.
    first: usize,
    /// The slices of each process in the group.
    slices: Vec<Vec<Slice>>,
}

impl Exchange {
    /// Starts the thread. Until the exchange ends, no other thread may use the communicator of `group`.
    ///
    /// # Errors
    /// If the operating system grants no thread.
    pub(crate) fn start(group: &ProcessGroup) -> Result<Exchange> {
        let (totals, to_send) = channel::<GroupTotals>();
        let (done, sums) = channel();
        let fault = faults::current();
        let (comm, home) = (Arc::clone(group.comm()), group.home().clone());
        let shards = ShardSum { comm, nodes: group.nodes(), home };
        let work = move || {
            for totals in to_send {
                let result = shards.sum(totals);
                // after an error, a further group would reach processes that expect this one
                let failed = result.is_err();
                let took = result.as_ref().map_or(Duration::ZERO, |(_, took)| *took);
                if done.send((result.map(|(sum, _)| sum), took)).is_err() || failed {
                    return;
                }
            }
        };
        let thread = Builder::new().name("exchange".to_string()).spawn(move || fault.enter(work));
        thread.map_err(|error| xtrain_comm::Error::Thread(error.to_string()))?;
        Ok(Exchange { totals, sums, sent: 0, losses: Vec::new() })
    }

    /// Sends each process its slices of the totals of group `at`.
    ///
    /// # Errors
    /// A device fails, from which the gradients are read.
    pub(crate) fn send(&mut self, group: &ProcessGroup, at: usize, totals: &[ShardTotal]) -> Result<()> {
        self.losses = totals.iter().map(|total| total.loss).collect();
        let on_host =
            |total: &ShardTotal| total.grads.iter().map(Tensor::to_host).collect::<Result<Vec<_>, _>>();
        let grads = totals.iter().map(on_host).collect::<Result<_, _>>()?;
        let (first, slices) = (group.groups()[at].params.start, group.slices_of(at));
        self.sent += 1;
        // if the thread has ended, its panic or its error is found by `finish`
        let _ = self.totals.send(GroupTotals { grads, first, slices });
        Ok(())
    }

    /// The sum over all shards: the loss, and the gradients of the own slices.
    ///
    /// Order: the tree of docs/numerics.md, section 4.
    ///
    /// # Errors
    /// A process has ended.
    pub(crate) fn finish(self, group: &ProcessGroup) -> Result<(ShardTotal, ExchangeTime)> {
        let Exchange { totals, sums, sent, losses } = self;
        drop(totals);
        let clock = Instant::now();
        let mut all = Vec::with_capacity(sent);
        let mut total = Duration::ZERO;
        for (sum, took) in sums {
            all.push(sum?);
            total += took;
        }
        assert_eq!(all.len(), sent, "the thread of the exchange has panicked");
        let time = ExchangeTime { total, exposed: clock.elapsed().min(total) };
        let loss = group.sum_losses(&losses)?;
        Ok((ShardTotal { loss, grads: all.into_iter().rev().flatten().collect() }, time))
    }
}

impl ShardSum {
    /// Sends each process its slices of `totals`. Returns the sums of the own slices over the nodes of all processes, and
    /// the time of the transfer.
    fn sum(&self, totals: GroupTotals) -> Result<(Vec<Tensor>, Duration)> {
        let rank = self.comm.rank();
        let new = |slice: &Slice| Tensor::unspecified(&self.home, &slice.shape());
        let new = |_: &Node| totals.slices[rank].iter().map(new).collect::<Result<Vec<_>, _>>();
        let of_nodes = |nodes: &Vec<Node>| nodes.iter().map(new).collect::<Result<Vec<_>, _>>();
        let mut received: Vec<Vec<Vec<Tensor>>> =
            self.nodes.iter().map(of_nodes).collect::<Result<_, _>>()?;
        totals.copy_own(rank, &mut received[rank])?;
        let receive = received
            .iter_mut()
            .map(|nodes| nodes.iter_mut().flatten().map(bytes_mut).collect())
            .collect::<Result<_>>()?;
        let clock = Instant::now();
        self.comm.transfer(&totals.messages()?, receive)?;
        let took = clock.elapsed();
        drop(totals); // the next sums use its memory
        let mut tree = TreeSum::default();
        for (node, total) in self.nodes.iter().flatten().zip(received.into_iter().flatten()) {
            tree.push(*node, total, add)?;
        }
        Ok((tree.finish(add)?.unwrap_or_default(), took))
    }
}

impl GroupTotals {
    /// The values of a slice in the gradients of a node.
    fn values<'a>(&self, grads: &'a [Tensor], slice: &Slice) -> Result<&'a [f32]> {
        Ok(&grads[slice.param - self.first].data::<f32>()?[slice.elements()])
    }

    /// The pieces for each process: for each node of this one, the slices of the receiver.
    fn messages(&self) -> Result<Vec<Vec<&[u8]>>> {
        let mut messages = vec![Vec::new(); self.slices.len()];
        for (message, slices) in messages.iter_mut().zip(&self.slices) {
            for grads in &self.grads {
                for slice in slices {
                    message.push(bytemuck::cast_slice(self.values(grads, slice)?));
                }
            }
        }
        Ok(messages)
    }

    /// Copies the slices of process `rank`, which is this one, to `nodes`.
    fn copy_own(&self, rank: usize, nodes: &mut [Vec<Tensor>]) -> Result<()> {
        for (grads, tensors) in self.grads.iter().zip(nodes) {
            for (slice, tensor) in self.slices[rank].iter().zip(tensors) {
                tensor.data_mut()?.copy_from_slice(self.values(grads, slice)?);
            }
        }
        Ok(())
    }
}

fn bytes_mut(tensor: &mut Tensor) -> Result<&mut [u8]> {
    Ok(bytemuck::cast_slice_mut(tensor.data_mut::<f32>()?))
}

/// `left + right`, tensor by tensor, on this thread: the others belong to the backward pass.
fn add(mut left: Vec<Tensor>, right: &Vec<Tensor>) -> Result<Vec<Tensor>> {
    for (left, right) in left.iter_mut().zip(right) {
        left.data_mut::<f32>()?.iter_mut().zip(right.data::<f32>()?).for_each(|(left, right)| *left += right);
    }
    Ok(left)
}
