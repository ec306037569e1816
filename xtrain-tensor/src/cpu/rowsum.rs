//! Sums over rows: the gradients of gains and biases.
use std::ops::Range;

use super::Cpu;
use super::lanes::{Kernel, Lanes, dispatch};
use super::scratch::Buffer;
use super::value::blocks;
use crate::operands::Samples;

/// The gradient of a parameter, and the samples whose rows are summed into it.
pub(crate) struct ParamGrad<'a> {
    pub(crate) grad: &'a mut [f32],
    pub(crate) samples: &'a Samples,
}

/// Rows per chunk.
const CHUNK: usize = 256;

/// Below this number of elements the sum runs on the calling thread.
const SERIAL: usize = 8192;

/// Sums over rows into a parameter's gradient. `add_chunk(rows, sums)` adds the terms of `rows` to `sums`, which
/// start at +0, for each chunk of 256 rows counted from each sample's first row. Then the sums of the chunks are
/// added to the gradient in ascending order.
pub(super) fn rowsum(
    cpu: &Cpu,
    ParamGrad { grad, samples }: ParamGrad<'_>,
    add_chunk: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    let c = grad.len();
    let bounds = samples.chunks(CHUNK);
    let mut sums = Buffer::<f32>::new(bounds.len() / 2 * c);
    let chunk = |i: usize, sums: &mut [f32]| {
        sums.fill(0.0);
        add_chunk(bounds[2 * i] as usize..bounds[2 * i + 1] as usize, sums);
    };
    match samples.rows() * c < SERIAL {
        true => sums.chunks_exact_mut(c.max(1)).enumerate().for_each(|(i, sums)| chunk(i, sums)),
        false => cpu.pool.parts(&mut sums, c, chunk),
    }
    for sums in sums.chunks_exact(c.max(1)) {
        grad.iter_mut().zip(sums).for_each(|(grad, sum)| *grad += sum);
    }
}

/// `db += rowsum dy`, dy `[N, out]`.
pub(crate) fn sum_rows(cpu: &Cpu, dy: &[f32], db: ParamGrad<'_>) {
    let out = db.grad.len();
    rowsum(cpu, db, |rows, sums| {
        dispatch(cpu.simd, AddRows { dy: &dy[rows.start * out..rows.end * out], sums });
    });
}

struct AddRows<'a> {
    dy: &'a [f32],
    sums: &'a mut [f32],
}

impl Kernel for AddRows<'_> {
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
