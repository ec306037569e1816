//! Gates: on every device, values that are not finite reach the result of the reduction that they are a part of.
use super::case::tensor;
use super::{devices, name};
#[cfg(feature = "faults")]
use crate::faults::{self, Fault};
use crate::ops::{self, AttnMask, LossRows, Samples, Slots, Target, Weight};
use crate::testing::available_gpus;
use crate::{Device, Dtype, Error, Tensor, ThreadSchedule};

fn all() -> impl Iterator<Item = Device> {
    devices(&[1]).into_iter().chain(available_gpus(&[ThreadSchedule::Forward]))
}

/// Whether the loss of a row of logits is an error that names the row.
fn is_refused(device: &Device, logits: &[f32], top_k: Option<usize>) -> bool {
    let one = Tensor::new(device, &[1, 1], vec![1f32]).unwrap();
    let head = Tensor::new(device, &[logits.len(), 1], logits.to_vec()).unwrap();
    let head = Weight::new(&head, Dtype::F32).unwrap();
    let (targets, samples) = ([Some(Target { id: 1, weight: 1.0, bonus: 0.5 })], Samples::of_lengths([1]));
    let rows = LossRows { top_k, ..LossRows::new(&targets, &samples) };
    match ops::cross_entropy(&one, &head, &rows, &mut 0.0) {
        Ok(_) => false,
        Err(Error::NotFinite { row: 0, .. }) => true,
        Err(error) => panic!("{}: {error}", name(device)),
    }
}

/// 257 logits whose chunk `chunk` of 128 has only NaN and -inf.
fn chunk_of_nan(chunk: usize) -> Vec<f32> {
    let value = |i: usize| match i / 128 == chunk {
        true if i.is_multiple_of(128) => f32::NAN,
        true => f32::NEG_INFINITY,
        false => 0.5,
    };
    (0..257).map(value).collect()
}

#[test]
fn a_nan_in_a_chunk_without_a_finite_logit_is_an_error() {
    for device in all() {
        for top_k in [None, Some(1)] {
            for chunk in 1..3 {
                let what = format!("{}, chunk {chunk}, top-k {top_k:?}", name(&device));
                assert!(is_refused(&device, &chunk_of_nan(chunk), top_k), "{what}");
            }
            assert!(!is_refused(&device, &[0.5; 257], top_k), "{}", name(&device));
        }
    }
}

#[test]
#[cfg(feature = "faults")]
fn a_chunk_of_nan_that_is_ignored_is_found() {
    let found = faults::with(Fault::ChunkOfNanIgnored, || is_refused(&Device::cpu(), &chunk_of_nan(1), None));
    assert!(!found);
}

/// `y` and `lse` of 65 rows of one head. The scores of the last row are -inf for the keys 0 to 63 and 0 for its own.
fn overflowing_first_chunk(device: &Device, dtype: Dtype) -> [Vec<f32>; 2] {
    let column = |value: &dyn Fn(usize) -> f32| {
        (0..65 * HD).map(|at| if at % HD == 0 { value(at / HD) } else { 0.0 }).collect::<Vec<f32>>()
    };
    let q = column(&|row| if row == 64 { 1e20 } else { 0.0 });
    let k = column(&|row| if row == 64 { 0.0 } else { -1e20 });
    let (seq, pos, slots) = ([0; 65], (0..65).collect::<Vec<u32>>(), Slots::Runs { base: vec![0] });
    let mask = AttnMask { seq: &seq, pos: &pos, slots: &slots, window: None };
    let [q, k, v] =
        [&q, &k, &vec![1.0; 65 * HD]].map(|values| tensor(device, &[65, 1, HD], values, dtype).unwrap());
    let (y, lse) = ops::attention(&q, &k, &v, &mask).unwrap();
    [y, lse].map(|x| x.to_f32().unwrap().to_vec::<f32>().unwrap())
}

const HD: usize = 64;

#[test]
fn scores_that_overflow_in_the_first_chunk_of_keys_reach_the_result() {
    for device in all() {
        for dtype in [Dtype::F32, Dtype::BF16] {
            let [y, lse] = overflowing_first_chunk(&device, dtype);
            let what = format!("{}, {dtype}", name(&device));
            assert!(y[..64 * HD].iter().chain(&lse[..64]).all(|x| x.is_finite()), "{what}: the other rows");
            assert!(y[64 * HD..].iter().chain(&lse[64..]).all(|x| x.is_nan()), "{what}: {:?}", &lse[64..]);
        }
    }
}

#[test]
#[cfg(feature = "faults")]
fn a_first_chunk_that_is_replaced_is_found() {
    let replaced = || overflowing_first_chunk(&Device::reference(), Dtype::F32);
    let [y, lse] = faults::with(Fault::FirstChunkByMaximum, replaced);
    assert!(y.iter().chain(&lse).all(|x| x.is_finite()));
}
