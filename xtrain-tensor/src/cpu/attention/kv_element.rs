//! The elements that keys and values are stored in.
use half::bf16;

use super::number::Number;
use crate::cpu::gemm_bf16::{BLOCK, MinExponent, Operand, Pairs};
use crate::cpu::lanes::{LANES, Lanes};
use crate::operands::Int8Head;

/// An element of stored keys and values, for queries of type `E`: `E` itself, or the words of [`Int8Head`].
pub(crate) trait KvElement<E: Number>: Copy + Sync {
    /// The number of elements of a head vector of `hd` values.
    fn head_len(hd: usize) -> usize;

    /// The elements as f32, if products can read them in place.
    fn plain(x: &[Self]) -> Option<&[f32]>;

    /// The elements as bf16, if they are stored in it.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only AMX reads them in place"))]
    fn in_place(x: &[Self]) -> Option<&[bf16]>;

    /// Writes the values of a head vector to `out`, which is at least as long. The rest of `out` becomes +0.
    fn row<L: Lanes>(l: L, x: &[Self], out: &mut [f32], min_exp: &mut MinExponent<L>);

    /// Like [`KvElement::row`], but denormals may stay, and the smallest exponent field is 0 if there are any.
    fn raw_row<L: Lanes>(l: L, x: &[Self], out: &mut [f32], min_exp: &mut MinExponent<L>);

    /// Writes the values of a head vector, rounded to bf16, in blocks of 32. The rest of the last block becomes +0.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only AVX-512 BF16 and AMX read pairs")
    )]
    fn bf16_row<'b, L: Lanes>(l: L, x: &[Self], out: impl Iterator<Item = &'b mut Pairs>);
}

impl<E: Number> KvElement<E> for E {
    #[inline(always)]
    fn head_len(hd: usize) -> usize {
        hd
    }
    #[inline(always)]
    fn plain(x: &[E]) -> Option<&[f32]> {
        E::plain(x)
    }
    #[inline(always)]
    fn in_place(x: &[E]) -> Option<&[bf16]> {
        Operand::in_place(x)
    }
    #[inline(always)]
    fn row<L: Lanes>(l: L, x: &[E], out: &mut [f32], min_exp: &mut MinExponent<L>) {
        for (i, out) in out.chunks_exact_mut(LANES).enumerate() {
            let v = E::read(l, &x[x.len().min(i * LANES)..]);
            l.store(out, E::operand(l, v, min_exp));
        }
    }
    #[inline(always)]
    fn raw_row<L: Lanes>(l: L, x: &[E], out: &mut [f32], min_exp: &mut MinExponent<L>) {
        for (i, out) in out.chunks_exact_mut(LANES).enumerate() {
            let v = E::read(l, &x[x.len().min(i * LANES)..]);
            l.store(out, E::raw_operand(l, v, min_exp));
        }
    }
    #[inline(always)]
    fn bf16_row<'b, L: Lanes>(l: L, x: &[E], out: impl Iterator<Item = &'b mut Pairs>) {
        for (x, out) in x.chunks(BLOCK).zip(out) {
            match <E as Operand>::in_place(x).map(<&[bf16; BLOCK]>::try_from) {
                Some(Ok(x)) => out.0 = *x,
                _ => l.store_bf16(&mut out.0, E::read(l, x)),
            }
        }
    }
}

impl<E: Number> KvElement<E> for u32 {
    #[inline(always)]
    fn head_len(hd: usize) -> usize {
        Int8Head::words(hd)
    }
    #[inline(always)]
    fn plain(_: &[u32]) -> Option<&[f32]> {
        None
    }
    #[inline(always)]
    fn in_place(_: &[u32]) -> Option<&[bf16]> {
        None
    }
    #[inline(always)]
    fn row<L: Lanes>(l: L, x: &[u32], out: &mut [f32], min_exp: &mut MinExponent<L>) {
        let (scale, codes) = scale_and_codes(l, x);
        for (i, out) in out.chunks_exact_mut(LANES).enumerate() {
            let codes = l.load_i8_partial(&codes[codes.len().min(i * LANES)..]);
            l.store(out, E::rounded(l, Lanes::mul(l, codes, scale), min_exp));
        }
    }
    #[inline(always)]
    fn raw_row<L: Lanes>(l: L, x: &[u32], out: &mut [f32], min_exp: &mut MinExponent<L>) {
        <u32 as KvElement<E>>::row(l, x, out, min_exp);
    }
    #[inline(always)]
    fn bf16_row<'b, L: Lanes>(l: L, x: &[u32], out: impl Iterator<Item = &'b mut Pairs>) {
        let (scale, codes) = scale_and_codes(l, x);
        for (codes, out) in codes.chunks(BLOCK).zip(out) {
            l.store_bf16(&mut out.0, Lanes::mul(l, l.load_i8_partial(codes), scale));
        }
    }
}

/// The scale and the codes of a head vector.
#[inline(always)]
fn scale_and_codes<L: Lanes>(l: L, x: &[u32]) -> (L::F, &[i8]) {
    let (scale, codes) = x.split_last().expect("a head vector has a word for its scale");
    (Lanes::splat(l, f32::from_bits(*scale)), bytemuck::cast_slice(codes))
}
