//! The contiguous cache: one run of slots per sequence, allocated at construction.
use xtrain_model::{Eager, Error, KvStore, KvView, Qkv, Result, Rows};
use xtrain_tensor::Tensor;
use xtrain_tensor::ops::{SlotRange, Slots};

use super::interface::{Cache, Snapshot, Usage};
use super::kind::{KvKind, Room};
use super::ledger::Ledger;
use super::pool::{Pool, slot};
use super::shape::CacheShape;

/// `room.positions` slots for each of `room.sequences` sequences.
#[derive(Debug)]
pub struct Contiguous {
    pool: Pool,
    ledger: Ledger,
    slots: Slots,
    /// Slots per sequence.
    capacity: usize,
}

impl Contiguous {
    /// Allocates all slots.
    ///
    /// # Errors
    /// If the device has no memory for them.
    pub fn new(shape: CacheShape, room: Room) -> Result<Contiguous> {
        let Room { sequences, positions: capacity, .. } = room;
        Ok(Contiguous {
            ledger: Ledger::new(shape.n_layers, sequences),
            pool: Pool::new(shape, sequences * capacity)?,
            slots: Slots::Runs { base: (0..sequences).map(|s| s * capacity).collect() },
            capacity,
        })
    }

    fn check_room(&self, seq: u32, len: usize) -> Result<()> {
        self.ledger.check_exists(seq)?;
        if len > self.capacity {
            return Err(Error::CacheFull { seq, pos: self.capacity as u32 });
        }
        Ok(())
    }

    /// Checks the rows of a pass at `layer`.
    fn enter(&mut self, layer: usize, rows: &Rows) -> Result<()> {
        self.ledger.enter(layer, rows)?;
        let room = self.ledger.ahead().try_for_each(|(seq, len)| self.check_room(seq, len));
        room.inspect_err(|_| self.ledger.abandon())
    }

    /// Called when the rows are written.
    fn leave(&mut self, layer: usize) -> KvView<'_, Tensor> {
        self.ledger.leave(layer);
        self.pool.view(layer, &self.slots)
    }
}

impl KvStore<Eager> for Contiguous {
    fn extend(&mut self, layer: usize, k: Tensor, v: Tensor, rows: &Rows) -> Result<KvView<'_, Tensor>> {
        self.pool.shape().check(&k, &v, rows)?;
        self.enter(layer, rows)?;
        self.pool.write(layer, [&k, &v], rows, &self.slots)?;
        Ok(self.leave(layer))
    }

    fn append_rotated(
        &mut self,
        _: &mut Eager,
        layer: usize,
        new: Qkv<'_, Tensor>,
        rows: &Rows,
    ) -> Result<(Tensor, KvView<'_, Tensor>)> {
        self.enter(layer, rows)?;
        let q = self.pool.append_rotated(layer, &new, rows, &self.slots);
        let q = q.inspect_err(|_| self.ledger.abandon())?;
        Ok((q, self.leave(layer)))
    }
}

impl Cache for Contiguous {
    fn kind(&self) -> KvKind {
        KvKind::Contiguous
    }

    fn shape(&self) -> &CacheShape {
        self.pool.shape()
    }

    fn seq_len(&self, seq: u32) -> usize {
        self.ledger.len(seq)
    }

    fn usage(&self) -> Usage {
        let used = (0..self.ledger.sequences()).filter(|&s| self.ledger.len(s as u32) > 0).count();
        self.pool.usage(used * self.capacity, self.ledger.positions())
    }

    fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    fn reserve(&mut self, seq: u32, len: usize) -> Result<()> {
        self.check_room(seq, len)
    }

    fn slot(&self, seq: u32, pos: usize) -> Option<u32> {
        self.check_room(seq, pos + 1).ok().map(|()| slot(&self.slots, seq, pos) as u32)
    }

    fn free(&mut self, seq: u32) {
        self.ledger.clear(seq);
    }

    fn fork(&mut self, from: u32, to: u32, len: usize) -> Result<()> {
        self.ledger.check_held(from, len)?;
        self.check_room(to, len)?;
        if from != to {
            let (from, to) = (self.slots.slot(from, 0), self.slots.slot(to, 0));
            self.pool.copy(SlotRange { from, to, len })?;
        }
        self.ledger.set_len(to, len);
        Ok(())
    }

    fn rewind(&mut self, Snapshot { seq, len }: Snapshot) -> Result<()> {
        self.ledger.check_held(seq, len)?;
        self.ledger.set_len(seq, len);
        Ok(())
    }
}
