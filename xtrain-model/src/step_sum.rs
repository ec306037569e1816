//! The sum of the shards of a step: of one process alone, or exchanged with others while the last shard is computed.
use xtrain_tensor::faults::{self, Fault};

use crate::backward::Totals;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, ExchangeTime};
use crate::gpu_exchange::GpuExchange;
use crate::process_group::{ProcessGroup, ShardTotal};
use crate::shards::{Node, TreeSum};
use crate::slices::Group;

/// Adds the totals of the shards of this process, from left to right.
pub(crate) struct StepSum<'g> {
    sum: TreeSum<ShardTotal>,
    others: Option<Others<'g>>,
}

/// The exchange with the other processes.
struct Others<'g> {
    group: &'g ProcessGroup,
    exchange: Route,
    /// The number of groups of parameters that are not sent yet: the first ones.
    unsent: usize,
}

/// How totals travel.
enum Route {
    Host(Exchange),
    Gpus(GpuExchange),
}

impl<'g> StepSum<'g> {
    /// Without `group`, the sum of all shards.
    ///
    /// # Errors
    /// If the operating system grants no thread for the exchange.
    pub(crate) fn new(group: Option<&'g ProcessGroup>) -> Result<StepSum<'g>> {
        let start = |group: &'g ProcessGroup| {
            let unsent = group.groups().len();
            let exchange = match group.peers() {
                Some(peers) => Route::Gpus(GpuExchange::new(peers, group.nodes())),
                None => Route::Host(Exchange::start(group)?),
            };
            Ok::<_, Error>(Others { group, exchange, unsent })
        };
        Ok(StepSum { sum: TreeSum::default(), others: group.map(start).transpose()? })
    }

    /// The gradients of part `part` of the model are complete in `totals`, the sums of shard `shard`. If it is the last
    /// shard of this process, they are sent and taken from `totals`.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub(crate) fn complete(&mut self, shard: usize, part: usize, totals: &mut Totals<'_>) -> Result<()> {
        match &mut self.others {
            Some(others) if others.is_last(shard) => {
                while others.next().parts.start >= part {
                    let grads = totals.grads.take(others.next().params.clone())?;
                    others.send(&mut self.sum, shard, ShardTotal { loss: *totals.loss, grads })?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Adds the sums of the next shard. `grads`: the gradients of all parameters, less those that were sent.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub(crate) fn push(&mut self, shard: usize, total: ShardTotal) -> Result<()> {
        match &mut self.others {
            Some(others) if others.is_last(shard) => {
                let ShardTotal { loss, mut grads } = total;
                while others.unsent > 0 {
                    let grads = grads.drain(others.next().params.clone()).collect();
                    others.send(&mut self.sum, shard, ShardTotal { loss, grads })?;
                }
                Ok(())
            }
            _ => self.sum.push(Node { first: shard, len: 1 }, total, ShardTotal::add),
        }
    }

    /// The sum of all shards of the step. Of several processes, each has the gradients of its slices. `None`: there was
    /// no shard.
    ///
    /// # Errors
    /// A process has ended.
    pub(crate) fn finish(self) -> Result<Option<(ShardTotal, ExchangeTime)>> {
        match self.others {
            None => Ok(self.sum.finish(ShardTotal::add)?.map(|total| (total, ExchangeTime::default()))),
            Some(Others { group, exchange, .. }) => {
                let (total, time) = match exchange {
                    Route::Host(exchange) => exchange.finish(group)?,
                    Route::Gpus(exchange) => (exchange.finish(group)?, ExchangeTime::default()),
                };
                Ok(Some((total, time)))
            }
        }
    }
}

impl Others<'_> {
    /// Whether `shard` is the last one of this process.
    fn is_last(&self, shard: usize) -> bool {
        shard + 1 == self.group.own_shards().end
    }

    /// The group that is sent next.
    fn next(&self) -> &Group {
        &self.group.groups()[self.unsent - 1]
    }

    /// Sends the totals of this process for the next group: `own` of its last shard, and those of the shards before,
    /// which are taken from `earlier`.
    fn send(&mut self, earlier: &mut TreeSum<ShardTotal>, shard: usize, own: ShardTotal) -> Result<()> {
        let first = self.next().params.start;
        let mut sum = earlier.map(|ShardTotal { loss, grads }| ShardTotal {
            loss: *loss,
            grads: grads.drain(first..).collect(),
        });
        self.unsent -= 1;
        if self.unsent == 0 && faults::on(Fault::EarlierShardsNotSent) {
            sum = TreeSum::default();
        }
        sum.push(Node { first: shard, len: 1 }, own, ShardTotal::add)?;
        let totals = sum.into_nodes();
        match &mut self.exchange {
            Route::Host(exchange) => exchange.send(self.group, self.unsent, &totals)?,
            Route::Gpus(exchange) => exchange.send(self.group, self.unsent, &totals)?,
        }
        Ok(())
    }
}
