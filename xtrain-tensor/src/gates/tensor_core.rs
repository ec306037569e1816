//! Gate: a tensor core has the bits of the emulator's model and the properties that kernels rely on: its operands can
//! be swapped, a step of zeros changes nothing, and wgmma has the bits of mma.sync.
#![cfg(xtrain_emu)]
use half::bf16;

use crate::gpu::{Gpu, Grid, args, mma_dot16};
use crate::rng::{Purpose, draw};
use crate::testing::{compare_bits, gpus};
use crate::{Device, ThreadSchedule};

/// Number of products in a launch; each has 4096 results.
const PRODUCTS: usize = 12;
const SIDE: usize = 64;

/// `a` and `b` as bits, `[T, 64, 64]` each, and the initial sum `c`.
#[derive(Clone)]
struct Operands {
    a: Vec<u16>,
    b: Vec<u16>,
    c: Vec<f32>,
}

impl Operands {
    /// Alternating products: of values of similar size, of values from 2^-30 to 2^30, of these with zeros, and of
    /// sums that cancel.
    fn at_random(seed: u64) -> Operands {
        let n = PRODUCTS * SIDE * SIDE;
        let value = |which: u64, i: usize| {
            let [x, y, z, _] = draw(seed, which, i as u32, Purpose::Weights);
            let unit = x as f32 / 2f32.powi(31) - 1.0;
            match i / (SIDE * SIDE) % 4 {
                0 => unit,
                1 => unit * 2f32.powi((y % 61) as i32 - 30),
                2 if z % 3 == 0 => 0.0,
                2 => unit * 2f32.powi((y % 61) as i32 - 30),
                _ if which == 0 => {
                    if i.is_multiple_of(2) {
                        1.0 + unit / 64.0
                    } else {
                        -1.0 + unit / 64.0
                    }
                }
                _ => 1.0 + unit / 64.0,
            }
        };
        let bits = |which| (0..n).map(|i| bf16::from_f32(value(which, i)).to_bits()).collect();
        Operands { a: bits(0), b: bits(1), c: (0..n).map(|i| value(2, i)).collect() }
    }

    /// The result of a kernel.
    fn by(&self, gpu: &Gpu, kernel: &'static str) -> Vec<f32> {
        let [a, b] = [&self.a, &self.b].map(|x| gpu.upload(x).unwrap());
        let (c, d) = (gpu.upload(&self.c).unwrap(), gpu.zeros(self.c.len() * 4).unwrap());
        let grid = Grid::blocks([PRODUCTS, 1, 1], 128).shared(17 << 10);
        // SAFETY: a and b are [T, 64, 64] bf16, c and d [T, 64, 64] f32; one block per product.
        unsafe { gpu.launch(kernel, grid, args![a.arg(), b.arg(), c.arg(), d.arg()]).unwrap() };
        gpu.download(&d).unwrap()
    }

    /// The result of the emulator's model.
    fn by_model(&self) -> Vec<f32> {
        let line = |x: &[u16], product: usize, line: usize, k: usize| -> [u16; 16] {
            x[(product * SIDE + line) * SIDE + k..][..16].try_into().expect("16 values")
        };
        let at = |i: usize| {
            let (product, row, column) = (i / (SIDE * SIDE), i / SIDE % SIDE, i % SIDE);
            let step =
                |y, k| mma_dot16(&line(&self.a, product, row, k), &line(&self.b, product, column, k), y);
            (0..SIDE).step_by(16).fold(self.c[i], step)
        };
        (0..self.c.len()).map(at).collect()
    }

    /// The same sums with steps of zeros before, between and after the two steps of 16 that are kept.
    fn spread(&self) -> [Operands; 2] {
        let step = |k: usize| k / 16;
        let keep = |x: &[u16], from: [Option<usize>; 4]| -> Vec<u16> {
            let at = |i: usize| from[step(i % SIDE)].map_or(0, |s| x[i / SIDE * SIDE + s * 16 + i % 16]);
            (0..x.len()).map(at).collect()
        };
        [[Some(0), Some(1), None, None], [None, Some(0), None, Some(1)]].map(|from| Operands {
            a: keep(&self.a, from),
            b: keep(&self.b, from),
            c: self.c.clone(),
        })
    }
}

fn same(gpu: &Gpu, what: &str, got: &[f32], want: &[f32]) {
    compare_bits(got, want).unwrap_or_else(|e| panic!("{what} on {}: {e}", gpu.name()));
    println!("{what} on {}: {} values, 0 differ", gpu.name(), want.len());
}

fn on(device: &Device) -> &Gpu {
    match device {
        Device::Gpu(gpu) => gpu,
        Device::Reference(_) | Device::Cpu(_) => panic!("expected a GPU, found {device}"),
    }
}

#[test]
fn a_product_equals_the_model_in_both_orders_of_its_operands() {
    for device in gpus(&[ThreadSchedule::Random(3)]) {
        let (gpu, x) = (on(&device), Operands::at_random(1));
        let want = x.by_model();
        same(gpu, "mma.sync against the model", &x.by(gpu, "tensor_core_mma"), &want);
        same(gpu, "mma.sync with swapped operands", &x.by(gpu, "tensor_core_swapped"), &want);
    }
}

#[test]
fn a_step_of_zeros_changes_no_bit() {
    for device in gpus(&[ThreadSchedule::Forward]) {
        let (gpu, [first, spread]) = (on(&device), Operands::at_random(2).spread());
        let [want, got] = [first, spread].map(|x| x.by(gpu, "tensor_core_mma"));
        same(gpu, "steps of zeros", &got, &want);
    }
}

#[test]
fn wgmma_has_the_bits_of_mma_sync() {
    for device in gpus(&[ThreadSchedule::Random(4)]) {
        let (gpu, x) = (on(&device), Operands::at_random(3));
        if !gpu.has_wgmma() {
            println!("wgmma on {}: not an sm_90", gpu.name());
            continue;
        }
        same(gpu, "wgmma", &x.by(gpu, "tensor_core_wgmma"), &x.by(gpu, "tensor_core_mma"));
    }
}
