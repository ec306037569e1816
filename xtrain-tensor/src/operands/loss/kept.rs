//! The set of tokens that a row of logits keeps.
use std::sync::Arc;

use crate::faults::{self, Fault};

/// The tokens that top-k, top-p and min-p keep in a row of logits, as a sorted list of ids or as a bitmap, whichever
/// is smaller. At most `ceil(V / 32)` words of 4 bytes. Cloning shares the words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptSet {
    vocab: usize,
    words: Words,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Words {
    /// Ascending ids.
    Ids(Arc<[u32]>),
    /// Bit `i % 32` of word `i / 32` is set if token i is kept.
    Bits(Arc<[u32]>),
}

impl KeptSet {
    /// The set of these tokens, in any order, of a vocabulary of `vocab`. `None`: an id is not below `vocab`.
    pub fn from_ids(vocab: usize, ids: &[u32]) -> Option<KeptSet> {
        let mut bits = vec![0u32; vocab.div_ceil(32)];
        for &id in ids {
            if id as usize >= vocab {
                return None;
            }
            bits[id as usize / 32] |= 1 << (id % 32);
        }
        Some(KeptSet::from_bits(vocab, &bits))
    }

    /// The set of the tokens for which `keeps` returns `true`.
    pub(crate) fn of(vocab: usize, keeps: impl Fn(usize) -> bool) -> KeptSet {
        let word = |w: usize| {
            (32 * w..vocab.min(32 * w + 32)).fold(0u32, |bits, i| bits | u32::from(keeps(i)) << (i % 32))
        };
        KeptSet::from_bits(vocab, &(0..vocab.div_ceil(32)).map(word).collect::<Vec<u32>>())
    }

    /// The set of a bitmap of `ceil(vocab / 32)` words. Bits from `vocab` on are 0.
    pub(crate) fn from_bits(vocab: usize, bits: &[u32]) -> KeptSet {
        let count: usize = bits.iter().map(|word| word.count_ones() as usize).sum();
        let words =
            if count < bits.len() { Words::Ids(ids_of(bits).collect()) } else { Words::Bits(bits.into()) };
        KeptSet { vocab, words }
    }

    /// The size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The kept tokens, ascending.
    pub fn ids(&self) -> Vec<u32> {
        match &self.words {
            Words::Ids(ids) => ids.to_vec(),
            Words::Bits(bits) => ids_of(bits).collect(),
        }
    }

    /// Whether the set contains a token.
    pub fn contains(&self, id: u32) -> bool {
        match &self.words {
            Words::Ids(ids) => ids.binary_search(&id).is_ok(),
            Words::Bits(bits) => bits.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1),
        }
    }

    /// The size of the list or of the bitmap in bytes.
    pub fn bytes(&self) -> usize {
        match &self.words {
            Words::Ids(words) | Words::Bits(words) => size_of_val(&words[..]),
        }
    }

    /// Appends the set to a message: its form, the number of its words and these. [`KeptSet::read`] reverses it.
    pub fn append_to(&self, message: &mut Vec<u32>) {
        let (form, words) = match &self.words {
            Words::Ids(words) => (0, words),
            Words::Bits(words) => (1, words),
        };
        message.extend([form, words.len() as u32]);
        message.extend_from_slice(words);
    }

    /// Reads a set of a vocabulary of `vocab` tokens that [`KeptSet::append_to`] has written, and removes it from
    /// `message`. `None`: the message ends before the set, or does not hold a set of this vocabulary.
    pub fn read(vocab: usize, message: &mut &[u32]) -> Option<KeptSet> {
        let &[form, len] = message.split_off(..2)? else { return None };
        let words: Arc<[u32]> = message.split_off(..len as usize)?.into();
        let is_below = |id: u32| (id as usize) < vocab;
        if faults::on(Fault::KeptSetsUnchecked) {
            let words = if form == 0 { Words::Ids(words) } else { Words::Bits(words) };
            return Some(KeptSet { vocab, words });
        }
        let words = match form {
            0 if words.is_sorted_by(|a, b| a < b) && words.last().is_none_or(|&id| is_below(id)) => {
                Words::Ids(words)
            }
            1 if words.len() == vocab.div_ceil(32) && ids_of(&words).all(is_below) => Words::Bits(words),
            _ => return None,
        };
        Some(KeptSet { vocab, words })
    }

    /// Appends the bitmap, `ceil(vocab / 32)` words.
    pub(crate) fn push_bits(&self, all: &mut Vec<u32>) {
        match &self.words {
            Words::Bits(bits) => all.extend_from_slice(bits),
            Words::Ids(ids) => {
                let first = all.len();
                all.resize(first + self.vocab.div_ceil(32), 0);
                ids.iter().for_each(|&id| all[first + id as usize / 32] |= 1 << (id % 32));
            }
        }
    }

    /// Sets logits outside the set to -inf, except that of `target`, an index in `z`. `z` starts at column `first`. A
    /// NaN or +inf stays, so that the row is reported as not finite.
    pub(crate) fn remove_others(&self, z: &mut [f32], first: usize, target: Option<usize>) {
        let remove = |i: usize, z: &mut f32| {
            if *z < f32::INFINITY && Some(i) != target {
                *z = f32::NEG_INFINITY;
            }
        };
        match &self.words {
            Words::Ids(ids) => {
                let mut next = ids.partition_point(|&id| (id as usize) < first);
                for (i, z) in z.iter_mut().enumerate() {
                    if ids.get(next).is_some_and(|&id| id as usize == first + i) {
                        next += 1;
                    } else {
                        remove(i, z);
                    }
                }
            }
            Words::Bits(bits) => {
                for (i, z) in z.iter_mut().enumerate() {
                    if bits[(first + i) / 32] >> ((first + i) % 32) & 1 == 0 {
                        remove(i, z);
                    }
                }
            }
        }
    }
}

