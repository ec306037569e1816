//! Weight gradients that share a launch: the bits of each alone, and when the launch is queued.
use super::super::weights::{RowProduct, weights};
use super::{Tile, as_gpu, gpu, on, rounded};
use crate::ops::{self, Samples};
use crate::reference::{self, Hopper, Mma};
use crate::testing::{arbitrary, checked, compare_bits};
use crate::{Device, Dtype, Result, Tensor, ThreadSchedule};

/// Outputs and inputs of the products of a launch: several tiles of either size, partial tiles, unaligned rows.
const SHAPES: [[usize; 2]; 5] = [[200, 72], [1, 300], [64, 129], [130, 140], [7, 5]];

/// `before + rowsum dy x` by definition.
fn expected(case: &Case, at: usize, dtype: Dtype) -> Vec<f32> {
    let ([outs, width], rows) = (SHAPES[at], case.samples.rows());
    let mut dw = if case.zeros(at) { vec![0.0; outs * width] } else { case.before(at) };
    let (dy, x) = (case.dy(at), case.x(at));
    if dtype == Dtype::F32 {
        reference::linear_dw::<reference::F32>(&mut dw, &dy, &x, width, &case.samples);
        return dw;
    }
    let (dy, x) = (rounded(&dy), rounded(&x));
    assert_eq!(dy.len(), rows * outs);
    for (i, sum) in dw.iter_mut().enumerate() {
        let (o, k) = (i / width, i % width);
        for r in case.samples.ranges() {
            let (a, b) = (
                |n: usize| dy[(r.start + n) * outs + o].to_f32(),
                |n: usize| x[(r.start + n) * width + k].to_f32(),
            );
            *sum = reference::dot::<Mma<Hopper>>(*sum, r.len(), a, b);
        }
    }
    dw
}

/// The operands of [`SHAPES`].
struct Case {
    samples: Samples,
    seed: u64,
}

impl Case {
    fn before(&self, at: usize) -> Vec<f32> {
        arbitrary(SHAPES[at][0] * SHAPES[at][1], self.seed + at as u64)
    }
    fn dy(&self, at: usize) -> Vec<f32> {
        arbitrary(self.samples.rows() * SHAPES[at][0], self.seed + 10 + at as u64)
    }
    fn x(&self, at: usize) -> Vec<f32> {
        arbitrary(self.samples.rows() * SHAPES[at][1], self.seed + 20 + at as u64)
    }
    /// Whether the product starts from zeros and not from an earlier sum.
    fn zeros(&self, at: usize) -> bool {
        at % 2 == 1
    }
    fn operands(&self, device: &Device, at: usize, dtype: Dtype) -> [Tensor; 2] {
        let ([outs, width], rows) = (SHAPES[at], self.samples.rows());
        [on(device, [rows, outs], &self.dy(at), dtype), on(device, [rows, width], &self.x(at), dtype)]
    }
    /// The gradients before the launch.
    fn gradients(&self, device: &Device) -> Vec<Tensor> {
        let of = |at: usize| match self.zeros(at) {
            true => Tensor::zeros(device, &SHAPES[at], Dtype::F32).unwrap(),
            false => on(device, SHAPES[at], &self.before(at), Dtype::F32),
        };
        (0..SHAPES.len()).map(of).collect()
    }
}

fn case(lengths: &[usize], seed: u64) -> Case {
    Case { samples: Samples::of_lengths(lengths.iter().copied()), seed }
}

/// One launch with all shapes.
fn launched(case: &Case, device: &Device, dtype: Dtype, tile: Tile) -> Result<Vec<Tensor>> {
    let gpu = as_gpu(device);
    let (mut gradients, mut kept, mut products) = (case.gradients(device), Vec::new(), Vec::new());
    for (at, dw) in gradients.iter_mut().enumerate() {
        let [dy, x] = case.operands(device, at, dtype);
        let (to, accumulate) = (dw.at_mut(gpu, Dtype::F32)?, !case.zeros(at));
        let (dy_at, x_at) = (dy.at(gpu, dtype)?, x.at(gpu, dtype)?);
        products.push(RowProduct { dw: to, accumulate, dy: dy_at, x: x_at, shape: SHAPES[at] });
        kept.push((dy, x));
    }
    // SAFETY: operands of these shapes, each gradient in a buffer of its own.
    unsafe { weights(gpu, &products, dtype, &case.samples, tile)? };
    Ok(gradients)
}

/// Compares every gradient of a launch with its definition, in both dtypes and tiles. Returns the number of values.
pub(crate) fn gradients() -> std::result::Result<usize, String> {
    let mut compared = 0;
    for (i, (lengths, seed)) in [(&[3, 40][..], 70), (&[300, 1, 17], 170)].into_iter().enumerate() {
        let case = case(lengths, seed);
        for dtype in [Dtype::F32, Dtype::BF16] {
            for (j, tile) in [Tile::Small, Tile::Large].into_iter().enumerate() {
                let device = gpu(2 * i + j);
                let label = |e: &dyn std::fmt::Display| {
                    format!(
                        "gate gpu linear: shared launch, {lengths:?} {dtype} {tile:?} on {device}, seed {seed}: {e}"
                    )
                };
                let got = launched(&case, &device, dtype, tile).map_err(|e| label(&e))?;
                for (at, got) in got.iter().enumerate() {
                    let want = expected(&case, at, dtype);
                    let got = got.to_vec::<f32>().map_err(|e| label(&e))?;
                    compare_bits(&got, &want).map_err(|e| label(&format!("{:?}: {e}", SHAPES[at])))?;
                    compared += want.len();
                }
            }
        }
    }
    Ok(compared)
}

