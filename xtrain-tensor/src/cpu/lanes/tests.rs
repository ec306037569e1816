//! Checks every instruction set against scalar Rust, lane by lane.
use half::bf16;

use super::*;
use crate::dtype::{from_bf16, round_bf16, to_bf16};
use crate::math;
use crate::testing::simds;

/// Zeros, denormals, boundary values, infinities, NaN, and values over all exponents.
fn values() -> Vec<f32> {
    let mut out =
        vec![0.0, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN, 1.0, 87.0, 88.72283, 88.72284];
    out.extend([1, 0x7f_ffff, 0x80_0001, 0x3f80_8000, 0x3f81_8000, 0x7f7f_8000].map(f32::from_bits));
    out.extend((0..2_000u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761) >> 1)));
    let negative: Vec<f32> = out.iter().map(|x| -x).collect();
    out.extend(negative);
    out.resize(out.len().next_multiple_of(LANES), 0.5);
    out
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// An operation on three operands, run in lanes and in scalars.
struct Check<'a> {
    name: &'a str,
    x: [&'a [f32]; 3],
}

macro_rules! check {
    ($simd:expr, $x:expr, $name:literal, $lanes:expr, $scalar:expr) => {{
        struct Op<'a>(&'a Check<'a>);
        impl Kernel<Vec<f32>> for Op<'_> {
            #[inline(always)]
            fn run<L: Lanes>(self, l: L) -> Vec<f32> {
                let mut out = vec![0.0; self.0.x[0].len()];
                for i in (0..out.len()).step_by(LANES) {
                    let [a, b, c] = self.0.x.map(|x| l.load(&x[i..]));
                    let f: fn(L, L::F, L::F, L::F) -> L::F = $lanes;
                    l.store(&mut out[i..], f(l, a, b, c));
                }
                out
            }
        }
        let op = Check { name: $name, x: $x };
        let scalar: fn(f32, f32, f32) -> f32 = $scalar;
        for (i, got) in dispatch($simd, Op(&op)).into_iter().enumerate() {
            let [a, b, c] = op.x.map(|x| x[i]);
            let want = scalar(a, b, c);
            let bits = [a, b, c, got, want].map(f32::to_bits);
            assert!(
                same(got, want),
                "{} {}({a:e}, {b:e}, {c:e}) = {got:e}, want {want:e}, bits {bits:08x?}",
                $simd,
                op.name
            );
        }
    }};
}

#[test]
fn every_lane_operation_has_the_bits_of_scalar_rust_on_every_instruction_set() {
    let a = values();
    let mut b = a.clone();
    b.rotate_left(37);
    let mut c = a.clone();
    c.rotate_right(91);
    let x = [&a[..], &b[..], &c[..]];
    for simd in simds() {
        check!(simd, x, "fma", |l, a, b, c| l.fma(a, b, c), math::fma);
        check!(simd, x, "add", |l, a, b, _| l.add(a, b), |a, b, _| a + b);
        check!(simd, x, "sub", |l, a, b, _| l.sub(a, b), |a, b, _| a - b);
        check!(simd, x, "mul", |l, a, b, _| l.mul(a, b), |a, b, _| a * b);
        check!(simd, x, "div", |l, a, b, _| l.div(a, b), |a, b, _| a / b);
        check!(simd, x, "sqrt", |l, a, _, _| l.sqrt(a), |a, _, _| a.sqrt());
        check!(simd, x, "neg", |l, a, _, _| l.neg(a), |a, _, _| -a);
        check!(simd, x, "max", |l, a, b, _| l.max(a, b), |a, b, _| if b > a { b } else { a });
        check!(simd, x, "least_size", |l, a, b, _| l.least_size(a, b), |a, b, _| {
            f32::from_bits(a.to_bits().min((b.to_bits() << 1).wrapping_sub(1)))
        });
        check!(simd, x, "exp", |l, a, _, _| l.exp(a), |a, _, _| math::exp(a));
        check!(simd, x, "log", |l, a, _, _| l.log(a), |a, _, _| math::log(a));
        check!(simd, x, "round_bf16", |l, a, _, _| l.round_bf16(a), |a, _, _| round_bf16(a));
        check!(simd, x, "select_lt", |l, a, b, c| l.select_lt(a, b, c, a), |a, b, c| if a < b {
            c
        } else {
            a
        });
    }
}