/// The set bits, ascending.
fn ids_of(bits: &[u32]) -> impl Iterator<Item = u32> {
    let set = |(w, &word): (usize, &u32)| {
        (0..32).filter(move |i| word >> i & 1 == 1).map(move |i| w as u32 * 32 + i)
    };
    bits.iter().enumerate().flat_map(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_holds_no_set_of_the_vocabulary_is_refused() {
        let read = |message: &[u32]| KeptSet::read(40, &mut &message[..]);
        for bad in [
            &[0, 1, 40][..],
            &[0, 2, 3, 3],
            &[0, 2, 5, 3],
            &[1, 0],
            &[1, 1, 7],
            &[1, 3, 1, 1, 1],
            &[1, 2, 1, 1 << 8],
            &[2, 1, 7],
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
            #[cfg(feature = "faults")]
            assert!(faults::with(Fault::KeptSetsUnchecked, || read(bad)).is_some(), "{bad:?}");
        }
        assert_eq!(read(&[0, 2, 3, 39]).unwrap().ids(), [3, 39]);
        assert_eq!(read(&[1, 2, 1, 1 << 7]).unwrap().ids(), [0, 39]);
    }

    #[test]
    fn a_set_returns_its_ids_from_a_list_and_from_a_bitmap() {
        for vocab in [1u32, 31, 32, 33, 200] {
            for step in [1, 2, 31, 40, 199] {
                let ids: Vec<u32> = (0..vocab).step_by(step).collect();
                let set = KeptSet::from_ids(vocab as usize, &ids).unwrap();
                assert_eq!(set.ids(), ids);
                assert!((0..vocab + 40).all(|id| set.contains(id) == ids.contains(&id)));
                assert!(set.bytes() <= 4 * vocab.div_ceil(32) as usize, "{} bytes", set.bytes());
                let (mut bits, mut z) = (vec![7], vec![0.5; vocab as usize]);
                set.push_bits(&mut bits);
                assert_eq!(KeptSet::from_bits(vocab as usize, &bits[1..]), set);
                let mut message = Vec::new();
                set.append_to(&mut message);
                let mut rest = &message[..];
                assert_eq!((KeptSet::read(vocab as usize, &mut rest), rest.len()), (Some(set.clone()), 0));
                assert_eq!(KeptSet::read(vocab as usize, &mut &message[..message.len() - 1]), None);
                set.remove_others(&mut z[1..], 1, None);
                let kept = |i: u32| z[i as usize] == 0.5;
                assert!((1..vocab).all(|i| kept(i) == ids.contains(&i)));
            }
        }
        assert_eq!(KeptSet::from_ids(3, &[1, 3]), None);
    }
}
