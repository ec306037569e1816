//! A sequence of kernels as a CUDA graph: a linear chain of kernel nodes launched by one driver call.
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUgraph, CUgraphDependencyType, CUgraphEdgeData, CUgraphExec, CUgraphNode};

use super::driver_error::driver_error;
use super::functions::Functions;
use crate::Result;
use crate::device::gpu::launch::{Arg, Call, Graph};

/// An edge over which the blocks of a kernel start when those of the previous one have called
/// `xt_grid_dependency_sync` or ended. There they wait until that kernel has finished.
static DEPENDENT: CUgraphEdgeData = CUgraphEdgeData {
    from_port: sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
    to_port: sys::CU_GRAPH_KERNEL_NODE_PORT_DEFAULT as u8,
    type_: CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
    reserved: [0; 5],
};

pub(super) struct Chain {
    stream: Arc<CudaStream>,
    functions: Arc<Functions>,
    graph: CUgraph,
    nodes: Vec<CUgraphNode>,
    executable: CUgraphExec,
}

// SAFETY: driver handles belong to the process, not to a thread; every call binds the context first.
unsafe impl Send for Chain {}

impl Chain {
    /// Builds a chain with one node per call. With `dependent`, its edges are [`DEPENDENT`].
    ///
    /// # Safety
    /// The arguments match the kernels' signatures. With `dependent`, the kernels were compiled for sm_90 or later.
    pub(super) unsafe fn new(
        stream: Arc<CudaStream>,
        functions: Arc<Functions>,
        calls: &[Call<'_>],
        dependent: bool,
    ) -> Result<Chain> {
        let (graph, executable) = (ptr::null_mut(), ptr::null_mut());
        let mut chain = Chain { stream, functions, graph, nodes: Vec::new(), executable };
        chain.bind()?;
        // SAFETY: the pointers are to handles of this chain, which destroys them when it is dropped.
        unsafe { sys::cuGraphCreate(&mut chain.graph, 0) }
            .result()
            .map_err(driver_error("creating a graph"))?;
        // SAFETY: as promised by the caller.
        calls.iter().try_for_each(|call| unsafe { chain.append(call, dependent) })?;
        // SAFETY: as above.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut chain.executable, chain.graph, 0) }
            .result()
            .map_err(driver_error("instantiating a graph"))?;
        Ok(chain)
    }

    fn bind(&self) -> Result<()> {
        self.stream.context().bind_to_thread().map_err(driver_error("binding the context"))
    }

    /// # Safety
    /// The arguments match the kernel's signature.
    unsafe fn append(&mut self, call: &Call<'_>, dependent: bool) -> Result<()> {
        let mut addresses: Vec<*mut c_void> = call.args.iter().map(Arg::address).collect();
        let params = self.functions.node(call, &mut addresses)?;
        let mut node = ptr::null_mut();
        // SAFETY: the driver copies the arguments before it returns.
        unsafe { sys::cuGraphAddKernelNode_v2(&mut node, self.graph, ptr::null(), 0, &params) }
            .result()
            .map_err(driver_error(call.kernel))?;
        if let Some(before) = self.nodes.last() {
            let edge = if dependent { ptr::from_ref(&DEPENDENT) } else { ptr::null() };
            // SAFETY: both nodes belong to this graph; without edge data the node waits for the end of the other.
            unsafe { sys::cuGraphAddDependencies_v2(self.graph, before, &node, edge, 1) }
                .result()
                .map_err(driver_error(&format!("ordering {} in a graph", call.kernel)))?;
        }
        self.nodes.push(node);
        Ok(())
    }
}

impl Graph for Chain {
    unsafe fn set(&mut self, at: usize, call: Call<'_>) -> Result<()> {
        self.bind()?;
        let mut addresses: Vec<*mut c_void> = call.args.iter().map(Arg::address).collect();
        let params = self.functions.node(&call, &mut addresses)?;
        // SAFETY: the node belongs to this graph; the driver copies the arguments, and launches in flight keep
        // theirs.
        unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.executable, self.nodes[at], &params) }
            .result()
            .map_err(driver_error(call.kernel))
    }

    unsafe fn run(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: as promised by the caller for each call.
        unsafe { sys::cuGraphLaunch(self.executable, self.stream.cu_stream()) }
            .result()
            .map_err(driver_error("launching a graph"))
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // errors of a launch in flight are reported by the next call
        if self.bind().is_err() || self.stream.synchronize().is_err() {
            return;
        }
        // SAFETY: this chain created the handles and destroys each once; nothing is running.
        unsafe {
            if !self.executable.is_null() {
                let _ = sys::cuGraphExecDestroy(self.executable);
            }
            if !self.graph.is_null() {
                let _ = sys::cuGraphDestroy(self.graph);
            }
        }
    }
}
