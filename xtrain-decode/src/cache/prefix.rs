//! Pages that outlive their sequence: what was computed for a prompt serves the next that begins like it.
use std::collections::BTreeMap;
use std::sync::Arc;

use xtrain_tensor::faults::{self, Fault};

/// Whole pages by all tokens up to their end. A page is found by the page before it and its own tokens,
/// compared one by one: nothing is taken on the word of a hash. What a page holds is a function of these
/// tokens and of the weights, which cannot change while an engine borrows its model.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    pages: BTreeMap<Place, Known>,
    clock: u64,
}

/// The page before, or none, and the tokens of this one.
type Place = (Option<u32>, Arc<[u32]>);

#[derive(Debug, Clone, Copy)]
struct Known {
    page: u32,
    /// When it was last found or added.
    used: u64,
}

impl Prefixes {
    /// The pages of the longest known prefix of `tokens`, in order; `size` tokens each.
    pub(super) fn find(&mut self, tokens: &[u32], size: usize) -> Vec<u32> {
        self.clock += 1;
        let (mut before, mut found) = (None, Vec::new());
        for chunk in tokens.chunks_exact(size) {
            let known = match faults::on(Fault::PrefixOfOtherTokens) {
                true => self.pages.iter_mut().find(|(place, _)| place.0 == before).map(|(_, known)| known),
                false => self.pages.get_mut(&(before, chunk.into())),
            };
            let Some(known) = known else { break };
            known.used = self.clock;
            before = Some(known.page);
            found.push(known.page);
        }
        found
    }

    /// Makes `tokens` known as the contents of `pages`, whole pages of `size` alone; those of `pages` that
    /// were not known before are held from now on, and returned.
    pub(super) fn add(&mut self, tokens: &[u32], pages: &[u32], size: usize) -> Vec<u32> {
        self.clock += 1;
        let (used, mut before, mut held) = (self.clock, None, Vec::new());
        for (chunk, &page) in tokens.chunks_exact(size).zip(pages) {
            let known = self.pages.entry((before, chunk.into())).or_insert_with(|| {
                held.push(page);
                Known { page, used }
            });
            known.used = used;
            before = Some(known.page);
        }
        held
    }

    /// Forgets the page that was used longest ago, of those that no other page follows and that `idle`
    /// says nobody else holds; none where there is no such page.
    pub(super) fn evict(&mut self, idle: impl Fn(u32) -> bool) -> Option<u32> {
        let followed = |page: u32| {
            let first = (Some(page), Arc::from([]));
            self.pages.range(first..).next().is_some_and(|((before, _), _)| *before == Some(page))
        };
        let leaves = self.pages.iter().filter(|(_, known)| idle(known.page) && !followed(known.page));
        // of pages used at one time the last one added has the longest prefix before it
        let (place, known) = leaves.min_by_key(|(_, known)| known.used)?;
        let (place, page) = (place.clone(), known.page);
        self.pages.remove(&place);
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_found_by_its_tokens_page_by_page() {
        let mut known = Prefixes::default();
        assert_eq!(known.add(&[1, 2, 3, 4, 5], &[7, 8, 9], 2), [7, 8], "whole pages alone");
        assert_eq!(known.add(&[1, 2, 6, 6], &[10, 11], 2), [11], "the first page is known already");
        for (tokens, want) in [
            (&[1, 2, 3, 4, 9, 9][..], &[7, 8][..]),
            (&[1, 2, 6, 6], &[7, 11]),
            (&[1, 2, 6], &[7]),
            (&[6, 6], &[]),
            (&[1, 3], &[]),
            (&[], &[]),
        ] {
            assert_eq!(known.find(tokens, 2), want, "{tokens:?}");
        }
    }

    #[test]
    fn the_page_used_longest_ago_goes_first_and_none_that_others_follow_or_hold() {
        let mut known = Prefixes::default();
        known.add(&[1, 2, 3, 4], &[0, 1], 2);
        known.add(&[1, 2, 5, 6], &[0, 2], 2);
        known.find(&[1, 2, 3, 4], 2);
        assert_eq!(known.evict(|page| page != 2), Some(1), "2 is held, 0 is followed");
        assert_eq!(known.evict(|_| true), Some(2));
        assert_eq!(known.evict(|_| true), Some(0));
        assert_eq!(known.evict(|_| true), None);
    }
}
