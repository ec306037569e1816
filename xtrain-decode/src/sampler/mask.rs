//! The set of tokens that may be sampled.

/// A set of token ids below the size of a vocabulary: one bit per id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    vocab: usize,
    /// Bit `i % 32` of word `i / 32` is token `i`. The bits above `vocab` are 0.
    words: Vec<u32>,
}

impl TokenMask {
    /// The empty set in a vocabulary of `vocab` tokens.
    pub fn new(vocab: usize) -> TokenMask {
        TokenMask { vocab, words: vec![0; vocab.div_ceil(32)] }
    }

    /// Size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Adds `id`. An id outside the vocabulary is ignored: it has no logit.
    pub fn allow(&mut self, id: u32) {
        if (id as usize) < self.vocab {
            self.words[id as usize / 32] |= 1 << (id % 32);
        }
    }

    /// Removes `id`.
    pub fn disallow(&mut self, id: u32) {
        if let Some(word) = self.words.get_mut(id as usize / 32) {
            *word &= !(1 << (id % 32));
        }
    }

    /// Adds the ids whose bits are set in `words`: bit `i % 32` of word `i / 32` is id `i`. Words and bits beyond the
    /// vocabulary are ignored.
    pub fn allow_words(&mut self, words: &[u32]) {
        self.words.iter_mut().zip(words).for_each(|(word, more)| *word |= more);
        if let (Some(last), used @ 1..) = (self.words.last_mut(), self.vocab % 32) {
            *last &= (1 << used) - 1;
        }
    }

    /// Whether the set contains `id`.
    pub fn allows(&self, id: u32) -> bool {
        self.words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }

    /// Whether the set contains no id.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// The ids, ascending.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        let bits = |(at, &word): (usize, &u32)| {
            (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as u32 * 32 + bit)
        };
        self.words.iter().enumerate().flat_map(bits)
    }

    /// Bit `i % 32` of word `i / 32` is token `i`.
    pub(super) fn words(&self) -> &[u32] {
        &self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_keeps_the_ids_it_was_given() {
        for vocab in [1, 31, 32, 33, 64, 100] {
            let mut mask = TokenMask::new(vocab);
            assert!(mask.is_empty() && mask.vocab() == vocab);
            let ids: Vec<u32> = (0..vocab as u32).filter(|id| id % 3 == 0).collect();
            for &id in &ids {
                mask.allow(id);
            }
            mask.allow(vocab as u32);
            mask.disallow(vocab as u32 + 40);
            assert_eq!(mask.ids().collect::<Vec<_>>(), ids, "vocabulary of {vocab}");
            assert!((0..200).all(|id| mask.allows(id) == ids.contains(&id)));
        }
    }

    #[test]
    fn bits_beyond_the_vocabulary_are_ignored() {
        let mut mask = TokenMask::new(33);
        mask.allow_words(&[1, u32::MAX, 7]);
        assert_eq!(mask.ids().collect::<Vec<_>>(), [0, 32]);
    }
}
