//! The paged cache: slots are allocated in pages, shared between sequences, and copied on write.
use std::ops::Range;
use std::sync::Arc;

use xtrain_model::{Eager, Error, KvStore, KvView, Qkv, Result, Rows};
use xtrain_tensor::Tensor;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{SlotRange, Slots};

use super::interface::{Cache, Snapshot, Usage};
use super::kind::{KvDtype, KvKind, Room};
use super::kv_rows::KvRows;
use super::kv_snapshot::{HeldRows, KvSnapshot};
use super::memory::KvMemory;
use super::pool::Pool;
use super::prefix::{Inserted, PrefixIndex};
use super::shape::CacheShape;

/// A pool of reference-counted pages. It grows by doubling up to its limit, which it has from the start if it offloads
/// layers.
#[derive(Debug)]
pub struct Paged {
    pool: Pool,
    page: usize,
    limit: usize,
    /// Identifies this cache to its snapshots.
    identity: Arc<()>,
    /// References to each page: the sequences and snapshots that hold it, and one more if `prefixes` keeps it.
    refs: Vec<u32>,
    free: Vec<u32>,
    /// Pages that are kept for later sequences.
    prefixes: PrefixIndex,
    /// Pages evicted from `prefixes`.
    evicted: u64,
    /// The sequences of a pass and their lengths after it. Empty between passes; kept for its memory, as `journal`.
    wanted: Vec<(u32, usize)>,
    journal: Vec<Allocated>,
}

/// A new page at index `at` of the table of `seq`. `old`: the shared page that it replaced. `None`: it was added.
#[derive(Debug, Clone, Copy)]
struct Allocated {
    seq: u32,
    at: usize,
    old: Option<u32>,
}

impl Paged {
    /// An empty cache with pages of `page` positions, at least one. The pages in `memory` are free.
    ///
    /// # Errors
    /// If the device has no memory for it.
    pub fn new(shape: CacheShape, room: Room, page: usize, memory: KvMemory) -> Result<Paged> {
        let pages_per_sequence = room.positions.div_ceil(page);
        let all = room.sequences.saturating_mul(pages_per_sequence);
        let limit = room.slots.map_or(all, |slots| slots / page).min(u32::MAX as usize);
        let slots = Slots::Pages { page, table: vec![Vec::new(); room.sequences] };
        let n_slots = if memory.is_offloading() { limit * page } else { 0 };
        let pool = Pool::new(shape, room, slots, n_slots, memory)?;
        let held = pool.n_slots() / page;
        let n = if faults::on(Fault::PagesOfLargerCacheKept) { held } else { held.min(limit) };
        Ok(Paged {
            pool,
            page,
            limit,
            identity: Arc::new(()),
            refs: vec![0; n],
            free: (0..n as u32).rev().collect(),
            prefixes: PrefixIndex::default(),
            evicted: 0,
            wanted: Vec::new(),
            journal: Vec::new(),
        })
    }

    /// The pages of a sequence, in the order of its positions.
    pub fn pages(&self, seq: u32) -> &[u32] {
        match &self.pool.slots {
            Slots::Pages { table, .. } => table.get(seq as usize).map_or(&[], Vec::as_slice),
            Slots::Runs { .. } => &[],
        }
    }

    /// References to a page: the sequences and snapshots that hold it, and one more if it is kept as a prefix.
    pub fn references(&self, page: u32) -> u32 {
        self.refs.get(page as usize).copied().unwrap_or(0)
    }

    fn table(&mut self, seq: u32) -> &mut Vec<u32> {
        match &mut self.pool.slots {
            Slots::Pages { table, .. } => &mut table[seq as usize],
            Slots::Runs { .. } => unreachable!("a paged cache has page slots"),
        }
    }

