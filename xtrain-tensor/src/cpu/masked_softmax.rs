//! A mask of logits, and the `lse` of a row and of the same row after a mask, with one exponential for both.
use super::lanes::{Kernel, Lanes};
use super::scratch::Buffer;
use super::softmax::{CHUNK, Part, chunk, combined, first_lanes, max};
use super::value::blocks;
use crate::faults::{self, Fault};

/// Sets the values whose bits in `words` are 0 to -inf: bit `i % 32` of word `i / 32` is value i. Values without a word
/// are removed.
pub(crate) struct Remove<'a> {
    pub(crate) values: &'a mut [f32],
    pub(crate) words: &'a [u32],
}

impl Kernel for Remove<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let mut words = self.words.iter().copied().chain(std::iter::repeat(0));
        let (whole, rest) = self.values.as_chunks_mut::<32>();
        // plain code over a fixed number of values, which the compiler vectorizes
        for (values, word) in whole.iter_mut().zip(&mut words) {
            for (bit, value) in values.iter_mut().enumerate() {
                *value = if word & 1 << bit == 0 { f32::NEG_INFINITY } else { *value };
            }
        }
        let word = words.next().unwrap_or_default();
        let removed = rest.iter_mut().enumerate().filter(|(bit, _)| word & 1 << bit == 0);
        removed.for_each(|(_, value)| *value = f32::NEG_INFINITY);
    }
}

/// The `lse` of `z` and that of `kept`: the values of `z`, or -inf where a mask removed them.
pub(crate) struct LseMasked<'a> {
    pub(crate) z: &'a [f32],
    pub(crate) kept: &'a [f32],
}

impl Kernel<[f32; 2]> for LseMasked<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> [f32; 2] {
        let chunks = self.z.len().div_ceil(CHUNK);
        let mut parts = [Buffer::<Part>::new(chunks), Buffer::<Part>::new(chunks)];
        let mut tops = [f32::NEG_INFINITY; 2];
        let one_maximum = faults::on(Fault::MaximumOfMaskedChunkKept);
        for (i, (z, kept)) in self.z.chunks(CHUNK).zip(self.kept.chunks(CHUNK)).enumerate() {
            let maxima = [max(l, z), max(l, kept)];
            // the exponentials below a maximum are those of both only if the mask keeps it
            let same = maxima[0] == maxima[1] || one_maximum;
            let both = if same && maxima[1] > f32::NEG_INFINITY {
                let sums = sums(l, z, kept, maxima[0]);
                [[maxima[0], sums[0]], [maxima[0], sums[1]]]
            } else {
                [chunk(l, z), chunk(l, kept)]
            };
            for ((parts, top), part) in parts.iter_mut().zip(&mut tops).zip(both) {
                parts[i] = part;
                *top = if part[0] > *top { part[0] } else { *top };
            }
        }
        [combined(l, &parts[0], tops[0]), combined(l, &parts[1], tops[1])]
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
