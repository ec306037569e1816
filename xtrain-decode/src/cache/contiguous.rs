//! The contiguous cache: one run of slots per sequence, allocated at construction.
use std::ops::Range;

use xtrain_model::{Eager, KvStore, KvView, Qkv, Result, Rows};
use xtrain_tensor::Tensor;
use xtrain_tensor::ops::{SlotRange, Slots};

use super::interface::{Cache, Snapshot, Usage};
use super::kind::{KvKind, Room};
use super::kv_rows::KvRows;
use super::memory::KvMemory;
use super::pool::Pool;
use super::shape::CacheShape;

/// `room.positions` slots for each of `room.sequences` sequences.
#[derive(Debug)]
pub struct Contiguous {
    pool: Pool,
    capacity: usize,
}

impl Contiguous {
    /// Allocates all slots, in `memory` if it is large enough.
    ///
    /// # Errors
    /// If the device has no memory for them.
    pub fn new(shape: CacheShape, room: Room, memory: KvMemory) -> Result<Contiguous> {
        let Room { sequences, positions: capacity, .. } = room;
        let slots = Slots::Runs { base: (0..sequences).map(|s| s * capacity).collect() };
        Ok(Contiguous { pool: Pool::new(shape, room, slots, sequences * capacity, memory)?, capacity })
    }
}

impl KvStore<Eager> for Contiguous {
    fn extend(&mut self, layer: usize, k: Tensor, v: Tensor, rows: &Rows) -> Result<KvView<'_, Tensor>> {
        self.pool.shape.check(&k, &v, rows)?;
        self.pool.ledger.enter(layer, rows)?;
        self.pool.extend(layer, [&k, &v], rows)
    }

    fn append_rotated(
        &mut self,
        _: &mut Eager,
        layer: usize,
        new: Qkv<'_, Tensor>,
        rows: &Rows,
    ) -> Result<(Tensor, KvView<'_, Tensor>)> {
        self.pool.ledger.enter(layer, rows)?;
        self.pool.append_rotated(layer, &new, rows)
    }
}

impl Cache for Contiguous {
    fn kind(&self) -> KvKind {
        KvKind::Contiguous
    }
    fn shape(&self) -> &CacheShape {
        &self.pool.shape
    }
    fn seq_len(&self, seq: u32) -> usize {
        self.pool.ledger.len(seq)
    }

    fn usage(&self) -> Usage {
        let ledger = &self.pool.ledger;
        let used = (0..ledger.sequences()).filter(|&s| ledger.len(s as u32) > 0).count();
        self.pool.usage(used * self.capacity)
    }

    fn bytes(&self) -> usize {
        self.pool.bytes()
    }
    fn reserve(&mut self, seq: u32, len: usize) -> Result<()> {
        self.pool.ledger.check_fits(seq, len)
    }
    fn slot(&self, seq: u32, pos: usize) -> Option<u32> {
        self.pool.ledger.check_fits(seq, pos + 1).ok().map(|()| self.pool.slot(seq, pos))
    }

    fn into_memory(self: Box<Self>) -> KvMemory {
        self.pool.into_memory()
    }

    fn fork(&mut self, from: u32, to: u32, len: usize) -> Result<()> {
        self.pool.ledger.check_held(from, len)?;
        self.pool.ledger.check_fits(to, len)?;
        if from != to {
            let [from, to] = [from, to].map(|seq| self.pool.slots.slot(seq, 0));
            self.pool.copy(SlotRange { from, to, len })?;
        }
        self.pool.ledger.set_len(to, len);
        Ok(())
    }

    fn rewind(&mut self, Snapshot { seq, len }: Snapshot) -> Result<()> {
        self.pool.ledger.check_held(seq, len)?;
        self.pool.ledger.set_len(seq, len);
        Ok(())
    }

    fn read_rows(&mut self, seq: u32, positions: Range<usize>) -> Result<KvRows> {
        self.pool.read_rows(seq, positions)
    }

    fn write_rows(&mut self, seq: u32, rows: &KvRows, len: usize) -> Result<()> {
        if self.pool.lacking(seq, rows, len)?.is_empty() {
            return Ok(());
        }
        self.pool.write_rows(seq, rows, len)
    }
}
