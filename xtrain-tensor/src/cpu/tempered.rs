//! Temperature and mask of a row of logits.
use super::lanes::{Kernel, LANES, Lanes};
use super::softmax::max;
use super::value::blocks;
use crate::faults::{self, Fault};

/// Sets `out` to `x / temperature`, and to -inf where the mask removes the token. Returns the largest value, -inf if
/// there is none; `None` if an x is a NaN or +inf.
pub(crate) struct Tempered<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) temperature: f32,
    /// Bit `i % 32` of word `i / 32` is 0 if the mask removes token i. A token without a word is removed.
    pub(crate) words: Option<&'a [u32]>,
    pub(crate) out: &'a mut [f32],
}

impl Kernel<Option<f32>> for Tempered<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Option<f32> {
        let (infinity, t) = (l.splat(f32::INFINITY), l.splat(self.temperature));
        let (mut invalid, mut largest) = (l.zero(), l.splat(f32::NEG_INFINITY));
        let mut of_rest = f32::NEG_INFINITY;
        blocks!(self.x.len(), |b| {
            let out = &mut self.out[b.clone()];
            let x = l.load_partial(&self.x[b.clone()]);
            invalid = l.select_lt(x, infinity, invalid, x);
            // x / 1 is x
            let mut z = if self.temperature == 1.0 { x } else { l.div(x, t) };
            if let Some(words) =
                self.words.filter(|_| b.len() == LANES || !faults::on(Fault::MaskOfTailIgnored))
            {
                z = masked(l, z, words.get(b.start / LANES).copied().unwrap_or_default());
            }
            l.store_partial(out, z);
            if b.len() == LANES {
                largest = l.max(largest, z);
            } else {
                of_rest = max(l, out);
            }
        });
        let largest = l.max32(largest);
        let valid = l.to_array(invalid) == [0.0; LANES];
        valid.then_some(if of_rest > largest { of_rest } else { largest })
    }
}

/// `z`, and -inf in the lanes whose bits in `word` are 0.
#[inline(always)]
fn masked<L: Lanes>(l: L, z: L::F, word: u32) -> L::F {
    let mut values = l.to_array(z);
    // plain code over a fixed number of values, which the compiler vectorizes
    for (bit, value) in values.iter_mut().enumerate() {
        *value = if word & 1 << bit == 0 { f32::NEG_INFINITY } else { *value };
    }
    l.load(&values)
}