    /// Gives `seq` an unshared page for each position from its length up to `len`. Adds each change to `journal`.
    fn make_room(&mut self, seq: u32, len: usize, journal: &mut Vec<Allocated>) -> Result<()> {
        self.pool.ledger.check_fits(seq, len)?;
        let held = self.pool.ledger.len(seq);
        for at in held / self.page..len.div_ceil(self.page) {
            let old = self.pages(seq).get(at).copied();
            if old.is_some_and(|p| self.refs[p as usize] == 1 || faults::on(Fault::HeldPageWrittenInPlace)) {
                continue;
            }
            let full = Error::CacheFull { seq, pos: held.max(at * self.page) as u32 };
            let new = self.take_page()?.ok_or(full)?;
            match old {
                None => self.table(seq).push(new),
                Some(shared) => {
                    let (from, to) = (shared as usize * self.page, new as usize * self.page);
                    let rows = SlotRange { from, to, len: held.saturating_sub(at * self.page) };
                    if let Err(error) = self.pool.copy(rows) {
                        self.release_page(new);
                        return Err(error);
                    }
                    self.refs[shared as usize] -= 1;
                    self.table(seq)[at] = new;
                }
            }
            journal.push(Allocated { seq, at, old });
        }
        Ok(())
    }

    /// A free page with one reference. At the limit, a kept prefix is evicted. `None`: there is nothing to evict.
    fn take_page(&mut self) -> Result<Option<u32>> {
        let n = self.refs.len();
        if self.free.is_empty() && n < self.limit {
            self.grow((2 * n).max(self.pool.ledger.sequences()).max(1).min(self.limit))?;
        }
        if let Some(page) = self.free.pop() {
            self.refs[page as usize] = 1;
            return Ok(Some(page));
        }
        // its only reference, that of `prefixes`, passes to the caller
        let page = self.prefixes.evict(|page| self.refs[page as usize] == 1);
        self.evicted += u64::from(page.is_some());
        Ok(page)
    }

    /// Adds free pages, up to `n` in total.
    fn grow(&mut self, n: usize) -> Result<()> {
        let grown = self.pool.grow(n * self.page);
        if grown.is_ok() || faults::on(Fault::PagesAddedWithoutMemory) {
            self.free.extend((self.refs.len() as u32..n as u32).rev());
            self.refs.resize(n, 0);
        }
        grown
    }

    fn release_page(&mut self, page: u32) {
        let refs = &mut self.refs[page as usize];
        *refs -= 1;
        if *refs == 0 {
            self.free.push(page);
        }
    }

    /// Releases all but the first `keep` pages of `seq`.
    fn trim(&mut self, seq: u32, keep: usize) {
        while self.pages(seq).len() > keep {
            let page = self.table(seq).pop().expect("the table is longer than `keep`");
            self.release_page(page);
        }
    }

    /// Makes room for sequences up to their lengths: for all of them or, after an error, for none.
    fn allocate(&mut self, wanted: &[(u32, usize)]) -> Result<()> {
        let mut journal = std::mem::take(&mut self.journal);
        let done = wanted.iter().try_for_each(|&(seq, len)| self.make_room(seq, len, &mut journal));
        if done.is_err() {
            for Allocated { seq, at, old } in journal.drain(..).rev() {
                let new = match old {
                    None => self.table(seq).pop().expect("the journal lists a page that was added"),
                    Some(shared) => {
                        self.refs[shared as usize] += 1;
                        std::mem::replace(&mut self.table(seq)[at], shared)
                    }
                };
                self.release_page(new);
            }
        }
        journal.clear();
        self.journal = journal;
        done
    }

    /// Checks the rows of a pass at `layer`. Its first layer allocates room for all layers.
    fn enter(&mut self, layer: usize, rows: &Rows) -> Result<()> {
        self.pool.ledger.enter(layer, rows)?;
        if layer > 0 {
            return Ok(());
        }
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.extend(self.pool.ledger.pass());
        let allocated = self.allocate(&wanted);
        wanted.clear();
        self.wanted = wanted;
        allocated
    }

    /// The pages of a snapshot. None if it is that of another cache.
    fn pages_of<'s>(&self, snapshot: &'s KvSnapshot) -> &'s [u32] {
        match &snapshot.held {
            HeldRows::Pages { owner, pages } if Arc::ptr_eq(owner, &self.identity) => pages,
            _ => &[],
        }
    }

    /// Adds `pages`, which others hold too, to those of `seq`.
    fn share(&mut self, seq: u32, pages: &[u32]) {
        for &page in pages {
            self.refs[page as usize] += 1;
        }
        self.table(seq).extend_from_slice(pages);
    }
}

