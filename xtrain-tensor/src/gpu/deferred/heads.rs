//! Deferred `write_heads`. An attention whose rows do not see each other's new keys writes the heads itself. Any other
//! reader of the queries or of a pool queues the plain kernel first.
use std::sync::{Arc, Mutex, Weak};

use super::own_slots::sees_own_slot_only;
use crate::device::gpu::{Arg, At, Buffer, Deferred, Gpu, args};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::gpu::fused;
use crate::lock::lock;
use crate::operands::{AttnMask, QkNorm, RopeArgs, RopeTable, UnrotatedHeads};
use crate::tensor::Tensor;

/// A `write_heads`, in each of the three buffers that it writes.
#[derive(Debug, Clone)]
struct DeferredHeads {
    heads: Arc<NewHeads>,
    output: Output,
}

/// The buffer that a [`DeferredHeads`] belongs to.
#[derive(Debug, Clone, Copy)]
enum Output {
    Queries,
    Pool,
}

/// The operands and results of a `write_heads`.
#[derive(Debug)]
pub(in crate::gpu) struct NewHeads {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norms: Option<([Tensor; 2], f32)>,
    table: RopeTable,
    positions: Vec<u32>,
    slots: Vec<u32>,
    rotated: Weak<Buffer>,
    pools: [Weak<Buffer>; 2],
    progress: Mutex<Progress>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// No kernel is queued.
    Deferred,
    /// An attention has written the pools. The rotated queries can still be computed.
    PoolsWritten,
    Written,
}

/// `write_heads`; all operands have been checked.
pub(in crate::gpu) fn write_heads(
    gpu: &Gpu,
    new: &UnrotatedHeads<'_>,
    mut pools: [&mut Tensor; 2],
) -> Result<Tensor> {
    let dtype = new.q.dtype();
    fused::check_heads(gpu, new)?;
    let rotated = Tensor::on_gpu(gpu, new.q.shape(), dtype)?;
    for pool in &mut pools {
        pool.at_mut(gpu, dtype)?;
    }
    let heads = Arc::new(NewHeads {
        q: new.q.clone(),
        k: new.k.clone(),
        v: new.v.clone(),
        norms: new.norms.map(|QkNorm { q_gain, k_gain, eps }| ([q_gain.clone(), k_gain.clone()], eps)),
        table: new.rope.table.clone(),
        positions: new.rope.positions.to_vec(),
        slots: new.slots.to_vec(),
        rotated: rotated.weak_buffer(),
        pools: pools.each_ref().map(|pool| pool.weak_buffer()),
        progress: Mutex::new(Progress::Deferred),
    });
    for pool in pools {
        pool.defer(DeferredHeads { heads: heads.clone(), output: Output::Pool });
    }
    rotated.defer(DeferredHeads { heads, output: Output::Queries });
    Ok(rotated)
}

impl Deferred for DeferredHeads {
    fn launch(&self, gpu: &Gpu, to: At) -> Result<()> {
        let heads = &*self.heads;
        let mut progress = lock(&heads.progress);
        match (*progress, self.output) {
            (Progress::Deferred, _) => {
                let [k_pool, v_pool] = heads.pools.each_ref().map(Weak::upgrade);
                let rotated = heads.rotated.upgrade();
                // kept until the kernel is queued: another thread must not reuse one of them
                let targets = [rotated, k_pool, v_pool];
                heads.launch(gpu, targets.each_ref().map(|buffer| Some(buffer.as_ref()?.arg())))?;
            }
            (Progress::PoolsWritten, Output::Queries) => heads.launch(gpu, [Some(to), None, None])?,
            (Progress::PoolsWritten, Output::Pool) | (Progress::Written, _) => return Ok(()),
        }
        *progress = Progress::Written;
        Ok(())
    }
}

impl NewHeads {
    fn unrotated(&self) -> UnrotatedHeads<'_> {
        let norms = self.norms.as_ref();
        UnrotatedHeads {
            q: &self.q,
            k: &self.k,
            v: &self.v,
            norms: norms.map(|([q_gain, k_gain], eps)| QkNorm { q_gain, k_gain, eps: *eps }),
            rope: RopeArgs { table: &self.table, positions: &self.positions },
            slots: &self.slots,
        }
    }

    /// Queues the kernel that writes the rotated queries and the pools. A result without an address is not written.
    fn launch(&self, gpu: &Gpu, to: [Option<At>; 3]) -> Result<()> {
        fused::write_heads_into(gpu, &self.unrotated(), to.map(|at| at.unwrap_or(At(0))))
    }

    /// The deferred `write_heads` of these queries and pools, if an attention with this mask may write the heads: each
    /// row sees its own new key and no other one.
    pub(in crate::gpu) fn of_attention(
        [q, k, v]: [&Tensor; 3],
        mask: &AttnMask<'_>,
    ) -> Option<Arc<NewHeads>> {
        let DeferredHeads { heads, .. } = q.deferred()?;
        let pool = |x: &Tensor, pool: &Weak<Buffer>| x.weak_buffer().ptr_eq(pool);
        let same = *lock(&heads.progress) == Progress::Deferred
            && heads.q.shape() == q.shape()
            && pool(k, &heads.pools[0])
            && pool(v, &heads.pools[1])
            && heads.positions == mask.pos;
        (same && sees_own_slot_only(mask, &heads.slots)).then_some(heads)
    }

    /// The arguments of `append_attention` for the new heads.
    pub(in crate::gpu) fn args(&self, gpu: &Gpu) -> Result<[Arg; 7]> {
        let dtype = self.q.dtype();
        let gain =
            |i: usize| self.norms.as_ref().map_or(Ok(At(0)), |(gains, _)| gains[i].at(gpu, Dtype::F32));
        let table = self.table.device_addresses(gpu, self.positions.iter().map(|&p| p as usize))?;
        let eps = self.norms.as_ref().map_or(0.0, |&(_, eps)| eps);
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|x| x.at(gpu, dtype));
        Ok(*args![q?, k?, v?, gain(0)?, gain(1)?, table, eps])
    }

    /// Queues an attention that writes the pools `k` and `v`; `launch` receives their addresses.
    pub(in crate::gpu) fn write_pools(
        &self,
        [k, v]: [&Tensor; 2],
        launch: impl FnOnce([At; 2]) -> Result<()>,
    ) -> Result<()> {
        k.write_deferred(|k| v.write_deferred(|v| launch([k, v])))?;
        *lock(&self.progress) = Progress::PoolsWritten;
        Ok(())
    }
}
