//! The exchange of the totals of shards between GPUs: the totals of a group of layers travel while the backward pass
//! computes the gradients of the layers before them, and are added on the GPU that receives them.
use std::sync::Arc;

use xtrain_tensor::{GpuPeers, Sent, Tensor, Transfer, ops};

use crate::error::Result;
use crate::process_group::{ProcessGroup, ShardTotal};
use crate::shards::{Node, TreeSum};

/// A running exchange.
#[derive(Debug)]
pub(crate) struct GpuExchange {
    peers: Arc<GpuPeers>,
    /// The nodes of the tree of shards whose totals each process sends.
    nodes: Vec<Vec<Node>>,
    /// The transfer of the group that was sent last, and the number of its slices of this process.
    running: Option<(Transfer, usize)>,
    /// The sums of the slices of this process, of the groups before: from the last one on.
    sums: Vec<Vec<Tensor>>,
    /// The losses of the totals that this process has sent.
    losses: Vec<f32>,
}

impl GpuExchange {
    /// An exchange of totals of the nodes `nodes` of each process.
    pub(crate) fn new(peers: &Arc<GpuPeers>, nodes: Vec<Vec<Node>>) -> GpuExchange {
        let (running, sums, losses) = (None, Vec::new(), Vec::new());
        GpuExchange { peers: Arc::clone(peers), nodes, running, sums, losses }
    }

    /// Starts to send each process its slices of the totals of group `at`, and adds those of the group that was sent
    /// before.
    ///
    /// # Errors
    /// From the GPU or its connection.
    pub(crate) fn send(&mut self, group: &ProcessGroup, at: usize, totals: &[ShardTotal]) -> Result<()> {
        self.receive()?;
        let first = group.groups()[at].params.start;
        let slices = group.slices_of(at);
        let sent = slices.iter().enumerate().flat_map(|(process, slices)| {
            totals.iter().flat_map(move |total| {
                slices.iter().map(move |slice| {
                    let (tensor, elements) = (&total.grads[slice.param - first], slice.elements());
                    Sent { process, tensor, elements }
                })
            })
        });
        let sent: Vec<Sent<'_>> = sent.collect();
        let own = &slices[group.comm().rank()];
        let received: Vec<(usize, Vec<usize>)> = self
            .nodes
            .iter()
            .enumerate()
            .flat_map(|(process, nodes)| {
                nodes.iter().flat_map(move |_| own.iter().map(move |slice| (process, slice.shape())))
            })
            .collect();
        self.losses = totals.iter().map(|total| total.loss).collect();
        self.running = Some((self.peers.exchange(&sent, &received)?, own.len()));
        Ok(())
    }

    /// Adds the totals of the group that was sent last.
    ///
    /// Order: the tree of docs/numerics.md, section 4.
    fn receive(&mut self) -> Result<()> {
        let Some((transfer, slices)) = self.running.take() else { return Ok(()) };
        let mut received = transfer.finish()?.into_iter();
        let mut tree = TreeSum::default();
        for node in self.nodes.iter().flatten() {
            tree.push(*node, received.by_ref().take(slices).collect(), add)?;
        }
        self.sums.push(tree.finish(add)?.unwrap_or_default());
        Ok(())
    }

    /// The sum over all shards: the loss, and the gradients of the own slices.
    ///
    /// # Errors
    /// A process has ended; from the GPU or its connection.
    pub(crate) fn finish(mut self, group: &ProcessGroup) -> Result<ShardTotal> {
        self.receive()?;
        let loss = group.sum_losses(&self.losses)?;
        Ok(ShardTotal { loss, grads: self.sums.into_iter().rev().flatten().collect() })
    }
}

/// `left + right`, tensor by tensor.
fn add(mut left: Vec<Tensor>, right: &Vec<Tensor>) -> Result<Vec<Tensor>> {
    for (left, right) in left.iter_mut().zip(right) {
        ops::accumulate(left, right)?;
    }
    Ok(left)
}
