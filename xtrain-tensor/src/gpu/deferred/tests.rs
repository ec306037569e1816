//! Deferred operations under reshape and in-place changes: the bits of the CPU, which computes everything at once.
#![cfg(xtrain_emu)]
use crate::ops::{self, Affine, AttnMask, QkNorm, RopeArgs, SlotRange, Slots, UnrotatedHeads, Weight};
use crate::testing::{arbitrary, compare_bits};
use crate::{Device, Dtype, Error, Result, RopeTable, Tensor, ThreadSchedule};

fn tensor(device: &Device, shape: &[usize], seed: u64) -> Tensor {
    Tensor::new(device, shape, arbitrary(shape.iter().product(), seed)).unwrap()
}

/// Compares `values` on the emulator with the CPU. Returns the difference, if there is one.
fn compare(values: impl Fn(&Device) -> Result<Tensor>) -> std::result::Result<(), String> {
    let [want, got] = [Device::cpu(), Device::emulated(ThreadSchedule::Random(3)).unwrap()]
        .map(|device| values(&device).unwrap().to_vec::<f32>().unwrap());
    compare_bits(&got, &want).map(|_| ()).map_err(|e| e.to_string())
}

/// Products of a norm whose result was reshaped before it was read.
fn reshaped_norm(device: &Device) -> Result<Tensor> {
    let (x, gain) = (tensor(device, &[4, 64], 1), tensor(device, &[64], 2));
    let w = Weight::new(&tensor(device, &[16, 32], 3), Dtype::F32)?;
    let x = ops::rms_norm(&x, &gain, 1e-6, Dtype::F32)?.reshape(&[8, 32])?;
    Ok(ops::linears(&x, &[Affine { weight: &w, bias: None }])?.remove(0))
}

/// A norm whose input is changed in place before the norm is read.
fn norm_of_a_changed_input(device: &Device) -> Result<Tensor> {
    let (mut x, gain) = (tensor(device, &[4, 64], 8), tensor(device, &[64], 9));
    let y = ops::rms_norm(&x, &gain, 1e-6, Dtype::F32)?;
    ops::accumulate(&mut x, &tensor(device, &[4, 64], 10))?;
    Ok(y)
}

/// Which results of `write_heads` are read around an attention of its rows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Read {
    PoolBefore,
    PoolAfterQueriesAreDropped,
    QueriesAfter,
    QueriesAfterPoolsAreChanged,
}

/// Outputs of an attention, or a result of the `write_heads` before it, in f32.
fn written_heads(device: &Device, read: Read, dtype: Dtype) -> Result<Tensor> {
    let table = RopeTable::new(1e4, 8, 100)?;
    let tensor = |device: &Device, shape: &[usize], seed| tensor(device, shape, seed).cast(dtype).unwrap();
    let (q, k, v) =
        (tensor(device, &[2, 4, 8], 15), tensor(device, &[2, 2, 8], 16), tensor(device, &[2, 2, 8], 17));
    let (mut k_pool, mut v_pool) = (tensor(device, &[9, 2, 8], 18), tensor(device, &[9, 2, 8], 19));
    let (pos, seq, slots) = ([3, 2], [0, 1], [3, 6]);
    let rope = RopeArgs { table: &table, positions: &pos };
    let new = UnrotatedHeads { q: &q, k: &k, v: &v, norms: None, rope, slots: &slots };
    let rotated = ops::write_heads(&new, &mut k_pool, &mut v_pool)?;
    let places = Slots::Runs { base: vec![0, 4] };
    let mask = AttnMask { seq: &seq, pos: &pos, slots: &places, window: None };
    match read {
        Read::PoolBefore => {
            ops::scatter_rows(&mut v_pool, &tensor(device, &[1, 2, 8], 20), &[6])?;
            ops::attention(&rotated, &k_pool, &v_pool, &mask)?.0.cast(Dtype::F32)
        }
        Read::PoolAfterQueriesAreDropped => {
            drop(rotated);
            ops::copy_slots_within(&mut k_pool, SlotRange { from: 3, to: 8, len: 1 })?;
            k_pool.cast(Dtype::F32)
        }
        Read::QueriesAfter | Read::QueriesAfterPoolsAreChanged => {
            ops::attention(&rotated, &k_pool, &v_pool, &mask)?;
            if read == Read::QueriesAfter {
                return rotated.cast(Dtype::F32);
            }
            ops::scatter_rows(&mut k_pool, &tensor(device, &[2, 2, 8], 20), &slots)?;
            rotated.cast(Dtype::F32)?.to_vec::<f32>()?;
            k_pool.cast(Dtype::F32)
        }
    }
}

