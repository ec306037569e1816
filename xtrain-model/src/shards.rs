//! The shards of a step: groups of samples whose gradients are summed separately and then added as a binary tree. The
//! result depends on their number and not on who computes them (docs/numerics.md, section 4).
use std::ops::Range;

use xtrain_tensor::faults::{self, Fault};

/// The samples of shard `shard` of a step with `samples` samples: `floor(shard samples / shards)` to
/// `floor((shard + 1) samples / shards)`, the end excluded.
///
/// # Panics
/// If `shards` is 0.
pub fn shard_samples(samples: usize, shards: usize, shard: usize) -> Range<usize> {
    let bound = |shard: usize| {
        let product = shard as u128 * samples as u128;
        let bound = if faults::on(Fault::ShardBoundsRoundedUp) {
            product.div_ceil(shards as u128)
        } else {
            product / shards as u128
        };
        bound as usize
    };
    bound(shard)..bound(shard + 1)
}

/// A node of the tree of shard totals: the shards `first .. first + len`, of which those beyond the last shard do not
/// exist. `len` is a power of two and divides `first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) first: usize,
    pub(crate) len: usize,
}

/// The nodes into which the totals of the shards `range` can be added without those of other shards, from left to
/// right: as few as possible.
pub(crate) fn nodes(range: Range<usize>) -> Vec<Node> {
    let mut sum = TreeSum::default();
    for shard in range {
        let Ok(()) =
            sum.push(Node { first: shard, len: 1 }, (), |(), &()| Ok::<_, std::convert::Infallible>(()));
    }
    sum.nodes.into_iter().map(|(node, ())| node).collect()
}

/// Adds totals as a binary tree while they arrive from left to right. Keeps at most `log2(S) + 1` totals at a time.
#[derive(Debug)]
pub(crate) struct TreeSum<T> {
    /// Complete nodes, from left to right.
    nodes: Vec<(Node, T)>,
}

impl<T> Default for TreeSum<T> {
    fn default() -> TreeSum<T> {
        TreeSum { nodes: Vec::new() }
    }
}

impl<T> TreeSum<T> {
    /// Adds the next node. `add` computes left + right.
    pub(crate) fn push<E>(
        &mut self,
        node: Node,
        total: T,
        mut add: impl FnMut(T, &T) -> Result<T, E>,
    ) -> Result<(), E> {
        self.nodes.push((node, total));
        while let [.., (left, _), (right, _)] = self.nodes[..] {
            let are_siblings = left.len == right.len && left.first.is_multiple_of(2 * left.len);
            if !are_siblings && !faults::on(Fault::ShardsAddedInSequence) {
                break;
            }
            self.add_last_two(&mut add)?;
        }
        Ok(())
    }

    /// The same nodes with other totals.
    pub(crate) fn map<U>(&mut self, mut total: impl FnMut(&mut T) -> U) -> TreeSum<U> {
        TreeSum { nodes: self.nodes.iter_mut().map(|(node, of_node)| (*node, total(of_node))).collect() }
    }

    /// The nodes that have no sibling yet, from left to right.
    pub(crate) fn into_nodes(self) -> Vec<T> {
        self.nodes.into_iter().map(|(_, total)| total).collect()
    }

    /// The total of all shards, after the last one was pushed. A node without a right sibling moves up unchanged. `None`:
    /// nothing was pushed.
    pub(crate) fn finish<E>(mut self, mut add: impl FnMut(T, &T) -> Result<T, E>) -> Result<Option<T>, E> {
        while self.nodes.len() > 1 {
            self.add_last_two(&mut add)?;
        }
        Ok(self.nodes.pop().map(|(_, total)| total))
    }

    fn add_last_two<E>(&mut self, add: &mut impl FnMut(T, &T) -> Result<T, E>) -> Result<(), E> {
        if let (Some((_, right)), Some((node, left))) = (self.nodes.pop(), self.nodes.pop()) {
            self.nodes.push((Node { first: node.first, len: 2 * node.len }, add(left, &right)?));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of the shards of `range` as text, from the definition: level by level.
    fn by_levels(mut level: Vec<String>) -> String {
        while level.len() > 1 {
            let pair = |pair: &[String]| match pair {
                [left, right] => format!("({left}+{right})"),
                _ => pair[0].clone(),
            };
            level = level.chunks(2).map(pair).collect();
        }
        level.remove(0)
    }

    #[test]
    fn the_streamed_tree_is_that_of_the_definition() {
        let add = |left: String, right: &String| Ok::<_, ()>(format!("({left}+{right})"));
        assert_eq!(by_levels((0..5).map(|s| s.to_string()).collect()), "(((0+1)+(2+3))+4)");
        for shards in 1..70 {
            let mut sum = TreeSum::default();
            for first in 0..shards {
                sum.push(Node { first, len: 1 }, first.to_string(), add).unwrap();
                assert!(sum.nodes.len() <= shards.ilog2() as usize + 1);
            }
            let want = by_levels((0..shards).map(|s| s.to_string()).collect());
            assert_eq!(sum.finish(add).unwrap().unwrap(), want, "{shards}");
        }
    }

    #[test]
    fn totals_that_processes_added_first_give_the_same_tree() {
        let add = |left: String, right: &String| Ok::<_, ()>(format!("({left}+{right})"));
        for shards in 1..40 {
            let want = by_levels((0..shards).map(|s| s.to_string()).collect());
            for processes in (1..=shards).filter(|r| shards % r == 0) {
                let mut sum = TreeSum::default();
                for rank in 0..processes {
                    let each = shards / processes;
                    let range = rank * each..(rank + 1) * each;
                    let mut own = TreeSum::default();
                    for first in range.clone() {
                        own.push(Node { first, len: 1 }, first.to_string(), add).unwrap();
                    }
                    let nodes = nodes(range);
                    assert!(!each.is_power_of_two() || nodes.len() == 1, "{shards} {processes}");
                    for (node, total) in nodes.into_iter().zip(own.into_nodes()) {
                        sum.push(node, total, add).unwrap();
                    }
                }
                assert_eq!(sum.finish(add).unwrap().unwrap(), want, "{shards} {processes}");
            }
        }
    }

    #[test]
    fn shards_are_contiguous_and_differ_by_at_most_one_sample() {
        for samples in 0..30 {
            for shards in 1..12 {
                let all: Vec<_> = (0..shards).map(|s| shard_samples(samples, shards, s)).collect();
                assert_eq!((all[0].start, all[shards - 1].end), (0, samples));
                assert!(all.windows(2).all(|two| two[0].end == two[1].start));
                let sizes = || all.iter().map(ExactSizeIterator::len);
                assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
            }
        }
        assert_eq!((0..3).map(|s| shard_samples(7, 3, s)).collect::<Vec<_>>(), [0..2, 2..4, 4..7]);
    }
}
