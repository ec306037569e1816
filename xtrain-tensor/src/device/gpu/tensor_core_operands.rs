//! Operands on which the results of tensor-core instructions differ wherever their arithmetic does.
use super::handle::Gpu;
use super::launch::{Grid, args};
use crate::error::Result;
use crate::rng::{Purpose, draw};
use half::bf16;

/// Kinds of values. Each product of a launch has one kind.
pub(crate) const KINDS: [&str; 9] = [
    "similar sizes",
    "sizes from 2^-30 to 2^30",
    "sizes from 2^-30 to 2^30, and zeros",
    "sums that cancel",
    "denormals and products around 2^-145",
    "sums around 2^128",
    "zeros times 2^110, and products around 2^-50",
    "infinities and NaN",
    "products from 2^-156 to 2^-124, zeros, and initial sums of zero",
];
/// Number of products in a launch; each has 4096 results.
const PRODUCTS: usize = 2 * KINDS.len();
pub(crate) const SIDE: usize = 64;

/// `a` and `b` as bits, `[T, 64, 64]` each, and the initial sum `c`.
#[derive(Clone)]
pub(crate) struct Operands {
    #[cfg(all(test, xtrain_emu))]
    pub(crate) seed: u64,
    pub(crate) a: Vec<u16>,
    pub(crate) b: Vec<u16>,
    pub(crate) c: Vec<f32>,
}

/// Value `i` of operand `which` (a, b, c).
fn value(seed: u64, which: u64, i: usize) -> f32 {
    let [x, y, z, w] = draw(seed, which, i as u32, Purpose::Weights);
    let unit = x as f32 / 2f32.powi(31) - 1.0;
    let between = |low: i32, high: i32| unit * 2f32.powi(low + (y % (high - low + 1) as u32) as i32);
    match i / (SIDE * SIDE) % KINDS.len() {
        0 => unit,
        1 => between(-30, 30),
        2 if z % 3 == 0 => 0.0,
        2 => between(-30, 30),
        3 if which == 0 && i % 2 == 1 => -1.0 + unit / 64.0,
        3 => 1.0 + unit / 64.0,
        4 if which == 2 || z % 4 == 0 => f32::from_bits(x & 0x80ff_ffff),
        4 => between(-76, -70),
        5 if which == 2 => between(124, 127),
        5 => between(60, 63),
        6 if which == 2 => between(-80, -60),
        6 if i.is_multiple_of(2) => [0.0, between(100, 120)][which as usize],
        6 => [between(-60, -40), unit][which as usize],
        7 if z % 300 == 0 => [f32::INFINITY, f32::NEG_INFINITY, f32::NAN][w as usize % 3],
        7 => unit,
        _ if z.is_multiple_of(3) => 0f32.copysign(unit),
        _ if which == 2 => 0f32.copysign(unit) + f32::from_bits(x & 0x8000_ffff) * (z % 2) as f32,
        _ => between(-78, -62),
    }
}

impl Operands {
    pub(crate) fn at_random(seed: u64) -> Operands {
        let n = PRODUCTS * SIDE * SIDE;
        let bits = |which| (0..n).map(|i| bf16::from_f32(value(seed, which, i)).to_bits()).collect();
        Operands {
            #[cfg(all(test, xtrain_emu))]
            seed,
            a: bits(0),
            b: bits(1),
            c: (0..n).map(|i| value(seed, 2, i)).collect(),
        }
    }

    /// The result of a kernel.
    pub(crate) fn by(&self, gpu: &Gpu, kernel: &'static str) -> Result<Vec<f32>> {
        let (a, b) = (gpu.upload(&self.a)?, gpu.upload(&self.b)?);
        let (c, d) = (gpu.upload(&self.c)?, gpu.zeros(self.c.len() * 4)?);
        let grid = Grid::blocks([PRODUCTS, 1, 1], 128).shared(17 << 10);
        // SAFETY: a and b are [T, 64, 64] bf16, c and d [T, 64, 64] f32; one block per product.
        unsafe { gpu.launch(kernel, grid, args![a.arg(), b.arg(), c.arg(), d.arg()])? };
        gpu.download(&d)
    }
}