#[test]
fn deferred_heads_have_the_bits_of_the_cpu_whichever_result_is_read() {
    let reads = [
        Read::PoolBefore,
        Read::PoolAfterQueriesAreDropped,
        Read::QueriesAfter,
        Read::QueriesAfterPoolsAreChanged,
    ];
    for read in reads {
        let result = |dtype| compare(|device| written_heads(device, read, dtype));
        result(Dtype::F32).unwrap_or_else(|e| panic!("{read:?}: {e}"));
        // the products of attention are those of the tensor core
        if read != Read::PoolBefore {
            result(Dtype::BF16).unwrap_or_else(|e| panic!("{read:?} in bf16: {e}"));
        }
    }
}

#[test]
fn a_reshaped_result_has_the_bits_of_the_cpu() {
    compare(reshaped_norm).unwrap();
}

#[test]
fn a_deferred_operation_keeps_the_values_of_its_inputs() {
    compare(norm_of_a_changed_input).unwrap();
}

#[cfg(feature = "faults")]
#[test]
fn an_input_that_is_written_while_it_is_shared_is_detected() {
    use crate::faults::{Fault, with};
    assert!(with(Fault::CopyOnWriteSkipped, || compare(norm_of_a_changed_input)).is_err());
}

#[test]
fn a_result_that_is_never_read_launches_nothing() {
    let device = Device::emulated(ThreadSchedule::Forward).unwrap();
    let (x, gain) = (tensor(&device, &[4, 64], 1), tensor(&device, &[64], 2));
    device.wait().unwrap();
    let before = device.gpu_counters().unwrap();
    drop(ops::rms_norm(&x, &gain, 1e-6, Dtype::F32).unwrap());
    device.wait().unwrap();
    assert_eq!(device.gpu_counters().unwrap().launches, before.launches);
}

/// An operation that is deferred checks its operands when it is called, not when its result is read.
#[test]
fn operands_of_deferred_operations_are_checked_at_once() {
    let device = Device::emulated(ThreadSchedule::Forward).unwrap();
    let x = tensor(&device, &[4, 64], 1);
    let found = ops::rms_norm(&x, &tensor(&Device::cpu(), &[64], 2), 1e-6, Dtype::F32);
    assert!(matches!(found, Err(Error::Device { .. })), "{found:?}");

    let table = RopeTable::new(1e4, 8, 100).unwrap();
    let rope = RopeArgs { table: &table, positions: &[3, 2] };
    let heads = |device: &Device, n: usize| tensor(device, &[2, n, 8], 3);
    let write = |v: &Tensor, q_gain: &Tensor, k_gain: &Tensor| {
        let (q, k) = (heads(&device, 4), heads(&device, 2));
        let [mut k_pool, mut v_pool] = [4, 5].map(|seed| tensor(&device, &[9, 2, 8], seed));
        let norms = Some(QkNorm { q_gain, k_gain, eps: 1e-6 });
        let new = UnrotatedHeads { q: &q, k: &k, v, norms, rope, slots: &[3, 6] };
        ops::write_heads(&new, &mut k_pool, &mut v_pool).map(drop)
    };
    let (v, gain) = (heads(&device, 2), tensor(&device, &[8], 6));
    let (elsewhere, half) = (tensor(&Device::cpu(), &[8], 6), gain.cast(Dtype::BF16).unwrap());
    assert_eq!(write(&v, &gain, &gain), Ok(()));
    for found in [
        write(&heads(&Device::cpu(), 2), &gain, &gain),
        write(&v, &elsewhere, &gain),
        write(&v, &gain, &elsewhere),
    ] {
        assert!(matches!(found, Err(Error::Device { .. })), "{found:?}");
    }
    for found in [write(&v, &half, &gain), write(&v, &gain, &half)] {
        assert!(matches!(found, Err(Error::Dtype { .. })), "{found:?}");
    }
}
