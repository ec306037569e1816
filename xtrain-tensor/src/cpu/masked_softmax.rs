//! The `lse` of a row and of the same row after a mask, with one exponential for both.
use super::lanes::{Kernel, Lanes};
use super::softmax::{CHUNK, Chunks, first_lanes, max, sum_of_chunk};
use super::value::blocks;
use crate::faults::{self, Fault};

/// The `lse` of `z` and that of `kept`: the values of `z`, or -inf where a mask removed them.
pub(crate) struct LseMasked<'a> {
    pub(crate) z: &'a [f32],
    pub(crate) kept: &'a [f32],
}

impl Kernel<[f32; 2]> for LseMasked<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> [f32; 2] {
        let (mut all, mut some) = (Chunks::new(self.z.len()), Chunks::new(self.z.len()));
        let one_maximum = faults::on(Fault::MaximumOfMaskedChunkKept);
        for (i, (z, kept)) in self.z.chunks(CHUNK).zip(self.kept.chunks(CHUNK)).enumerate() {
            let (m, of_kept) = (max(l, z), max(l, kept));
            // the exponentials below a maximum are those of both only if the mask keeps it
            if of_kept > f32::NEG_INFINITY && (of_kept == m || one_maximum) {
                let sums = sums(l, z, kept, m);
                all.set(i, m, sums[0]);
                some.set(i, m, sums[1]);
            } else {
                all.set(i, m, sum_of_chunk(l, z, m));
                some.set(i, of_kept, sum_of_chunk(l, kept, of_kept));
            }
        }
        // no closure: it would not be inlined into the function that enables the instruction set
        [all.lse(l), some.lse(l)]
    }
}

/// The sum32 of `exp(z - m)`, over all elements and over those that are in `kept`.
#[inline(always)]
fn sums<L: Lanes>(l: L, z: &[f32], kept: &[f32], m: f32) -> [f32; 2] {
    let (mut all, mut some, m) = (l.zero(), l.zero(), l.splat(m));
    blocks!(z.len(), |b| {
        let n = b.len();
        let e = first_lanes(l, l.exp(l.sub(l.load_partial(&z[b.clone()]), m)), n);
        all = l.add(all, e);
        let e = l.select_lt(l.load_partial(&kept[b]), l.splat(f32::MIN), l.zero(), e);
        some = l.add(some, e);
    });
    [l.sum32(all), l.sum32(some)]
}
