//! The sinks cache: the first positions of a sequence and a window of its last ones, in a constant number of slots
//! (`StreamingLLM`, arXiv:2309.17453).
use std::ops::Range;

use xtrain_model::{Eager, Error, Functional, KvStore, KvView, QkNorms, Qkv, Result, Rows};
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{self, RopeArgs, SlotRange, Slots};
use xtrain_tensor::{Error as TensorError, Tensor};

use super::interface::{Cache, Snapshot, Usage};
use super::kind::{KvKind, Room};
use super::kv_rows::KvRows;
use super::memory::KvMemory;
use super::pool::Pool;
use super::shape::CacheShape;
use super::sink_lists::{Lists, Ring};

/// Keys before QK-norm and RoPE, and values. Every pass gathers the rows that its own rows attend to, in the order of
/// their lists (docs/numerics.md, "Lossy caches"), and rotates the keys by their places in the lists.
///
/// The rows of a pass are written when its last layer has read the rows that they overwrite, so that a pass that fails
/// changes nothing.
#[derive(Debug)]
pub struct Sinks {
    pool: Pool,
    ring: Ring,
    /// The first position after the sinks of each sequence that is not overwritten.
    oldest: Vec<usize>,
    lists: Lists,
    /// The keys and values of the rows of the pass, in the layers so far.
    staged: Vec<[Tensor; 2]>,
    /// What attention reads: the lists in the layer that was extended last.
    view: Option<[Tensor; 2]>,
}

impl Sinks {
    /// Allocates the slots of all sequences, in `memory` if it is large enough. A window of 0 counts as 1.
    ///
    /// # Errors
    /// If the device has no memory for them.
    pub fn new(
        shape: CacheShape,
        room: Room,
        [sinks, window]: [usize; 2],
        memory: KvMemory,
    ) -> Result<Sinks> {
        let ring = Ring { sinks, window: window.max(1) };
        let slots = Slots::Runs { base: (0..room.sequences).map(|s| s * ring.slots()).collect() };
        let pool = Pool::new(shape, room, slots, room.sequences * ring.slots(), memory)?;
        let oldest = vec![sinks; room.sequences];
        Ok(Sinks { pool, ring, oldest, lists: Lists::none(), staged: Vec::new(), view: None })
    }

    /// Stages the keys and values `[N, nkv, hd]` of `rows` at `layer`. Returns those of the lists.
    fn gather(&mut self, layer: usize, new: [Tensor; 2], rows: &Rows) -> Result<[Tensor; 2]> {
        self.pool.ledger.enter(layer, rows)?;
        self.view = None;
        if layer == 0 {
            self.staged.clear();
            self.lists = Lists::of(rows, self.ring, &self.pool.ledger);
        }
        let lists = |held: &Tensor, new: &Tensor| -> Result<Tensor> {
            let mut all = self.pool.shape.zeros(self.lists.len())?;
            ops::copy_slots(&mut all, held, &self.lists.held)?;
            ops::copy_slots(&mut all, new, &self.lists.new)?;
            Ok(all)
        };
        let [held_k, held_v] = self.pool.layers.loaded(layer);
        let [k, v] = [lists(held_k, &new[0])?, lists(held_v, &new[1])?];
        self.staged.push(new);
        Ok([k, v])
    }

    /// Makes `lists`, with rotated keys, readable. After the last layer, the rows of the pass are written.
    fn leave(&mut self, layer: usize, lists: [Tensor; 2], rows: &Rows) -> Result<KvView<'_, Tensor>> {
        if layer + 1 == self.pool.shape.n_layers {
            self.write(rows)?;
        }
        let bytes = self.pool.shape.layer_bytes_per_token();
        self.pool.written += (rows.len() * bytes) as u64;
        self.pool.copied += (self.lists.len() * bytes) as u64;
        self.pool.ledger.leave(layer);
        let [k, v] = self.view.insert(lists);
        Ok(KvView { k, v, slots: &self.lists.slots, places: Some(self.lists.places()) })
    }

    /// Writes the staged rows of `rows` that later rows can attend to.
    fn write(&mut self, rows: &Rows) -> Result<()> {
        let mut ends = vec![0; self.oldest.len()];
        self.pool.ledger.pass().for_each(|(seq, end)| ends[seq as usize] = end);
        let stays = |&(_, &seq, &pos): &(u32, &u32, &u32)| {
            let pos = pos as usize;
            pos < self.ring.sinks || pos + self.ring.window >= ends[seq as usize]
        };
        let all = (0..).zip(&rows.seq).zip(&rows.pos).map(|((row, seq), pos)| (row, seq, pos));
        let slot = |(row, &seq, &pos): (u32, &u32, &u32)| {
            (row, (seq as usize * self.ring.slots() + self.ring.slot(pos as usize)) as u32)
        };
        let (kept, slots): (Vec<u32>, Vec<u32>) = all.filter(stays).map(slot).unzip();
        for (layer, staged) in self.staged.iter().enumerate() {
            for (pool, new) in self.pool.layers.load(layer)?.iter_mut().zip(staged) {
                ops::scatter_rows(pool, &ops::gather_rows(new, &kept)?, &slots)?;
            }
        }
        for (oldest, end) in self.oldest.iter_mut().zip(ends) {
            *oldest = end.saturating_sub(self.ring.window).max(*oldest);
        }
        let staged = std::mem::take(&mut self.staged);
        if faults::on(Fault::SinksStagedRowsLeaked) {
            std::mem::forget(staged);
        }
        Ok(())
    }

    fn check_rewind(&self, seq: u32, len: usize) -> Result<()> {
        self.pool.ledger.check_held(seq, len)?;
        if self.can_rewind(seq, len) {
            return Ok(());
        }
        let want = self.seq_len(seq) as u32;
        Err(Error::CachePosition { layer: 0, seq, want, got: len as u32 })
    }

    /// The error of copies of rows: they would lack positions, and their keys are not rotated.
    fn no_rows<T>(&self, op: &'static str) -> Result<T> {
        let (want, got) = ("a cache that keeps the keys of all positions", self.kind().to_string());
        Err(TensorError::Argument { op, want, got }.into())
    }
}

