//! A thread that reads the next layer while the present one is computed.
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use xtrain_tensor::Tensor;

use super::layer_file::ReadLayer;

/// Keys and values of a layer in host memory.
#[derive(Debug)]
pub(super) struct HostLayer {
    /// `None`: of no layer.
    pub(super) layer: Option<usize>,
    pub(super) kv: [Tensor; 2],
}

/// The thread, and the memory that it reads into. The thread owns the memory only while it reads.
#[derive(Debug)]
pub(super) struct LayerReader {
    /// `None`: the thread has it.
    idle: Option<HostLayer>,
    /// `None`: the thread ends.
    jobs: Option<Sender<(ReadLayer, HostLayer)>>,
    done: Receiver<HostLayer>,
    thread: Option<JoinHandle<()>>,
}

impl LayerReader {
    /// Starts the thread. `memory`: keys and values of a layer.
    ///
    /// # Errors
    /// If the operating system grants no thread.
    pub(super) fn new(memory: [Tensor; 2]) -> io::Result<LayerReader> {
        let (jobs, received) = channel::<(ReadLayer, HostLayer)>();
        let (sender, done) = channel();
        let work = move || {
            for (read, mut into) in received {
                // what cannot be read is read again when it is needed, and the error is reported then
                if read.run(&mut into.kv).is_err() {
                    into.layer = None;
                }
                if sender.send(into).is_err() {
                    break;
                }
            }
        };
        let thread = Builder::new().name("kv layers".to_string()).spawn(work)?;
        let idle = Some(HostLayer { layer: None, kv: memory });
        Ok(LayerReader { idle, jobs: Some(jobs), done, thread: Some(thread) })
    }

    /// Takes the memory with the layer that was read last, when it is read.
    pub(super) fn take(&mut self) -> HostLayer {
        match self.idle.take() {
            Some(memory) => memory,
            None => self.done.recv().expect("the thread returns what it was sent"),
        }
    }

    /// Gives the memory back, with what it holds.
    pub(super) fn put(&mut self, memory: HostLayer) {
        self.idle = Some(memory);
    }

    /// Gives the memory back, and begins to read a layer into it.
    pub(super) fn start(&mut self, read: ReadLayer, into: HostLayer) {
        let jobs = self.jobs.as_ref().expect("the thread runs as long as the reader exists");
        jobs.send((read, into)).expect("the thread runs as long as the reader exists");
    }
}

impl Drop for LayerReader {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // a panic of the thread was reported when it happened
            let _ = thread.join();
        }
    }
}
