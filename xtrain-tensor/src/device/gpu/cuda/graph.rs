//! Kernels as one CUDA graph: a chain of nodes that the driver launches by one call.
use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUgraphNode};

use super::functions::Functions;
use super::refused;
use crate::Result;
use crate::device::gpu::{Arg, Call, Graph};

/// A graph, its nodes in order, and what the driver made of it.
pub(super) struct Chain {
    stream: Arc<CudaStream>,
    functions: Arc<Functions>,
    graph: CUgraph,
    nodes: Vec<CUgraphNode>,
    runnable: CUgraphExec,
}

// SAFETY: the driver's handles are of the process, not of a thread; every call binds the context first.
unsafe impl Send for Chain {}

impl Chain {
    /// A node for each call, one after another.
    ///
    /// # Safety
    /// Arguments match the kernels' signatures.
    pub(super) unsafe fn new(
        stream: Arc<CudaStream>,
        functions: Arc<Functions>,
        calls: &[Call<'_>],
    ) -> Result<Chain> {
        let (graph, runnable) = (ptr::null_mut(), ptr::null_mut());
        let mut chain = Chain { stream, functions, graph, nodes: Vec::new(), runnable };
        chain.bind()?;
        // SAFETY: the pointers are to handles of this chain, which destroys them when it is dropped.
        unsafe { sys::cuGraphCreate(&mut chain.graph, 0) }.result().map_err(refused("a graph"))?;
        // SAFETY: as promised by the caller.
        calls.iter().try_for_each(|call| unsafe { chain.append(call) })?;
        // SAFETY: as above.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut chain.runnable, chain.graph, 0) }
            .result()
            .map_err(refused("making a graph runnable"))?;
        Ok(chain)
    }

    fn bind(&self) -> Result<()> {
        self.stream.context().bind_to_thread().map_err(refused("its context"))
    }

    /// # Safety
    /// Arguments match the kernel's signature.
    unsafe fn append(&mut self, call: &Call<'_>) -> Result<()> {
        let mut addresses: Vec<*mut c_void> = call.args.iter().map(Arg::address).collect();
        let params = self.functions.node(call, &mut addresses)?;
        let (mut node, before) = (ptr::null_mut(), self.nodes.last());
        let after = before.map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the node before is of this graph; the driver copies the arguments before it returns.
        unsafe {
            sys::cuGraphAddKernelNode_v2(&mut node, self.graph, after, usize::from(before.is_some()), &params)
        }
        .result()
        .map_err(refused(call.kernel))?;
        self.nodes.push(node);
        Ok(())
    }
}

impl Graph for Chain {
    unsafe fn set(&mut self, at: usize, call: Call<'_>) -> Result<()> {
        self.bind()?;
        let mut addresses: Vec<*mut c_void> = call.args.iter().map(Arg::address).collect();
        let params = self.functions.node(&call, &mut addresses)?;
        // SAFETY: a node of this graph; the driver copies the arguments, and runs under way keep theirs.
        unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.runnable, self.nodes[at], &params) }
            .result()
            .map_err(refused(call.kernel))
    }

    unsafe fn run(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: as promised by the caller for each call.
        unsafe { sys::cuGraphLaunch(self.runnable, self.stream.cu_stream()) }
            .result()
            .map_err(refused("running a graph"))
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // what a run under way left wrong is reported by the next call
        if self.bind().is_err() || self.stream.synchronize().is_err() {
            return;
        }
        // SAFETY: handles that this chain made, each once; nothing runs.
        unsafe {
            if !self.runnable.is_null() {
                let _ = sys::cuGraphExecDestroy(self.runnable);
            }
            if !self.graph.is_null() {
                let _ = sys::cuGraphDestroy(self.graph);
            }
        }
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}