#[test]
fn max_keeps_the_first_of_two_zeros_of_different_sign() {
    for simd in simds() {
        let (p, n) = ([0.0f32; LANES], [-0.0f32; LANES]);
        check!(simd, [&p[..], &n[..], &p[..]], "max", |l, a, b, _| l.max(a, b), |a, _, _| a);
        check!(simd, [&n[..], &p[..], &p[..]], "max", |l, a, b, _| l.max(a, b), |a, _, _| a);
    }
}

#[test]
fn exp_and_log_in_lanes_have_the_bits_of_the_scalars_over_a_sweep_of_all_patterns() {
    let x: Vec<f32> = (0..1u64 << 32).step_by(40_961).map(|u| f32::from_bits(u as u32)).collect();
    let x = &x[..x.len() / LANES * LANES];
    let near: Vec<f32> = (0..32_768).map(|i| (i as f32 - 16_384.0) * 5.5e-3).collect();
    for simd in simds() {
        check!(simd, [x; 3], "exp", |l, a, _, _| l.exp(a), |a, _, _| math::exp(a));
        check!(simd, [x; 3], "log", |l, a, _, _| l.log(a), |a, _, _| math::log(a));
        check!(simd, [&near[..]; 3], "exp", |l, a, _, _| l.exp(a), |a, _, _| math::exp(a));
    }
}

struct Reductions<'a>(&'a [f32]);
impl Kernel<(f32, f32)> for Reductions<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> (f32, f32) {
        let v = l.load(self.0);
        (l.sum32(v), l.max32(v))
    }
}

#[test]
fn sum32_adds_in_butterfly_order_and_never_returns_minus_zero() {
    let x = values();
    for simd in simds() {
        for chunk in x.chunks_exact(LANES) {
            let mut v = chunk.to_vec();
            for o in [16, 8, 4, 2, 1] {
                v = (0..LANES).map(|t| v[t] + v[t ^ o]).collect();
            }
            let (sum, max) = dispatch(simd, Reductions(chunk));
            let bits = [sum, v[0] + 0.0].map(f32::to_bits);
            assert!(same(sum, v[0] + 0.0), "{simd} {chunk:?}: {sum:e}, want {:e}, bits {bits:08x?}", v[0]);
            let want = chunk.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
            assert!(max == want || chunk.iter().any(|x| x.is_nan()), "{simd} {chunk:?}: {max:e}");
        }
        assert_eq!(dispatch(simd, Reductions(&[-0.0; LANES])).0.to_bits(), 0, "{simd}");
    }
}

struct Copies<'a>(&'a [f32]);
impl Kernel<(Vec<f32>, Vec<bf16>, Vec<f32>)> for Copies<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> (Vec<f32>, Vec<bf16>, Vec<f32>) {
        let n = self.0.len();
        let v = l.load_partial(self.0);
        let whole = l.to_array(v);
        assert!(whole[n..].iter().all(|x| x.to_bits() == 0), "absent lanes are +0");
        let (mut plain, mut narrow, mut wide) = (vec![7.0; n], vec![bf16::ONE; n], vec![7.0; n]);
        l.store_partial(&mut plain, v);
        l.store_bf16_partial(&mut narrow, v);
        l.store_partial(&mut wide, l.load_bf16_partial(&narrow));
        (plain, narrow, wide)
    }
}

