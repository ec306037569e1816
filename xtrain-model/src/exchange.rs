//! The exchange of the totals of shards between processes, on a thread of its own: the totals of a layer travel while the
//! backward pass computes the gradients of the layers before it.
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use xtrain_comm::Communicator;
use xtrain_tensor::faults;

use crate::error::{Error, Result};
use crate::shards::{Node, TreeSum};

/// How long the exchange of gradients of a step took through host memory. Between GPUs both are zero: a measurement
/// would synchronize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExchangeTime {
    /// In all its operations, each of which waits for the slowest process.
    pub total: Duration,
    /// The part after the end of the backward pass. The rest was hidden behind it.
    pub exposed: Duration,
}

/// One message for each process.
type Messages = Vec<Vec<u8>>;

/// A running exchange. Without [`Exchange::finish`] it ends when the operation that its thread is in has ended.
#[derive(Debug)]
pub(crate) struct Exchange {
    messages: Sender<Messages>,
    sums: Receiver<(Result<Vec<f32>>, Duration)>,
    sent: usize,
}

impl Exchange {
    /// Starts the thread. `nodes`: the nodes of the tree of shards whose totals each process sends. Until the exchange
    /// ends, no other thread may use `comm`.
    ///
    /// # Errors
    /// If the operating system grants no thread.
    pub(crate) fn start(comm: Arc<dyn Communicator>, nodes: Vec<Vec<Node>>) -> Result<Exchange> {
        let (messages, to_send) = channel::<Messages>();
        let (done, sums) = channel();
        let fault = faults::current();
        let work = move || {
            for messages in to_send {
                let clock = Instant::now();
                let received = comm.all_to_all(messages);
                let took = clock.elapsed();
                let sum = received.map(|received| sum(&nodes, &received)).map_err(Error::from);
                if done.send((sum, took)).is_err() {
                    return;
                }
            }
        };
        let thread = Builder::new().name("exchange".to_string()).spawn(move || fault.enter(work));
        thread.map_err(|error| xtrain_comm::Error::Thread(error.to_string()))?;
        Ok(Exchange { messages, sums, sent: 0 })
    }

    /// Sends f32 values to each process, as bytes: those of each node of this process, one after the other.
    pub(crate) fn send(&mut self, messages: Messages) {
        self.sent += 1;
        // if the thread has ended, its panic or its error is found by `finish`
        let _ = self.messages.send(messages);
    }

    /// The sum of the values that all processes have sent to this one, for each [`Exchange::send`].
    ///
    /// Order: the tree of docs/numerics.md, section 4.
    ///
    /// # Errors
    /// A process has ended.
    pub(crate) fn finish(self) -> Result<(Vec<Vec<f32>>, ExchangeTime)> {
        let Exchange { messages, sums, sent } = self;
        drop(messages);
        let clock = Instant::now();
        let mut all = Vec::with_capacity(sent);
        let mut total = Duration::ZERO;
        for (sum, took) in sums {
            all.push(sum?);
            total += took;
        }
        assert_eq!(all.len(), sent, "the thread of the exchange has panicked");
        Ok((all, ExchangeTime { total, exposed: clock.elapsed().min(total) }))
    }
}

/// The sum over the nodes of all processes, of the messages that they have sent.
pub(crate) fn sum(nodes: &[Vec<Node>], received: &[Vec<u8>]) -> Vec<f32> {
    let mut tree = TreeSum::default();
    for (nodes, message) in nodes.iter().zip(received) {
        let len = message.len() / nodes.len().max(1);
        for (node, part) in nodes.iter().zip(message.chunks_exact(len.max(1))) {
            let Ok(()) =
                tree.push(*node, Total::Received(part), |left, right| Ok::<_, Infallible>(left.add(right)));
        }
    }
    let Ok(total) = tree.finish(|left, right| Ok::<_, Infallible>(left.add(right)));
    total.map_or_else(Vec::new, Total::into_values)
}

/// The total of a node: still in a message, where it may start at any byte, or a sum.
enum Total<'a> {
    Received(&'a [u8]),
    Sum(Vec<f32>),
}

impl Total<'_> {
    fn values(&self) -> impl Iterator<Item = f32> + '_ {
        let bytes: &[u8] = match self {
            Total::Received(bytes) => bytes,
            Total::Sum(values) => bytemuck::cast_slice(values),
        };
        bytes.as_chunks().0.iter().map(|&value| f32::from_ne_bytes(value))
    }

    fn into_values(self) -> Vec<f32> {
        match self {
            Total::Sum(values) => values,
            received @ Total::Received(_) => received.values().collect(),
        }
    }

    fn add(self, right: &Self) -> Self {
        let mut sum = self.into_values();
        sum.iter_mut().zip(right.values()).for_each(|(left, right)| *left += right);
        Total::Sum(sum)
    }
}