impl KvStore<Eager> for Sinks {
    /// The view has the keys as they are given: [`append_rotated`](KvStore::append_rotated) rotates them.
    fn extend(&mut self, layer: usize, k: Tensor, v: Tensor, rows: &Rows) -> Result<KvView<'_, Tensor>> {
        self.pool.shape.check(&k, &v, rows)?;
        let lists = self.gather(layer, [k, v], rows)?;
        self.leave(layer, lists, rows)
    }

    fn append_rotated(
        &mut self,
        _: &mut Eager,
        layer: usize,
        Qkv { q, k, v, norms, rope }: Qkv<'_, Tensor>,
        rows: &Rows,
    ) -> Result<(Tensor, KvView<'_, Tensor>)> {
        let [keys, values] = self.gather(layer, [k.reshape(v.shape())?, v.clone()], rows)?;
        let at = |positions| RopeArgs { table: rope.table, positions };
        let q = Eager.norm_rope(q, norms.map(QkNorms::of_queries), at(&self.lists.pos))?;
        let keys = keys.reshape(&[self.lists.len(), k.width()])?;
        let keys = Eager.norm_rope(&keys, norms.map(QkNorms::of_keys), at(&self.lists.positions))?;
        Ok((q, self.leave(layer, [keys, values], rows)?))
    }
}

impl Cache for Sinks {
    fn kind(&self) -> KvKind {
        KvKind::Sinks { sinks: self.ring.sinks, window: self.ring.window }
    }
    fn shape(&self) -> &CacheShape {
        &self.pool.shape
    }
    fn seq_len(&self, seq: u32) -> usize {
        self.pool.ledger.len(seq)
    }

    fn usage(&self) -> Usage {
        let lengths = (0..self.oldest.len()).map(|seq| self.seq_len(seq as u32));
        let used = lengths.clone().filter(|&len| len > 0).count();
        let positions = lengths.map(|len| len.min(self.ring.slots())).sum();
        Usage { positions, ..self.pool.usage(used * self.ring.slots()) }
    }

    /// The slots. The lists of one layer are scratch and not counted.
    fn bytes(&self) -> usize {
        self.pool.bytes()
    }
    fn reserve(&mut self, seq: u32, len: usize) -> Result<()> {
        self.pool.ledger.check_fits(seq, len)
    }

    fn into_memory(self: Box<Self>) -> KvMemory {
        self.pool.into_memory()
    }

    fn fork(&mut self, from: u32, to: u32, len: usize) -> Result<()> {
        self.check_rewind(from, len)?;
        self.pool.ledger.check_fits(to, len)?;
        if from != to {
            let slot = |seq| self.pool.slots.slot(seq, 0);
            let len = len.min(self.ring.slots());
            self.pool.copy(SlotRange { from: slot(from), to: slot(to), len })?;
        }
        self.oldest[to as usize] = self.oldest[from as usize].min(len.max(self.ring.sinks));
        self.pool.ledger.set_len(to, len);
        Ok(())
    }

    fn can_rewind(&self, seq: u32, len: usize) -> bool {
        let window = self.ring.window_start(len)..len;
        let has_window = |oldest: &usize| window.is_empty() || window.start >= *oldest;
        len <= self.seq_len(seq)
            && (self.oldest.get(seq as usize).is_none_or(has_window) || faults::on(Fault::SinksForkLostRows))
    }

    fn rewind(&mut self, Snapshot { seq, len }: Snapshot) -> Result<()> {
        self.check_rewind(seq, len)?;
        self.fork(seq, seq, len)
    }

    fn read_rows(&mut self, _: u32, _: Range<usize>) -> Result<KvRows> {
        self.no_rows("read_rows")
    }

    fn write_rows(&mut self, _: u32, _: &KvRows, _: usize) -> Result<()> {
        self.no_rows("write_rows")
    }
}