#[test]
fn gradients_that_share_a_launch_have_the_bits_of_each_alone() {
    let compared = gradients().unwrap_or_else(|e| panic!("{e}"));
    println!("weight gradients in one launch: {compared} values, 0 differing bits");
}

#[test]
fn a_shared_launch_has_no_invalid_access_and_no_race() {
    let (case, device) = (case(&[3, 40], 70), checked(ThreadSchedule::Random(9)));
    for (dtype, tile) in [(Dtype::F32, Tile::Small), (Dtype::F32, Tile::Large), (Dtype::BF16, Tile::Large)] {
        let got = launched(&case, &device, dtype, tile).unwrap();
        for (at, got) in got.iter().enumerate() {
            compare_bits(&got.to_vec::<f32>().unwrap(), &expected(&case, at, dtype)).unwrap();
        }
    }
}

/// The gradients after two micro-batches of the public operation. With `interrupted`, one gradient is read after the
/// second product of the first one, and the operands of the first product are changed in place.
fn of_micro_batches(device: &Device, dtype: Dtype, interrupted: bool) -> Result<Vec<Vec<f32>>> {
    let [first, second] = [case(&[3, 40], 70), case(&[9, 2, 30], 370)];
    let mut gradients = first.gradients(device);
    for case in [&first, &second] {
        for (at, dw) in gradients.iter_mut().enumerate() {
            let [mut dy, x] = case.operands(device, at, dtype);
            ops::linear_backward_weight(dw, &dy, &x, &case.samples)?;
            if interrupted && at == 1 {
                dw.to_vec::<f32>()?;
            }
            if interrupted && dtype == Dtype::F32 {
                let copy = dy.clone();
                ops::accumulate(&mut dy, &copy)?;
            }
        }
    }
    gradients.iter().map(Tensor::to_vec).collect()
}

/// Compares two micro-batches on the emulator with the reference. Returns the number of values.
pub(crate) fn micro_batches() -> std::result::Result<usize, String> {
    let mut compared = 0;
    for dtype in [Dtype::F32, Dtype::BF16] {
        for interrupted in [false, true] {
            let device = gpu(usize::from(interrupted));
            let tensor_core = as_gpu(&device).tensor_core().expect("the emulator has a model");
            let label =
                format!("gate gpu linear: micro-batches, {dtype}, interrupted {interrupted}, seeds 70, 370");
            let [want, got] = [&Device::reference_of(tensor_core), &device].map(|device| {
                of_micro_batches(device, dtype, interrupted).map_err(|e| format!("{label}: {e}"))
            });
            for (at, (got, want)) in got?.iter().zip(&want?).enumerate() {
                compare_bits(got, want).map_err(|e| format!("{label}, {:?}: {e}", SHAPES[at]))?;
                compared += want.len();
            }
        }
    }
    Ok(compared)
}

#[test]
fn gradients_of_micro_batches_have_the_bits_of_the_reference() {
    let compared = micro_batches().unwrap_or_else(|e| panic!("{e}"));
    println!("weight gradients of two micro-batches: {compared} values, 0 differing bits");
}

/// The launches of `count` weight gradients, when the first of them is read.
fn launches(count: usize, shape: [usize; 2]) -> [u64; 2] {
    let (device, samples) = (gpu(0), Samples::of_lengths([2]));
    let of = |columns| Tensor::zeros(&device, &[2, columns], Dtype::F32).unwrap();
    let (dy, x) = (of(shape[0]), of(shape[1]));
    let mut gradients: Vec<Tensor> =
        (0..count).map(|_| Tensor::zeros(&device, &shape, Dtype::F32).unwrap()).collect();
    for x in [&dy, &x] {
        x.to_vec::<f32>().unwrap(); // its zeros are queued
    }
    let counted = || as_gpu(&device).gpu_counters().launches;
    let before = counted();
    for dw in &mut gradients {
        ops::linear_backward_weight(dw, &dy, &x, &samples).unwrap();
    }
    let queued = counted() - before;
    gradients[0].to_vec::<f32>().unwrap();
    [queued, counted() - before]
}

#[test]
fn gradients_wait_for_others_until_they_fill_the_multiprocessors() {
    // ten of them at most
    assert_eq!(launches(9, [3, 4]), [0, 1]);
    assert_eq!(launches(10, [3, 4]), [1, 1]);
    assert_eq!(launches(11, [3, 4]), [1, 1]);
    // 66 tiles of 128 x 128 are half of an H200
    assert_eq!(launches(1, [66 * 128, 1]), [0, 1]);
    assert_eq!(launches(2, [66 * 128, 1]), [1, 1]);
}

#[test]
fn a_gradient_that_is_dropped_is_not_written() {
    let (device, samples) = (gpu(0), Samples::of_lengths([2]));
    let of = |columns| Tensor::zeros(&device, &[2, columns], Dtype::F32).unwrap();
    let (dy, x) = (of(3), of(4));
    let gradient = || Tensor::zeros(&device, &[3, 4], Dtype::F32).unwrap();
    let (mut dropped, mut kept) = (gradient(), gradient());
    ops::linear_backward_weight(&mut dropped, &dy, &x, &samples).unwrap();
    ops::linear_backward_weight(&mut kept, &dy, &x, &samples).unwrap();
    drop(dropped);
    assert_eq!(kept.to_vec::<f32>().unwrap(), [0.0; 12]);
}

#[test]
#[cfg(feature = "faults")]
fn a_lost_gradient_and_samples_of_another_group_are_detected() {
    use crate::faults::{Fault, with};
    for fault in [Fault::LastGradientOfGroupLost, Fault::GradientsOfOtherSamplesJoined] {
        assert!(with(fault, micro_batches).is_err(), "{fault}");
    }
}
