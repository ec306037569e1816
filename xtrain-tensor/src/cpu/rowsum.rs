//! Sums over rows: the gradients of gains and biases.
use std::ops::Range;

use super::Cpu;
use super::lanes::{Kernel, Lanes, dispatch};
use super::scratch::Buffer;
use super::value::blocks;
use crate::operands::Samples;

/// Rows of a chunk.
const CHUNK: usize = 256;

/// Elements below which the caller's thread is enough.
const FEW: usize = 8192;

/// `one(rows, sums)` adds the part of `rows` to `sums`, which are +0 before, for every chunk of rows, 256 from each
/// sample's first; then each chunk's sums are added to `dw` in rising order.
pub(super) fn rowsum(
    cpu: &Cpu,
    (dw, samples): (&mut [f32], &Samples),
    one: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    let c = dw.len();
    let bounds = samples.chunks(CHUNK);
    let mut sums = Buffer::<f32>::of(bounds.len() / 2 * c);
    let one = |i: usize, sums: &mut [f32]| {
        sums.fill(0.0);
        one(bounds[2 * i] as usize..bounds[2 * i + 1] as usize, sums);
    };
    match samples.rows() * c < FEW {
        true => sums.chunks_exact_mut(c.max(1)).enumerate().for_each(|(i, sums)| one(i, sums)),
        false => cpu.pool.parts(&mut sums, c, one),
    }
    for sums in sums.chunks_exact(c.max(1)) {
        dw.iter_mut().zip(sums).for_each(|(dw, sum)| *dw += sum);
    }
}

/// `db += rowsum dy`: dy `[N, out]`.
pub(crate) fn sum_rows(cpu: &Cpu, dy: &[f32], db: (&mut [f32], &Samples)) {
    let out = db.0.len();
    rowsum(cpu, db, |rows, sums| {
        dispatch(cpu.simd, AddRows { dy: &dy[rows.start * out..rows.end * out], sums });
    });
}

struct AddRows<'a> {
    dy: &'a [f32],
    sums: &'a mut [f32],
}

impl Kernel for AddRows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for dy in self.dy.chunks_exact(self.sums.len().max(1)) {
            blocks!(dy.len(), |b| {
                let sum = l.add(l.load_partial(&self.sums[b.clone()]), l.load_partial(&dy[b.clone()]));
                l.store_partial(&mut self.sums[b], sum);
            });
        }
    }
}
