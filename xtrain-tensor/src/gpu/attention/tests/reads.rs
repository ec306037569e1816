//! Gate: decode attention reads each visible key and value once per group of query heads. The checked device counts
//! the reads of the kernels, and the launcher's own counter must agree.
#![cfg(xtrain_emu)]
use crate::gpu::{watch, watched};
use crate::ops::{self, AttnMask, Slots};
use crate::testing::{self, arbitrary};
use crate::{Device, Dtype, Tensor, ThreadSchedule};

/// Query heads, kv heads, head size; positions of the rows; window.
type Shape = ([usize; 3], &'static [u32], Option<usize>);

const SHAPES: [Shape; 6] = [
    ([2, 1, 8], &[0, 65, 32], None),
    ([4, 2, 64], &[129], None),
    ([14, 2, 16], &[64, 3], Some(7)),
    ([16, 1, 24], &[128], Some(64)),
    ([20, 1, 32], &[69], None),
    ([3, 3, 72], &[62, 17], None),
];

/// Bytes of keys and values: read by the kernels, counted by the launcher, and the minimum.
fn read(device: &Device, dtype: Dtype, ([nh, nkv, hd], at, window): Shape) -> [u64; 3] {
    let Device::Gpu(gpu) = device else { panic!("expected a GPU, found {device}") };
    let (page, each) = (16, 10);
    let table: Vec<Vec<u32>> = (0..at.len() as u32).map(|s| (s * each..(s + 1) * each).collect()).collect();
    let slots = Slots::Pages { page, table };
    let n = at.len() * each as usize * page;
    let tensor = |shape: [usize; 3], seed| {
        let x = arbitrary(shape.iter().product(), seed);
        Tensor::new(device, &shape, x).unwrap().cast(dtype).unwrap()
    };
    let (q, k, v) = (tensor([at.len(), nh, hd], 1), tensor([n, nkv, hd], 2), tensor([n, nkv, hd], 3));
    let seq: Vec<u32> = (0..at.len() as u32).collect();
    let mask = AttnMask { seq: &seq, pos: at, slots: &slots, window };
    let mut measured = 0;
    let before = gpu.gpu_counters();
    for pool in [&k, &v] {
        watch(pool.at(gpu, dtype).unwrap().0, pool.len() * dtype.bytes());
        ops::decode_attention(&q, &k, &v, &mask).unwrap();
        measured += watched();
    }
    let counted = gpu.gpu_counters().since(before).kv_read / 2;
    let keys: usize = (0..at.len()).map(|n| mask.keys(n).len()).sum();
    [measured, counted, (2 * keys * nkv * hd * dtype.bytes()) as u64]
}

#[test]
fn decode_attention_reads_keys_and_values_once() {
    let device = testing::checked(ThreadSchedule::Random(5));
    for dtype in [Dtype::F32, Dtype::BF16] {
        for shape in SHAPES {
            let [measured, counted, ideal] = read(&device, dtype, shape);
            println!("{shape:?} in {dtype}: {measured} bytes read, {ideal} needed");
            assert_eq!(measured, counted, "{shape:?} in {dtype}: bytes read and the launcher's count differ");
            // in f32, a group of more than 16 heads reads the values more than once
            let rereads = dtype == Dtype::F32 && shape.0[0] > 16 * shape.0[1];
            assert!(rereads || 10 * measured <= 11 * ideal, "{shape:?} in {dtype}: {measured} of {ideal}");
        }
    }
}