impl KvStore<Eager> for Paged {
    fn extend(&mut self, layer: usize, k: Tensor, v: Tensor, rows: &Rows) -> Result<KvView<'_, Tensor>> {
        self.pool.shape.check(&k, &v, rows)?;
        self.enter(layer, rows)?;
        self.pool.extend(layer, [&k, &v], rows)
    }

    fn append_rotated(
        &mut self,
        _: &mut Eager,
        layer: usize,
        new: Qkv<'_, Tensor>,
        rows: &Rows,
    ) -> Result<(Tensor, KvView<'_, Tensor>)> {
        self.enter(layer, rows)?;
        self.pool.append_rotated(layer, &new, rows)
    }
}

impl Cache for Paged {
    fn kind(&self) -> KvKind {
        match self.pool.shape.kv_dtype {
            KvDtype::Compute => KvKind::Paged { page: self.page },
            KvDtype::Int8 => KvKind::Int8 { page: self.page },
        }
    }
    fn shape(&self) -> &CacheShape {
        &self.pool.shape
    }
    fn seq_len(&self, seq: u32) -> usize {
        self.pool.ledger.len(seq)
    }
    fn usage(&self) -> Usage {
        let usage = self.pool.usage((self.refs.len() - self.free.len()) * self.page);
        Usage { evicted: self.evicted, ..usage }
    }
    fn bytes(&self) -> usize {
        self.pool.bytes()
    }
    fn reserve(&mut self, seq: u32, len: usize) -> Result<()> {
        self.allocate(&[(seq, len)])
    }
    fn available(&self) -> usize {
        let idle = self.prefixes.pages().filter(|&page| self.refs[page as usize] == 1).count();
        (self.limit - self.refs.len() + self.free.len() + idle) * self.page
    }
    fn missing(&self, seq: u32, len: usize) -> usize {
        let pages = self.pages(seq);
        let own = |at: &usize| pages.get(*at).is_some_and(|&page| self.refs[page as usize] == 1);
        let held = self.pool.ledger.len(seq);
        let shared_too = faults::on(Fault::SharedPageNotMissing);
        let first = if shared_too { held.div_ceil(self.page) } else { held / self.page };
        (first..len.div_ceil(self.page)).filter(|at| !own(at)).count() * self.page
    }
    fn expect(&mut self, pages: usize) -> Result<()> {
        let n = pages.min(self.limit);
        let of_a_sequence = n.min(self.pool.ledger.capacity().div_ceil(self.page));
        if let Slots::Pages { table, .. } = &mut self.pool.slots {
            for pages in table.iter_mut() {
                pages.reserve(of_a_sequence.saturating_sub(pages.len()));
            }
        }
        if n > self.refs.len() { self.grow(n) } else { Ok(()) }
    }
    fn into_memory(self: Box<Self>) -> KvMemory {
        self.pool.into_memory()
    }

    fn slot(&self, seq: u32, pos: usize) -> Option<u32> {
        // a shared page is copied before it is written
        let own = self.pages(seq).get(pos / self.page).is_some_and(|&page| self.refs[page as usize] == 1);
        own.then(|| self.pool.slot(seq, pos))
    }

    fn insert_prefix(&mut self, seq: u32, tokens: &[u32]) {
        let tokens = &tokens[..tokens.len().min(self.seq_len(seq))];
        let own = self.pages(seq).to_vec();
        let Inserted { added, kept } = self.prefixes.insert(tokens, &own, self.page);
        for page in added {
            self.refs[page as usize] += 1;
        }
        // A copy of a page that was kept before is given up. A kept page whose followers a sequence holds is then held
        // by the same sequence: a page that no sequence holds can be evicted after its followers.
        for (at, (&kept, &own)) in kept.iter().zip(&own).enumerate() {
            if kept != own && !faults::on(Fault::DuplicatePrefixHeld) {
                self.refs[kept as usize] += 1;
                self.table(seq)[at] = kept;
                self.release_page(own);
            }
        }
    }

