//! The paged cache: slots are handed out a page at a time, shared, and copied on write.
use xtrain_model::{Eager, Error, KvStore, KvView, Qkv, Result, Rows};
use xtrain_tensor::Tensor;
use xtrain_tensor::ops::{SlotRange, Slots};

use super::ledger::Ledger;
use super::pool::{Pool, slot};
use super::prefix::Prefixes;
use super::{Cache, CacheShape, KvKind, Room, Snapshot, Usage};

/// A pool of pages, counted by the sequences that hold them. It grows by doubling up to its limit.
#[derive(Debug)]
pub struct Paged {
    pool: Pool,
    ledger: Ledger,
    slots: Slots,
    page: usize,
    /// The most positions of a sequence.
    positions: usize,
    /// The most pages.
    limit: usize,
    /// Who holds each page: sequences, and `known`.
    refs: Vec<u32>,
    free: Vec<u32>,
    /// Pages that are kept for sequences to come.
    known: Prefixes,
    /// What an allocation has done so far, to be undone if it fails.
    journal: Vec<Taken>,
}

/// A page was put at place `at` of the table of `seq`, where `old` was.
#[derive(Debug, Clone, Copy)]
struct Taken {
    seq: u32,
    at: usize,
    old: Option<u32>,
}

impl Paged {
    /// An empty cache with pages of `page` positions, at least one.
    ///
    /// # Errors
    /// When the device has no memory for it.
    pub fn new(shape: CacheShape, room: Room, page: usize) -> Result<Paged> {
        let each = room.positions.div_ceil(page);
        let whole = room.sequences.saturating_mul(each);
        let limit = room.slots.map_or(whole, |slots| slots / page).min(u32::MAX as usize);
        Ok(Paged {
            ledger: Ledger::new(shape.n_layers, room.sequences),
            pool: Pool::new(shape, 0)?,
            slots: Slots::Pages { page, table: vec![Vec::new(); room.sequences] },
            page,
            positions: room.positions,
            limit,
            refs: Vec::new(),
            free: Vec::new(),
            known: Prefixes::default(),
            journal: Vec::new(),
        })
    }

    /// The pages of a sequence, in the order of its positions.
    pub fn pages(&self, seq: u32) -> &[u32] {
        match &self.slots {
            Slots::Pages { table, .. } => table.get(seq as usize).map_or(&[], Vec::as_slice),
            Slots::Runs { .. } => &[],
        }
    }

    /// Who holds a page: sequences, and one more where it is kept for sequences to come.
    pub fn references(&self, page: u32) -> u32 {
        self.refs.get(page as usize).copied().unwrap_or(0)
    }

    fn table(&mut self, seq: u32) -> &mut Vec<u32> {
        match &mut self.slots {
            Slots::Pages { table, .. } => &mut table[seq as usize],
            Slots::Runs { .. } => unreachable!("made with pages"),
        }
    }

    /// A page of its own for each position of `seq` from its length up to `len`.
    fn make_room(&mut self, seq: u32, len: usize) -> Result<()> {
        self.ledger.check_exists(seq)?;
        let held = self.ledger.len(seq);
        let full = |pos: usize| Error::CacheFull { seq, pos: pos as u32 };
        if len > self.positions {
            return Err(full(self.positions));
        }
        for at in held / self.page..len.div_ceil(self.page) {
            let old = self.pages(seq).get(at).copied();
            if old.is_some_and(|p| self.refs[p as usize] == 1) {
                continue;
            }
            let new = self.take()?.ok_or_else(|| full(held.max(at * self.page)))?;
            match old {
                None => self.table(seq).push(new),
                Some(shared) => {
                    let (from, to) = (shared as usize * self.page, new as usize * self.page);
                    self.pool.copy(SlotRange { from, to, len: held.saturating_sub(at * self.page) })?;
                    self.refs[shared as usize] -= 1;
                    self.table(seq)[at] = new;
                }
            }
            self.journal.push(Taken { seq, at, old });
        }
        Ok(())
    }

    /// A free page, now held once; where the limit is reached one that was kept for sequences to come, or
    /// none.
    fn take(&mut self) -> Result<Option<u32>> {
        let n = self.refs.len();
        if self.free.is_empty() && n < self.limit {
            let grown = (2 * n).max(self.ledger.sequences()).max(1).min(self.limit);
            self.pool.grow(grown * self.page)?;
            self.refs.resize(grown, 0);
            self.free.extend((n as u32..grown as u32).rev());
        }
        let Paged { free, known, refs, .. } = self;
        let page = free.pop().or_else(|| known.evict(|page| refs[page as usize] == 1));
        if let Some(page) = page {
            self.refs[page as usize] = 1;
        }
        Ok(page)
    }

    fn release(&mut self, page: u32) {
        let refs = &mut self.refs[page as usize];
        *refs -= 1;
        if *refs == 0 {
            self.free.push(page);
        }
    }

