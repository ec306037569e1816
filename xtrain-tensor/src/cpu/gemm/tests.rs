//! Checks every instruction set and thread count against loops written from docs/numerics.md.
use std::ops::Range;

use super::*;
use crate::cpu::Simd;
use crate::device::Device;
use crate::math::fma;
use crate::testing::{assert_bits_eq, simds};

/// Values with denormals, exact zeros of both signs, ties, and products that cancel.
fn values(seed: u32, n: usize) -> Vec<f32> {
    let mut s = seed.wrapping_mul(2_654_435_761) | 1;
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 17;
            s ^= s << 5;
            let sign = s & 0x8000_0000;
            match s % 23 {
                0 => f32::from_bits(sign),
                1 => f32::from_bits(sign | s >> 10),
                2 => f32::from_bits(sign | 0x2000_0000 | s >> 9),
                3 => (s >> 28) as f32 - 8.0,
                _ => (s as i32) as f32 / (1u32 << 31) as f32,
            }
        })
        .collect()
}

/// y + chunks, as in docs/numerics.md, section 2.
fn dot(y: f32, n: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
    (0..n).step_by(256).fold(y, |y, from| {
        let chunk = (from..n.min(from + 256)).fold(0.0f32, |c, k| fma(a(k), b(k), c));
        y + chunk
    })
}

fn devices() -> impl Iterator<Item = (Simd, Device)> {
    simds().into_iter().flat_map(|s| [1, 3].map(|threads| (s, Device::cpu_with(threads, s))))
}

fn same(got: &[f32], want: &[f32], what: &str) {
    assert_bits_eq(got, want, what);
}

const SIZES: [[usize; 3]; 14] = [
    [1, 1, 1],
    [1, 256, 33],
    [2, 257, 129],
    [1, 70, 200],
    [3, 31, 70],
    [4, 300, 64],
    [5, 0, 3],
    [7, 513, 31],
    [11, 5, 95],
    [13, 64, 96],
    [12, 255, 32],
    [25, 40, 65],
    [193, 20, 34],
    [40, 260, 100],
];

#[test]
fn products_have_the_bits_of_the_plain_loops_on_every_instruction_set_and_thread_count() {
    for [m, k, n] in SIZES {
        let (x, w, before) = (values(1, m * k), values(2, n * k), values(3, m * n));
        let want = |y0: &[f32]| -> Vec<f32> {
            let at = |i: usize| dot(y0[i], k, |j| x[i / n * k + j], |j| w[i % n * k + j]);
            (0..m * n).map(at).collect()
        };
        let (from_zero, from_y) = (want(&vec![0.0; m * n]), want(&before));
        for (simd, device) in devices() {
            let cpu = device.as_cpu().unwrap();
            let panels = Panels::of_weight(cpu, &w, [n, k]).unwrap();
            let what = format!("{simd} {m}x{k}x{n}");
            let mut y = vec![f32::NAN; m * n];
            product(cpu, Matrix::new(&x, m, k), panels.view(), &mut y, Beta::Zero);
            same(&y, &from_zero, &what);
            let mut y = before.clone();
            product(cpu, Matrix::new(&x, m, k), panels.view(), &mut y, Beta::One);
            same(&y, &from_y, &what);
        }
    }
}

#[test]
fn the_input_gradient_of_a_group_accumulates_over_its_weights() {
    let (m, inputs, outs) = (5, 37, [300, 100, 520]);
    let w = outs.map(|o| values(o as u32, o * inputs));
    let dy = outs.map(|o| values(7 + o as u32, m * o));
    for (simd, device) in devices() {
        let cpu = device.as_cpu().unwrap();
        let mut dx = vec![f32::NAN; m * inputs];
        let mut want = vec![0.0; m * inputs];
        for (g, o) in outs.into_iter().enumerate() {
            let panels = Panels::of_weight_transposed(cpu, &w[g], [o, inputs]).unwrap();
            let mut column = vec![0.0; o];
            panels.column(3, &mut column);
            assert_eq!(column[o - 1].to_bits(), w[g][(o - 1) * inputs + 3].to_bits());
            assert_eq!(size_of_val(&panels.rows[..]), o * inputs.next_multiple_of(32) * 4);
            let beta = if g == 0 { Beta::Zero } else { Beta::One };
            product(cpu, Matrix::new(&dy[g], m, o), panels.view(), &mut dx, beta);
            for (i, y) in want.iter_mut().enumerate() {
                *y = dot(*y, o, |j| dy[g][i / inputs * o + j], |j| w[g][j * inputs + i % inputs]);
            }
        }
        same(&dx, &want, &simd.to_string());
    }
}

#[test]
fn weight_gradients_count_chunks_from_each_samples_first_row() {
    let first = 0..1;
    let split: [&[Range<usize>]; 4] =
        [std::slice::from_ref(&first), &[0..300, 300..311, 311..900], &[3..260, 400..400], &[]];
    for (samples, [o, i]) in split.into_iter().zip([[1, 1], [70, 45], [13, 100], [3, 3]]) {
        let (dy, x, before) = (values(8, 900 * o), values(9, 900 * i), values(10, o * i));
        let mut want = before.clone();
        for s in samples {
            for (at, g) in want.iter_mut().enumerate() {
                let (o_at, i_at) = (at / i, at % i);
                *g = dot(*g, s.len(), |r| dy[(s.start + r) * o + o_at], |r| x[(s.start + r) * i + i_at]);
            }
        }
        for (simd, device) in devices() {
            let mut g = before.clone();
            weight_gradient(device.as_cpu().unwrap(), &dy, &x, samples, &mut g, [o, i]);
            same(&g, &want, &format!("{simd} {o}x{i}"));
        }
    }
}
