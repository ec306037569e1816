//! Gradients of a bias and of a gain: from zeros, and added to an earlier sum.
#![cfg(xtrain_emu)]
use super::{Gpu, Grid, args, gpu};
use crate::device::gpu::{Emulation, EmulatorBuild, LaunchOptions, Zeros};
use crate::ops::{self, Norm, Samples};
use crate::testing::{arbitrary, compare_bits};
use crate::{Device, Dtype, Tensor, ThreadSchedule};

/// The gradients of a bias and of a gain after each of two accumulations.
fn sums(device: &Device) -> Vec<Vec<f32>> {
    let tensor =
        |shape: &[usize], seed| Tensor::new(device, shape, arbitrary(shape.iter().product(), seed)).unwrap();
    let (x, dy, gain, samples) =
        (tensor(&[6, 40], 1), tensor(&[6, 40], 2), tensor(&[40], 3), Samples::of_lengths([4, 2]));
    let zeros = || Tensor::zeros(device, &[40], Dtype::F32).unwrap();
    let (mut db, mut dg, mut values) = (zeros(), zeros(), Vec::new());
    for _ in 0..2 {
        ops::linear_backward_bias(&mut db, &dy, &samples).unwrap();
        ops::rms_norm_backward(&x, Norm { gain: &gain, eps: 1e-6 }, &dy, &mut dg, &samples, None).unwrap();
        values.extend([&db, &dg].map(|sum| sum.to_vec::<f32>().unwrap()));
    }
    values
}

#[test]
fn a_second_accumulation_is_added_to_the_first() {
    let want = sums(&Device::cpu());
    for case in 0..4 {
        let device = gpu(case);
        for (at, (got, want)) in sums(&device).iter().zip(&want).enumerate() {
            compare_bits(got, want).unwrap_or_else(|e| panic!("list {at} on {device}, seeds 1 to 3: {e}"));
        }
    }
}

#[test]
fn an_accumulator_on_another_gpu_is_an_error() {
    let [here, there] = [gpu(0), gpu(1)];
    let dy = Tensor::new(&here, &[6, 40], arbitrary(240, 1)).unwrap();
    let mut db = Tensor::zeros(&there, &[40], Dtype::F32).unwrap();
    let refused = ops::linear_backward_bias(&mut db, &dy, &Samples::of_lengths([6]));
    assert!(matches!(refused, Err(crate::Error::Device { .. })), "{refused:?}");
    assert_eq!(db.to_vec::<f32>().unwrap(), [0.0; 40]);
}

/// An operation that fails before its kernel is queued leaves the zeros of the accumulator as they are: a later reader
/// still queues them.
#[test]
fn an_accumulation_that_fails_does_not_count_as_a_write() {
    let plain = Emulation::new(ThreadSchedule::Forward, EmulatorBuild::Plain);
    let gpu = Gpu::emulated_with(Emulation { late_errors: true, ..plain }, LaunchOptions::default()).unwrap();
    let device = Device::Gpu(gpu.clone());
    let dy = Tensor::new(&device, &[6, 40], arbitrary(240, 1)).unwrap();
    let mut db = Tensor::zeros(&device, &[40], Dtype::F32).unwrap();
    let (x, y) = (gpu.upload(&[1f32; 64]).unwrap(), gpu.zeros(256 * 4).unwrap());
    // SAFETY: x holds 64 values and y 256, as the kernel expects.
    let failed = unsafe {
        gpu.launch("fault_divergent_barrier", Grid::blocks([1, 1, 1], 64), args![x.arg(), y.arg()])
    };
    failed.and_then(|()| gpu.submit_step()).unwrap();
    // the index list cannot be uploaded
    let error = ops::linear_backward_bias(&mut db, &dy, &Samples::of_lengths([6])).unwrap_err();
    assert!(matches!(error, crate::Error::Device { .. }), "{error:?}");
    assert!(db.deferred::<Zeros>().is_some(), "the zeros count as written");
}
