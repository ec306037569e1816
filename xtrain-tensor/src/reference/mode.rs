//! The arithmetic modes of the reference.
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::{Add, Div, Mul, Neg, Range, Sub};

use crate::dtype::round_bf16;
use crate::math;
use crate::tensor_core::{Model, TensorCore};

/// A scalar type of the reference.
pub(crate) trait Scalar:
    Copy
    + Debug
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    const ZERO: Self;
    const ONE: Self;
    const NEG_INFINITY: Self;

    fn of(x: f64) -> Self;
    fn fma(self, b: Self, c: Self) -> Self;
    fn sqrt(self) -> Self;
    fn exp(self) -> Self;
    fn log(self) -> Self;

    /// `b > a ? b : a`.
    fn max(self, b: Self) -> Self {
        if b > self { b } else { self }
    }
}

impl Scalar for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;

    fn of(x: f64) -> f32 {
        x as f32
    }
    fn fma(self, b: f32, c: f32) -> f32 {
        math::fma(self, b, c)
    }
    fn sqrt(self) -> f32 {
        self.sqrt()
    }
    fn exp(self) -> f32 {
        math::exp(self)
    }
    fn log(self) -> f32 {
        math::log(self)
    }
}

/// The order in which products are summed, and where values are rounded.
pub(crate) trait Mode {
    type S: Scalar;

    /// Indices per chunk of a product.
    const CHUNK: usize;

    /// One chunk: the sum of `a(i) b(i)` over `len <= CHUNK` indices, from +0.
    fn chunk(len: usize, a: impl Fn(usize) -> Self::S, b: impl Fn(usize) -> Self::S) -> Self::S;

    fn add(y: Self::S, chunk: Self::S) -> Self::S;

    /// One running sum without chunks: continues `y` over the absolute indices `range`. In bf16: blocks of 32 (on a
    /// GPU: 16) at absolute indices, with zeros outside the range.
    fn chain(
        y: Self::S,
        range: Range<usize>,
        a: impl Fn(usize) -> Self::S,
        b: impl Fn(usize) -> Self::S,
    ) -> Self::S;

    /// Rounds a stored activation or an operand of a product.
    fn round(x: Self::S) -> Self::S;
}

/// One scalar type everywhere.
#[derive(Debug)]
pub(crate) struct Plain<S>(PhantomData<S>);

/// f32 everywhere.
pub(crate) type F32 = Plain<f32>;

/// bf16 products on the CPU (`tdpbf16ps`), f32 elsewhere.
#[derive(Debug)]
pub(crate) struct Bf16;

impl<S: Scalar> Mode for Plain<S> {
    type S = S;
    const CHUNK: usize = 256;

    fn chunk(len: usize, a: impl Fn(usize) -> S, b: impl Fn(usize) -> S) -> S {
        Self::chain(S::ZERO, 0..len, a, b)
    }
    fn add(y: S, chunk: S) -> S {
        y + chunk
    }
    fn chain(y: S, range: Range<usize>, a: impl Fn(usize) -> S, b: impl Fn(usize) -> S) -> S {
        range.fold(y, |y, i| a(i).fma(b(i), y))
    }
    fn round(x: S) -> S {
        x
    }
}

impl Mode for Bf16 {
    type S = f32;
    const CHUNK: usize = 32;

    fn chunk(len: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
        let (mut x, mut y) = ([0.0; 32], [0.0; 32]);
        for k in 0..len {
            (x[k], y[k]) = (no_denormal(a(k)), no_denormal(b(k)));
        }
        let half = |odd: usize| (odd..32).step_by(2).fold(0.0, |c, k| fma_flushed(x[k], y[k], c));
        add_flushed(half(0), half(1))
    }

    fn add(y: f32, chunk: f32) -> f32 {
        add_flushed(no_denormal(y), chunk)
    }

    fn chain(mut y: f32, range: Range<usize>, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
        let inside = |j: usize| range.contains(&j);
        for start in (range.start / 32 * 32..range.end).step_by(32) {
            let a = |i: usize| if inside(start + i) { a(start + i) } else { 0.0 };
            let b = |i: usize| if inside(start + i) { b(start + i) } else { 0.0 };
            y = Bf16::add(y, Bf16::chunk(32, a, b));
        }
        y
    }

    fn round(x: f32) -> f32 {
        round_bf16(x)
    }
}

/// A tensor core as a type.
pub(crate) trait Core {
    const MODEL: Model;
}

/// [`TensorCore::Ampere`].
#[derive(Debug)]
pub(crate) struct Ampere;

/// [`TensorCore::Hopper`].
#[derive(Debug)]
pub(crate) struct Hopper;

impl Core for Ampere {
    const MODEL: Model = TensorCore::Ampere.model();
}
impl Core for Hopper {
    const MODEL: Model = TensorCore::Hopper.model();
}

/// bf16 products on a GPU (`mma.sync`, steps of 16), f32 elsewhere.
#[derive(Debug)]
pub(crate) struct Mma<C>(PhantomData<C>);

impl<C: Core> Mode for Mma<C> {
    type S = f32;
    const CHUNK: usize = 256;

    fn chunk(len: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
        Self::chain(0.0, 0..len, a, b)
    }
    fn add(y: f32, chunk: f32) -> f32 {
        y + chunk
    }
    fn chain(y: f32, range: Range<usize>, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
        let step = |y, start: usize| {
            let value = |f: &dyn Fn(usize) -> f32| {
                std::array::from_fn(|i| if range.contains(&(start + i)) { f(start + i) } else { 0.0 })
            };
            C::MODEL.step(&value(&a), &value(&b), y)
        };
        (range.start / 16 * 16..range.end).step_by(16).fold(y, step)
    }
    fn round(x: f32) -> f32 {
        round_bf16(x)
    }
}

/// Replaces a value with exponent field 0 by the zero of its sign (denormals are zero).
fn no_denormal(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// `fma` with flush to zero: a result that is tiny after rounding to 24 bits with unbounded exponent (x86's rule)
/// becomes the zero of its sign.
#[inline]
pub(crate) fn fma_flushed(a: f32, b: f32, c: f32) -> f32 {
    const SCALE: f32 = (1u128 << 64) as f32;
    let r = math::fma(a, b, c);
    if r != 0.0 && r.abs() <= f32::MIN_POSITIVE && math::fma(a * SCALE, b, c * SCALE).abs() < TINY {
        return 0f32.copysign(r);
    }
    r
}

/// 2^-62: the smallest normal number, scaled by 2^64.
const TINY: f32 = 1.0 / (1u64 << 62) as f32;

/// `a + b` with flush to zero. A tiny sum of two f32 is exact, so rounding cannot lift it out of the tiny range.
fn add_flushed(a: f32, b: f32) -> f32 {
    no_denormal(a + b)
}
