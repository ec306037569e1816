//! Splitting rows and vocabulary changes no bit; a row keeps its k largest logits; a non-finite row is reported.
use super::*;
use crate::reference::{self, RowLoss};
use crate::testing::{arbitrary, compare_bits, emulated};
use crate::{Device, ThreadSchedule, ops};

struct Operands {
    lengths: [usize; 2],
    out: usize,
    width: usize,
    dtype: Dtype,
    top_k: Option<usize>,
    /// Whether every second row has a given kept set.
    given: bool,
}

/// Input, head, samples and targets.
fn operands_of(device: &Device, o: &Operands) -> Result<(Tensor, Weight, Samples, Vec<Option<Target>>)> {
    let (n, v, c) = (o.lengths.iter().sum::<usize>(), o.out, o.width);
    let x = Tensor::new(device, &[n, c], arbitrary(n * c, 1))?.cast(o.dtype)?;
    let head = Weight::new(&Tensor::new(device, &[v, c], arbitrary(v * c, 2))?, o.dtype)?;
    let target = |i: usize| {
        let (weight, bonus) = ([1.0, -0.75, 0.3][i % 3], [0.0, 0.01][i / 7 % 2]);
        (i % 5 != 3).then_some(Target { id: (i * 97 % v) as u32, weight, bonus })
    };
    Ok((x, head, Samples::of_lengths(o.lengths), (0..n).map(target).collect()))
}

const TEMPERATURE: f32 = 0.8;

/// Values, `dx` and `dhead`; on a GPU with at most `max_logits` logits in memory.
fn computed(device: &Device, o: &Operands, max_logits: usize) -> Result<[Vec<f32>; 3]> {
    let (x, head, samples, targets) = operands_of(device, o)?;
    let set = |n: usize| {
        let ids: Vec<u32> = (0..60).map(|i| ((n * 31 + i * 71) % o.out) as u32).collect();
        n.is_multiple_of(2).then(|| KeptSet::from_ids(o.out, &ids).expect("ids below the vocabulary"))
    };
    let kept: Vec<_> = (0..if o.given { targets.len() } else { 0 }).map(set).collect();
    let rows = LossRows {
        temperature: TEMPERATURE,
        top_k: o.top_k,
        kept: &kept,
        ..LossRows::new(&targets, &samples)
    };
    let mut dhead = Tensor::zeros(device, &[o.out, o.width], Dtype::F32)?;
    let (values, dx) = match device {
        Device::Gpu(gpu) => loss_bounded(gpu, &x, &head, &rows, Some(&mut dhead), max_logits)?,
        Device::Reference(_) | Device::Cpu(_) => {
            ops::cross_entropy_backward(&x, &head, &rows, &mut 0.0, &mut dhead)?
        }
    };
    let values = values.into_iter().flatten().flat_map(|v| [v.lse, v.log_prob, v.entropy]).collect();
    Ok([values, dx.to_vec()?, dhead.to_vec()?])
}

/// The same, composed from the logits of the head's product: the reference's values and gradients of each row. The
/// gradients are rounded where they enter the products.
fn composed(device: &Device, o: &Operands) -> Result<[Vec<f32>; 3]> {
    let (x, head, samples, targets) = operands_of(device, o)?;
    let z: Vec<f32> = ops::linear(&x, &head, None, Dtype::F32)?.to_vec()?;
    let (mut values, mut dz) = (Vec::new(), Vec::new());
    for (z, target) in z.chunks(o.out).zip(&targets) {
        let z: Vec<f32> = z.iter().map(|z| z / TEMPERATURE).collect();
        let Some(Target { id, weight, bonus }) = *target else {
            dz.extend(vec![0.0; o.out]);
            continue;
        };
        let row @ RowLoss { lse, log_prob, entropy } = reference::log_prob(&z, id as usize);
        values.extend([lse, log_prob, entropy]);
        dz.extend(reference::dlogits(&z, Some(id as usize), row, weight, bonus, TEMPERATURE));
    }
    let dz = Tensor::new(device, &[x.shape()[0], o.out], dz)?.cast(o.dtype)?;
    let mut dhead = Tensor::zeros(device, &[o.out, o.width], Dtype::F32)?;
    ops::linear_backward_weight(&mut dhead, &dz, &x, &samples)?;
    Ok([values, ops::linear_backward_input(&[&dz], &[&head])?.to_vec()?, dhead.to_vec()?])
}

