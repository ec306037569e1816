//! The growing cache: keys and values concatenated anew at every step, the classic baseline.
use xtrain_model::{Eager, Error, KvStore, KvView, Result, Rows};
use xtrain_tensor::Tensor;
use xtrain_tensor::ops::{SlotRange, Slots};

use super::ledger::Ledger;
use super::pool::Pool;
use super::{Cache, CacheShape, KvKind, Room, Snapshot, Usage};

/// Sequences one after another without a gap. Every pass copies all that is held, as
/// [`cat_seq`](xtrain_tensor::ops::cat_seq) does for one sequence.
#[derive(Debug)]
pub struct Growing {
    pool: Pool,
    ledger: Ledger,
    /// Where each sequence begins, layer by layer: a pass changes one after the other.
    slots: Vec<Slots>,
    /// Positions that each sequence was promised room for.
    promised: Vec<usize>,
    room: Room,
}

/// What a sequence becomes: the first `keep` positions of sequence `from`, and room for `len`.
#[derive(Debug, Clone, Copy)]
struct Part {
    from: u32,
    keep: usize,
    len: usize,
}

impl Growing {
    /// An empty cache; the room bounds what it may grow to.
    ///
    /// # Errors
    /// When the device has no memory for it.
    pub fn new(shape: CacheShape, room: Room) -> Result<Growing> {
        Ok(Growing {
            ledger: Ledger::new(shape.n_layers, room.sequences),
            slots: vec![Slots::Runs { base: vec![0; room.sequences] }; shape.n_layers],
            pool: Pool::new(shape, 0)?,
            promised: vec![0; room.sequences],
            room,
        })
    }

    /// Every sequence as it is.
    fn parts(&self) -> Vec<Part> {
        let part = |s: u32| Part { from: s, keep: self.ledger.len(s), len: self.ledger.len(s) };
        (0..self.ledger.sequences() as u32).map(part).collect()
    }

    /// Every sequence with room for its rows of the pass under way.
    fn ahead(&self) -> Vec<Part> {
        let mut parts = self.parts();
        self.ledger.ahead().for_each(|(s, len)| parts[s as usize].len = len);
        parts
    }

    /// Lays out `layer` anew.
    fn rebuild(&mut self, layer: usize, parts: &[Part]) -> Result<()> {
        let (mut end, mut base, mut moves) = (0, Vec::new(), Vec::new());
        for &Part { from, keep, len } in parts {
            if keep > 0 {
                moves.push(SlotRange { from: self.slots[layer].slot(from, 0), to: end, len: keep });
            }
            base.push(end);
            end += len;
        }
        self.pool.rebuild(layer, end, &moves)?;
        self.slots[layer] = Slots::Runs { base };
        Ok(())
    }

    /// Gives sequence `seq` the first `len` positions of `from`, and nothing else any room.
    fn become_part(&mut self, seq: u32, from: u32, len: usize) -> Result<()> {
        let mut parts = self.parts();
        parts[seq as usize] = Part { from, keep: len, len };
        (0..self.slots.len()).try_for_each(|layer| self.rebuild(layer, &parts))?;
        self.ledger.set_len(seq, len);
        self.promised[seq as usize] = len;
        Ok(())
    }

    /// Promises `seq` room for `len` positions, if what the others were promised leaves it.
    fn promise(&mut self, seq: u32, len: usize) -> Result<()> {
        self.ledger.check_exists(seq)?;
        let others = self.promised.iter().sum::<usize>() - self.promised[seq as usize];
        let most = self.room.positions.min(self.room.slots.unwrap_or(usize::MAX).saturating_sub(others));
        if len > most {
            return Err(Error::CacheFull { seq, pos: most as u32 });
        }
        self.promised[seq as usize] = self.promised[seq as usize].max(len);
        Ok(())
    }

    /// Room for all rows of the pass under way, or for none.
    fn promise_pass(&mut self) -> Result<()> {
        let before = self.promised.clone();
        let done = (0..self.ledger.n_touched()).try_for_each(|n| {
            let (seq, len) = self.ledger.touched(n);
            self.promise(seq, len)
        });
        if done.is_err() {
            self.promised = before;
            self.ledger.abandon();
        }
        done
    }
}

impl KvStore<Eager> for Growing {
    fn extend(&mut self, layer: usize, k: Tensor, v: Tensor, rows: &Rows) -> Result<KvView<'_, Tensor>> {
        self.pool.check(&k, &v, rows)?;
        self.ledger.enter(layer, rows)?;
        if layer == 0 {
            self.promise_pass()?;
        }
        self.rebuild(layer, &self.ahead())?;
        self.pool.write(layer, [&k, &v], rows, &self.slots[layer])?;
        self.ledger.leave(layer);
        Ok(KvView { k: &self.pool.k[layer], v: &self.pool.v[layer], slots: &self.slots[layer] })
    }
}

impl Cache for Growing {
    fn kind(&self) -> KvKind {
        KvKind::Growing
    }

    fn shape(&self) -> &CacheShape {
        &self.pool.shape
    }

    fn seq_len(&self, seq: u32) -> usize {
        self.ledger.len(seq)
    }

    fn usage(&self) -> Usage {
        self.pool.usage(self.pool.n_slots(), self.ledger.positions())
    }

    fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    fn reserve(&mut self, seq: u32, len: usize) -> Result<()> {
        self.promise(seq, len)
    }

    fn free(&mut self, seq: u32) {
        if self.ledger.check_exists(seq).is_ok() {
            self.become_part(seq, seq, 0).expect("tensors of one dtype are copied to fewer slots");
        }
    }

    fn fork(&mut self, from: u32, to: u32, len: usize) -> Result<()> {
        self.ledger.check_held(from, len)?;
        self.promise(to, len)?;
        self.become_part(to, from, len)
    }

    fn rewind(&mut self, Snapshot { seq, len }: Snapshot) -> Result<()> {
        self.ledger.check_held(seq, len)?;
        self.become_part(seq, seq, len)
    }
}