    fn match_prefix(&mut self, seq: u32, tokens: &[u32]) -> usize {
        if self.pool.ledger.check_fits(seq, 0).is_err() || self.seq_len(seq) > 0 {
            return 0;
        }
        self.trim(seq, 0);
        let pages = self.prefixes.find(tokens, self.page);
        let len = pages.len() * self.page;
        self.share(seq, &pages);
        self.pool.ledger.set_len(seq, len);
        len
    }

    fn fork(&mut self, from: u32, to: u32, len: usize) -> Result<()> {
        self.pool.ledger.check_held(from, len)?;
        self.pool.ledger.check_fits(to, len)?;
        if from != to {
            self.trim(to, 0);
            let shared = self.pages(from)[..len.div_ceil(self.page)].to_vec();
            self.share(to, &shared);
        }
        self.pool.ledger.set_len(to, len);
        Ok(())
    }

    fn rewind(&mut self, Snapshot { seq, len }: Snapshot) -> Result<()> {
        self.pool.ledger.check_held(seq, len)?;
        self.trim(seq, len.div_ceil(self.page));
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
        self.allocate(&[(seq, len)])?;
        self.pool.write_rows(seq, rows, len)
    }

    fn snapshot(&mut self, seq: u32, len: usize) -> Result<KvSnapshot> {
        self.pool.ledger.check_held(seq, len)?;
        let pages = self.pages(seq)[..len.div_ceil(self.page)].to_vec();
        for &page in &pages {
            self.refs[page as usize] += 1;
        }
        Ok(KvSnapshot { len, held: HeldRows::Pages { owner: self.identity.clone(), pages } })
    }

    fn restore(&mut self, snapshot: &KvSnapshot, to: u32, len: usize) -> Result<()> {
        self.pool.ledger.check_fits(to, len)?;
        let pages = self.pages_of(snapshot).get(..len.div_ceil(self.page)).filter(|_| len <= snapshot.len);
        let pages = pages.ok_or_else(|| snapshot.missing(to, len))?.to_vec();
        self.trim(to, 0);
        self.share(to, &pages);
        self.pool.ledger.set_len(to, len);
        Ok(())
    }

    fn read_snapshot(&mut self, snapshot: &KvSnapshot) -> Result<KvRows> {
        let (pages, len) = (self.pages_of(snapshot), snapshot.len);
        if pages.len() < len.div_ceil(self.page) {
            return Err(snapshot.missing(0, len));
        }
        let range = |(to, &page): (usize, &u32)| {
            let (from, to) = (page as usize * self.page, to * self.page);
            SlotRange { from, to, len: self.page.min(len - to) }
        };
        let ranges: Vec<SlotRange> = pages.iter().enumerate().map(range).collect();
        Ok(KvRows::new(0, self.pool.read_slots(&ranges, len)?))
    }

    fn release(&mut self, snapshot: KvSnapshot) {
        let pages = self.pages_of(&snapshot).to_vec();
        for page in pages.into_iter().filter(|_| !faults::on(Fault::SnapshotNeverReleased)) {
            self.release_page(page);
            if faults::on(Fault::SnapshotPageFreedTwice) && self.refs[page as usize] > 0 {
                self.release_page(page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use xtrain_tensor::{Device, Dtype};

    use super::*;

    #[test]
    fn the_tables_of_expected_pages_have_room_for_a_sequence() {
        let (n_layers, n_kv_heads, head_dim, device) = (1, 1, 2, Device::cpu());
        let (dtype, kv_dtype) = (Dtype::F32, KvDtype::Compute);
        let shape = CacheShape { n_layers, n_kv_heads, head_dim, dtype, kv_dtype, device };
        let room = Room { sequences: 3, positions: 40, slots: None };
        for (pages, want) in [(9, 9), (50, 20)] {
            let mut cache = Paged::new(shape.clone(), room, 2, KvMemory::default()).unwrap();
            cache.expect(pages).unwrap();
            let Slots::Pages { table, .. } = &cache.pool.slots else { panic!("a paged cache has tables") };
            let room: Vec<usize> = table.iter().map(Vec::capacity).collect();
            assert!(room.len() == 3 && room.iter().all(|&n| n >= want), "{pages} pages: {room:?}");
        }
    }
}