#[test]
fn partial_loads_and_stores_access_only_their_slice_and_bf16_rounds_to_even() {
    let x = values();
    for simd in simds() {
        for n in 0..=LANES {
            for x in x.chunks_exact(LANES) {
                let (plain, narrow, wide) = dispatch(simd, Copies(&x[..n]));
                for i in 0..n {
                    let found = [plain[i], x[i], wide[i], from_bf16(narrow[i])].map(f32::to_bits);
                    assert!(same(plain[i], x[i]), "{simd}, {i} of {n}: {found:08x?}");
                    assert_eq!(narrow[i].to_bits(), to_bf16(x[i]).to_bits(), "{simd} {:e}", x[i]);
                    assert!(same(wide[i], from_bf16(narrow[i])), "{simd}, {i} of {n}: {found:08x?}");
                }
            }
        }
    }
}

struct Zipped<'a>([&'a [f32]; 2]);
impl Kernel<Vec<f32>> for Zipped<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Vec<f32> {
        let mut out = vec![0.0; 2 * L::WIDTH];
        // SAFETY: both operands have 32 elements and `out` 2 * WIDTH, by construction.
        unsafe {
            let [a, b] = self.0.map(|x| Reg::load(l, x.as_ptr()));
            let (first, second) = Reg::zip(l, a, b);
            Reg::store(l, out.as_mut_ptr(), first);
            Reg::store(l, out.as_mut_ptr().add(L::WIDTH), second);
        }
        out
    }
}

#[test]
fn zip_interleaves_the_lanes_of_two_registers() {
    let a: Vec<f32> = (0..LANES).map(|i| i as f32).collect();
    let b: Vec<f32> = a.iter().map(|x| -x).collect();
    for simd in simds() {
        let got = dispatch(simd, Zipped([&a, &b]));
        let want: Vec<f32> = (0..got.len()).map(|i| if i % 2 == 0 { a[i / 2] } else { b[i / 2] }).collect();
        assert_eq!(got, want, "{simd}");
    }
}

struct Nibbles<'a>(&'a [f32]);
impl Kernel<[Vec<f32>; 3]> for Nibbles<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> [Vec<f32>; 3] {
        let mut out = [(); 3].map(|()| vec![7.0; self.0.len()]);
        for i in (0..self.0.len()).step_by(L::WIDTH) {
            // SAFETY: the words and the outputs have WIDTH elements from `i` on: their number is a multiple of 32.
            unsafe {
                let bits = Reg::load(l, self.0.as_ptr().add(i));
                let results =
                    [Reg::nibble(l, bits), Reg::centered_nibble(l, bits), Reg::next_nibble(l, bits)];
                for (out, result) in out.iter_mut().zip(results) {
                    Reg::store(l, out.as_mut_ptr().add(i), result);
                }
            }
        }
        out
    }
}

#[test]
fn nibbles_of_any_word_are_its_lowest_four_bits_and_a_shift_keeps_the_others() {
    // every code in every place, among ones and among zeros; patterns of NaN; others
    let codes = (0..16u32).flat_map(|code| (0..8).map(move |n| code << (4 * n)));
    let words = codes.flat_map(|word| [word, !word]).chain([0x7f80_0001, 0xffc0_0000, 0xff80_0000]);
    let mut words: Vec<u32> = words.chain((0..2_000u32).map(|i| i.wrapping_mul(2_654_435_761))).collect();
    words.resize(words.len().next_multiple_of(LANES), u32::MAX);
    let lanes: Vec<f32> = words.iter().map(|&word| f32::from_bits(word)).collect();
    for simd in simds() {
        let [codes, centered, next] = dispatch(simd, Nibbles(&lanes));
        for (i, word) in words.iter().enumerate() {
            let code = (word & 15) as f32;
            let want = [code, code - 8.0, f32::from_bits(word >> 4)].map(f32::to_bits);
            let got = [codes[i], centered[i], next[i]].map(f32::to_bits);
            assert_eq!(got, want, "{simd}, {word:08x}");
        }
    }
}
