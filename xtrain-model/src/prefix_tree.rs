//! The rows of branches: equal beginnings have the same rows.
use std::collections::HashMap;

use xtrain_tensor::faults::{self, Fault};

/// The rows of the branches of a prompt, as a tree of tokens.
#[derive(Debug, Default)]
pub(crate) struct PrefixTree {
    /// The row of a token after the row of the token before it.
    next: HashMap<(u32, u32), u32>,
}

/// The rows of the tokens of a branch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BranchRows {
    pub(crate) rows: Vec<u32>,
    /// How many of them, from the start, are rows of earlier branches.
    pub(crate) shared: usize,
}

impl PrefixTree {
    /// Adds the tokens `ids` after the row `last` of the prompt. Rows of new tokens are numbered from `first`.
    pub(crate) fn insert(&mut self, last: u32, ids: &[u32], first: u32) -> BranchRows {
        let (mut at, mut rows, mut shared) = (last, Vec::with_capacity(ids.len()), 0);
        for &id in ids {
            let token = if faults::on(Fault::SimilarTokensShareRows) { id / 2 } else { id };
            at = *self.next.entry((at, token)).or_insert(first + (rows.len() - shared) as u32);
            if at < first {
                shared += 1;
            }
            rows.push(at);
        }
        BranchRows { rows, shared }
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.next.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_beginnings_have_the_same_rows() {
        let mut tree = PrefixTree::default();
        let mut insert = |ids: &[u32]| {
            let BranchRows { rows, shared } = tree.insert(9, ids, 10 + tree.len() as u32);
            (rows, shared)
        };
        assert_eq!(insert(&[5, 6, 7]), (vec![10, 11, 12], 0));
        assert_eq!(insert(&[5, 6, 8, 7]), (vec![10, 11, 13, 14], 2));
        assert_eq!(insert(&[5, 6]), (vec![10, 11], 2));
        assert_eq!(insert(&[]), (vec![], 0));
        // equal tokens after other ones
        assert_eq!(insert(&[6, 7]), (vec![15, 16], 0));
        assert_eq!(insert(&[5, 6, 8, 7, 7]), (vec![10, 11, 13, 14, 17], 4));
        assert_eq!(tree.len(), 8);
    }
}
