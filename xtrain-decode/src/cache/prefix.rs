//! The prefix index: pages that are kept for later prompts that begin with the same tokens.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use xtrain_tensor::faults::{self, Fault};

/// Whole pages by all tokens up to their end. The key of a page is the page before it and its own tokens, which are
/// compared one by one: no hash decides. The contents of a page are a function of these tokens and of the weights,
/// which cannot change while an engine borrows its model.
#[derive(Debug, Default)]
pub(super) struct PrefixIndex {
    pages: BTreeMap<PageKey, KeptPage>,
    /// The key of each kept page.
    keys: HashMap<u32, PageKey>,
    /// The pages without a follower, the least recently used first.
    leaves: BTreeSet<(u64, u32)>,
    clock: u64,
}

/// The page before this one (`None`: this is the first), and the tokens of this one.
type PageKey = (Option<u32>, Arc<[u32]>);

#[derive(Debug, Clone, Copy)]
struct KeptPage {
    page: u32,
    /// The time of the last match or insertion.
    last_used: u64,
    /// The number of kept pages that come directly after this one.
    followers: u32,
}

/// The result of [`PrefixIndex::insert`].
#[derive(Debug, Default, PartialEq)]
pub(super) struct Inserted {
    /// The pages that were not kept before. Each needs one more reference.
    pub(super) added: Vec<u32>,
    /// The kept page of each whole page of tokens.
    pub(super) kept: Vec<u32>,
}

impl PrefixIndex {
    /// The pages of the longest kept prefix of `tokens`, in order, of `size` tokens each.
    pub(super) fn find(&mut self, tokens: &[u32], size: usize) -> Vec<u32> {
        self.clock += 1;
        let (mut before, mut pages) = (None, Vec::new());
        for chunk in tokens.chunks_exact(size) {
            let kept = if faults::on(Fault::PrefixCacheFalseHit) {
                self.pages.iter_mut().find(|(key, _)| key.0 == before).map(|(_, kept)| kept)
            } else {
                self.pages.get_mut(&(before, chunk.into()))
            };
            let Some(kept) = kept else { break };
            if !faults::on(Fault::PrefixUseNotRecorded) {
                kept.use_at(self.clock, &mut self.leaves);
            }
            before = Some(kept.page);
            pages.push(kept.page);
        }
        pages
    }

    /// Keeps `pages`, which hold `tokens`: whole pages of `size` tokens only.
    pub(super) fn insert(&mut self, tokens: &[u32], pages: &[u32], size: usize) -> Inserted {
        self.clock += 1;
        let mut before = None;
        let Inserted { mut added, mut kept } = Inserted::default();
        for (chunk, &page) in tokens.chunks_exact(size).zip(pages) {
            let key: PageKey = (before, chunk.into());
            if !self.pages.contains_key(&key) {
                added.push(page);
                self.keep(key.clone(), page);
            }
            let entry = self.pages.get_mut(&key).expect("it is kept");
            entry.use_at(self.clock, &mut self.leaves);
            before = Some(entry.page);
            kept.push(entry.page);
        }
        Inserted { added, kept }
    }

    /// The kept page before the page `key`. `None`: that is the first.
    fn before(&mut self, key: &PageKey) -> Option<&mut KeptPage> {
        self.pages.get_mut(self.keys.get(&key.0?)?)
    }

    /// Adds a page without followers.
    fn keep(&mut self, key: PageKey, page: u32) {
        if let Some(before) = self.before(&key) {
            before.followers += 1;
            let leaf = (before.last_used, before.page);
            self.leaves.remove(&leaf);
        }
        self.leaves.insert((self.clock, page));
        self.keys.insert(page, key.clone());
        self.pages.insert(key, KeptPage { page, last_used: self.clock, followers: 0 });
    }

    /// The kept pages.
    pub(super) fn pages(&self) -> impl Iterator<Item = u32> {
        self.pages.values().map(|kept| kept.page)
    }

    /// Removes the least recently used page among the pages without a kept successor for which `idle` returns `true`.
    /// `None`: there is no such page.
    pub(super) fn evict(&mut self, idle: impl Fn(u32) -> bool) -> Option<u32> {
        let idle = |page| idle(page) || faults::on(Fault::HeldPrefixEvicted);
        let leaf = *self.leaves.iter().find(|(_, page)| idle(*page))?;
        self.leaves.remove(&leaf);
        let key = self.keys.remove(&leaf.1).expect("a leaf is kept");
        self.pages.remove(&key);
        if let Some(before) = self.before(&key) {
            before.followers -= 1;
            let leaf = (before.followers == 0).then_some((before.last_used, before.page));
            self.leaves.extend(leaf);
        }
        Some(leaf.1)
    }
}

impl KeptPage {
    /// Records a use at the time `now`.
    fn use_at(&mut self, now: u64, leaves: &mut BTreeSet<(u64, u32)>) {
        if leaves.remove(&(self.last_used, self.page)) {
            leaves.insert((now, self.page));
        }
        self.last_used = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_found_by_its_tokens_page_by_page() {
        let mut index = PrefixIndex::default();
        let whole = Inserted { added: vec![7, 8], kept: vec![7, 8] };
        assert_eq!(index.insert(&[1, 2, 3, 4, 5], &[7, 8, 9], 2), whole, "whole pages only");
        let other = Inserted { added: vec![11], kept: vec![7, 11] };
        assert_eq!(index.insert(&[1, 2, 6, 6], &[10, 11], 2), other, "the first page is kept already");
        for (tokens, want) in [
            (&[1, 2, 3, 4, 9, 9][..], &[7, 8][..]),
            (&[1, 2, 6, 6], &[7, 11]),
            (&[1, 2, 6], &[7]),
            (&[6, 6], &[]),
            (&[1, 3], &[]),
            (&[], &[]),
        ] {
            assert_eq!(index.find(tokens, 2), want, "{tokens:?}");
        }
    }

    #[test]
    fn the_least_recently_used_page_without_followers_or_holders_is_evicted() {
        let mut index = PrefixIndex::default();
        index.insert(&[1, 2, 3, 4], &[0, 1], 2);
        index.insert(&[1, 2, 5, 6], &[0, 2], 2);
        index.find(&[1, 2, 3, 4], 2);
        assert_eq!(index.evict(|page| page != 2), Some(1), "2 is held, 0 is followed");
        assert_eq!(index.evict(|_| true), Some(2));
        assert_eq!(index.evict(|_| true), Some(0));
        assert_eq!(index.evict(|_| true), None);
    }

    /// The page that is evicted of two prefixes of which the older one was found again.
    fn evicted_after_use() -> Option<u32> {
        let mut index = PrefixIndex::default();
        index.insert(&[1, 2], &[0], 2);
        index.insert(&[3, 4], &[1], 2);
        assert_eq!(index.find(&[1, 2], 2), [0]);
        index.evict(|_| true)
    }

    #[test]
    fn a_prefix_that_is_found_again_is_used() {
        assert_eq!(evicted_after_use(), Some(1));
    }

    #[test]
    #[cfg(feature = "faults")]
    fn a_use_that_is_not_recorded_is_found() {
        assert_eq!(faults::with(Fault::PrefixUseNotRecorded, evicted_after_use), Some(0));
    }
}