/// Compares a loss in chunks of columns, and in chunks of rows, with the reference. Returns the number of values.
fn compare_chunks(o: &Operands) -> std::result::Result<usize, String> {
    let (device, mut compared) = (emulated(ThreadSchedule::Random(3)), 0);
    let want = match o.dtype {
        Dtype::BF16 => composed(&device, o),
        _ => computed(&Device::reference(), o, 0),
    };
    let want = want.map_err(|error| error.to_string())?;
    for max_logits in [1 << 20, 256 * o.lengths.iter().sum::<usize>().min(256), 256 * o.out] {
        let got = computed(&device, o, max_logits).map_err(|error| error.to_string())?;
        for ((got, want), what) in got.iter().zip(&want).zip(["values", "dx", "dhead"]) {
            let case =
                format!("{:?} x {} x {} in {}, {max_logits} logits", o.lengths, o.out, o.width, o.dtype);
            compare_bits(got, want).map_err(|e| format!("gate loss, seed 3: {what} of {case}: {e}"))?;
            compared += want.len();
        }
    }
    Ok(compared)
}

fn operands(lengths: [usize; 2], out: usize, width: usize, dtype: Dtype) -> Operands {
    Operands { lengths, out, width, dtype, top_k: None, given: false }
}

/// A loss with given kept sets, in chunks of columns.
pub(crate) fn given_sets() -> std::result::Result<usize, String> {
    compare_chunks(&Operands { top_k: Some(20), given: true, ..operands([260, 4], 700, 9, Dtype::F32) })
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn splitting_the_vocabulary_or_the_rows_changes_no_bit_of_a_loss() {
    for o in [
        operands([300, 5], 700, 9, Dtype::F32),
        Operands { top_k: Some(20), ..operands([7, 262], 513, 8, Dtype::F32) },
        Operands { top_k: Some(599), ..operands([1, 2], 600, 5, Dtype::F32) },
        Operands { top_k: Some(1), ..operands([3, 1], 40, 4, Dtype::F32) },
        operands([258, 3], 520, 16, Dtype::BF16),
        operands([5, 9], 300, 33, Dtype::BF16),
    ] {
        compare_chunks(&o).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn splitting_the_vocabulary_changes_no_bit_of_a_loss_with_given_kept_sets() {
    let n = given_sets().unwrap_or_else(|e| panic!("{e}"));
    println!("loss with given kept sets: {n} values, 0 differing bits");
}

/// The values and the kept sets; on a GPU with at most `max_logits` logits in memory.
fn values_and_kept_on(device: &Device, o: &Operands, max_logits: usize) -> LossValues {
    let (x, head, samples, targets) = operands_of(device, o).unwrap();
    let rows = LossRows { temperature: TEMPERATURE, top_k: o.top_k, ..LossRows::new(&targets, &samples) };
    match device {
        Device::Gpu(gpu) => values_and_kept(gpu, &x, &head, &rows, max_logits).unwrap(),
        Device::Reference(_) | Device::Cpu(_) => ops::cross_entropy_kept(&x, &head, &rows, &mut 0.0).unwrap(),
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn the_kept_sets_of_blocks_of_rows_are_those_of_all_rows() {
    let o = Operands { top_k: Some(20), ..operands([250, 10], 700, 9, Dtype::F32) };
    let device = emulated(ThreadSchedule::Random(3));
    let whole = values_and_kept_on(&device, &o, MAX_LOGITS);
    assert_eq!(whole.kept.len(), 260);
    assert!((0..260).all(|n| whole.kept[n].is_some() == (n % 5 != 3)));
    assert_eq!(values_and_kept_on(&device, &o, 100 * o.out), whole);
    assert_eq!(values_and_kept_on(&Device::cpu(), &o, MAX_LOGITS), whole);
}

#[cfg(feature = "faults")]
#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn rows_of_blocks_that_share_their_place_are_detected() {
    let test = the_kept_sets_of_blocks_of_rows_are_those_of_all_rows;
    let found =
        crate::faults::with(crate::faults::Fault::RowsOfBlocksShared, || crate::testing::failure(test));
    assert!(found.is_some_and(|text| text.contains("left == right")));
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn equal_logits_are_kept_in_the_order_of_their_indices() {
    let device = emulated(ThreadSchedule::Random(3));
    crate::testing::check_top_k_of_equal_logits(&device);
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn the_first_row_with_non_finite_logits_is_reported() {
    let device = emulated(ThreadSchedule::Random(3));
    let x = Tensor::new(&device, &[4, 1], vec![1f32, f32::NAN, f32::INFINITY, f32::NAN]).unwrap();
    let head = Weight::new(&Tensor::new(&device, &[3, 1], vec![1f32; 3]).unwrap(), Dtype::F32).unwrap();
    let target = Target { id: 1, weight: 1.0, bonus: 0.0 };
    let (targets, samples) = ([Some(target), None, Some(target), Some(target)], Samples::of_lengths([4]));
    let rows = LossRows::new(&targets, &samples);
    let error = ops::cross_entropy(&x, &head, &rows, &mut 0.0).unwrap_err();
    assert!(matches!(error, Error::NotFinite { row: 2, .. }), "{error}");
}