    /// Releases the pages of `seq` from place `keep` on.
    fn trim(&mut self, seq: u32, keep: usize) {
        while self.pages(seq).len() > keep {
            let page = self.table(seq).pop().expect("it is longer than what is kept");
            self.release(page);
        }
    }

    /// Keeps what an allocation has done, or undoes all of it.
    fn settle(&mut self, done: Result<()>) -> Result<()> {
        if done.is_err() {
            while let Some(Taken { seq, at, old }) = self.journal.pop() {
                let new = match old {
                    None => self.table(seq).pop().expect("it was pushed"),
                    Some(shared) => {
                        self.refs[shared as usize] += 1;
                        std::mem::replace(&mut self.table(seq)[at], shared)
                    }
                };
                self.release(new);
            }
            self.ledger.abandon();
        }
        self.journal.clear();
        done
    }

    /// Room for all rows of the pass under way, or for none.
    fn make_room_for_pass(&mut self) -> Result<()> {
        let mut done = Ok(());
        for n in 0..self.ledger.n_touched() {
            let (seq, len) = self.ledger.touched(n);
            done = self.make_room(seq, len);
            if done.is_err() {
                break;
            }
        }
        self.settle(done)
    }

    /// Room for the rows of a pass, at its first layer for all of them.
    fn enter(&mut self, layer: usize, rows: &Rows) -> Result<()> {
        self.ledger.enter(layer, rows)?;
        if layer == 0 { self.make_room_for_pass() } else { Ok(()) }
    }

    /// The rows are written.
    fn leave(&mut self, layer: usize) -> KvView<'_, Tensor> {
        self.ledger.leave(layer);
        KvView { k: &self.pool.k[layer], v: &self.pool.v[layer], slots: &self.slots }
    }
}

impl KvStore<Eager> for Paged {
    fn extend(&mut self, layer: usize, k: Tensor, v: Tensor, rows: &Rows) -> Result<KvView<'_, Tensor>> {
        self.pool.check(&k, &v, rows)?;
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

impl Cache for Paged {
    fn kind(&self) -> KvKind {
        KvKind::Paged { page: self.page }
    }

    fn shape(&self) -> &CacheShape {
        &self.pool.shape
    }

    fn seq_len(&self, seq: u32) -> usize {
        self.ledger.len(seq)
    }

    fn usage(&self) -> Usage {
        let in_use = (self.refs.len() - self.free.len()) * self.page;
        self.pool.usage(in_use, self.ledger.positions())
    }

    fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    fn reserve(&mut self, seq: u32, len: usize) -> Result<()> {
        let done = self.make_room(seq, len);
        self.settle(done)
    }

    fn slot(&self, seq: u32, pos: usize) -> Option<u32> {
        // a page that others read too is copied before it is written
        let own = self.pages(seq).get(pos / self.page).is_some_and(|&page| self.refs[page as usize] == 1);
        own.then(|| slot(&self.slots, seq, pos) as u32)
    }

    fn free(&mut self, seq: u32) {
        self.trim(seq, 0);
        self.ledger.forget(seq);
    }

    fn insert_prefix(&mut self, seq: u32, tokens: &[u32]) {
        let tokens = &tokens[..tokens.len().min(self.ledger.len(seq))];
        if let Slots::Pages { table, page } = &self.slots
            && let Some(pages) = table.get(seq as usize)
        {
            let held = self.known.add(tokens, pages, *page);
            held.into_iter().for_each(|page| self.refs[page as usize] += 1);
        }
    }

    fn match_prefix(&mut self, seq: u32, tokens: &[u32]) -> usize {
        if self.ledger.check_exists(seq).is_err() || self.ledger.len(seq) > 0 {
            return 0;
        }
        self.trim(seq, 0);
        let found = self.known.find(&tokens[..tokens.len().min(self.positions)], self.page);
        let len = found.len() * self.page;
        for page in found {
            self.refs[page as usize] += 1;
            self.table(seq).push(page);
        }
        self.ledger.set_len(seq, len);
        len
    }

    fn fork(&mut self, from: u32, to: u32, len: usize) -> Result<()> {
        self.ledger.check_held(from, len)?;
        self.ledger.check_exists(to)?;
        if from != to {
            self.trim(to, 0);
            for at in 0..len.div_ceil(self.page) {
                let page = self.pages(from)[at];
                self.refs[page as usize] += 1;
                self.table(to).push(page);
            }
        }
        self.ledger.set_len(to, len);
        Ok(())
    }

    fn rewind(&mut self, Snapshot { seq, len }: Snapshot) -> Result<()> {
        self.ledger.check_held(seq, len)?;
        self.trim(seq, len.div_ceil(self.page));
        self.ledger.set_len(seq, len);
        Ok(())
    }
}
