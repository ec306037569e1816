//! Sequences whose keys are in a pool, in runs or in pages: the operands of attention.
use super::values::CaseRng;
use crate::ops::Slots;

/// The layout of the sequences in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Runs,
    Pages(usize),
}

impl Layout {
    pub(super) const ALL: [Layout; 7] = [
        Layout::Pages(16),
        Layout::Runs,
        Layout::Pages(5),
        Layout::Pages(1),
        Layout::Pages(100),
        Layout::Pages(3),
        Layout::Pages(64),
    ];
}

/// Query heads, KV heads, head size.
pub(super) type HeadCounts = [usize; 3];

/// A pool with slots for the positions of some sequences.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) slots: Slots,
    pub(super) n_slots: usize,
}

impl Pool {
    /// Places sequences of these lengths out of order, with unused slots between them.
    pub(super) fn new(layout: Layout, lengths: &[usize], seed: u64) -> Pool {
        let mut rng = CaseRng::new(seed);
        match layout {
            Layout::Runs => {
                let mut base = vec![0; lengths.len()];
                let mut at = 1;
                for seq in rng.shuffled(lengths.len()) {
                    base[seq] = at;
                    at += lengths[seq] + 2;
                }
                Pool { slots: Slots::Runs { base }, n_slots: at }
            }
            Layout::Pages(page) => {
                let n_pages = lengths.iter().map(|n| n.div_ceil(page)).sum::<usize>() + 2;
                let mut order = rng.shuffled(n_pages).into_iter().map(|p| p as u32);
                let table = lengths.iter().map(|n| order.by_ref().take(n.div_ceil(page)).collect()).collect();
                Pool { slots: Slots::Pages { page, table }, n_slots: n_pages * page }
            }
        }
    }

    /// The values of all positions of all sequences, `width` each, in their slots. Unused slots hold NaN, so that
    /// reading one is visible even if it is multiplied with 0.
    pub(super) fn place(&self, lengths: &[usize], width: usize, values: &[f32]) -> Vec<f32> {
        let mut pool = vec![f32::NAN; self.n_slots * width];
        let mut rows = values.chunks_exact(width);
        for (seq, &n) in lengths.iter().enumerate() {
            for (pos, row) in (0..n).zip(rows.by_ref()) {
                let slot = self.slots.slot(seq as u32, pos);
                pool[slot * width..][..width].copy_from_slice(row);
            }
        }
        pool
    }
}

/// The rows of a sequence of `prefix` positions and of sequences that continue it with `branches` rows each: the
/// sequence and the position of each row, and the row of each position of each sequence.
pub(super) fn tree(prefix: usize, branches: &[usize]) -> (Vec<u32>, Vec<u32>, Slots) {
    let (mut seq, mut pos): (Vec<u32>, Vec<u32>) = (0..prefix as u32).map(|p| (0, p)).unzip();
    let mut table = vec![pos.clone()];
    for (s, &n) in (1..).zip(branches) {
        let own = (seq.len() as u32..).take(n);
        table.push((0..prefix as u32).chain(own).collect());
        seq.extend(vec![s; n]);
        pos.extend((prefix as u32..).take(n));
    }
    (seq, pos, Slots::Pages { page: 1, table })
}

/// The positions at chunk borders in a sequence of length `len`, and its last position.
pub(super) fn edges(len: usize) -> Vec<usize> {
    let mut at: Vec<usize> =
        [0, 1, 30, 31, 32, 62, 63, 64, 126, 127, 128, 254, 255, 256, 510, 511, 512].into();
    at.push(len - 1);
    at.retain(|&p| p < len);
    at.sort_unstable();
    at.dedup();
    at
}
