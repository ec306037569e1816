//! Keys and values in int8: quantization, and attention over the dequantized keys and values of the rows.
use std::collections::BTreeMap;
use std::ops::Range;

use super::attention::{self, check_head_size};
use super::{Gpu, Grid, args};
use crate::faults::{self, Fault};
use crate::operands::{AttnMask, Heads, Int8Head, Slots};
use crate::{Dtype, Error, Result, Tensor};

/// Head vectors `[N, H, hd]` in int8, as words. One warp per vector.
pub(crate) fn quantize_heads(gpu: &Gpu, x: &Tensor) -> Result<Tensor> {
    let &[n, heads, hd] = x.shape() else { unreachable!("quantize_heads checks its shapes") };
    check_head_size("quantize_heads", hd)?;
    let y = Tensor::on_gpu(gpu, &[n, heads, Int8Head::words(hd)], Dtype::U32)?;
    let kernel = if x.dtype() == Dtype::BF16 { "quantize_heads_bf16" } else { "quantize_heads_f32" };
    let args = args![x.at(gpu, x.dtype())?, y.at(gpu, Dtype::U32)?, hd, n * heads];
    // SAFETY: x has n * heads vectors of hd values, y as many of words(hd).
    unsafe { gpu.launch(kernel, Grid::blocks([(n * heads).div_ceil(4), 1, 1], 128), args)? };
    Ok(y)
}

/// The attention over the dequantized keys and values of the positions that rows see. The operands have been checked.
pub(crate) fn int8_attention(
    gpu: &Gpu,
    [q, k, v]: [&Tensor; 3],
    heads: Heads,
    mask: &AttnMask<'_>,
) -> Result<Tensor> {
    check_head_size("int8_attention", heads.hd)?;
    let (from, slots) = gathered(mask);
    let gather = |pool: &Tensor| {
        let y = Tensor::on_gpu(gpu, &[from.len(), heads.nkv, heads.hd], q.dtype())?;
        let kernel = if q.dtype() == Dtype::BF16 { "gather_int8_bf16" } else { "gather_int8_f32" };
        let (pool, to, n) = (pool.at(gpu, Dtype::U32)?, y.at(gpu, q.dtype())?, y.len() / 4);
        let args = args![pool, gpu.indices(&from)?, to, heads.nkv, heads.hd, n];
        // SAFETY: the slots are in the pool, as the operation has checked; y has a row for each of them.
        unsafe { gpu.launch(kernel, Grid::over(n, 256), args)? };
        Ok::<_, Error>(y)
    };
    let (k, v) = (gather(k)?, gather(v)?);
    Ok(attention::attention(gpu, [q, &k, &v], heads, &AttnMask { slots: &slots, ..*mask })?.0)
}

/// The slots of all positions that rows see, and the place of each position among them. Positions that no row sees may
/// have no slot in the pool; their place is the first one.
fn gathered(mask: &AttnMask<'_>) -> (Vec<u32>, Slots) {
    let mut seen: BTreeMap<u32, Vec<Range<usize>>> = BTreeMap::new();
    for (n, &seq) in mask.seq.iter().enumerate() {
        seen.entry(seq).or_default().push(mask.keys(n));
    }
    let sequences = seen.keys().last().map_or(0, |&seq| seq as usize + 1);
    let (mut from, mut table) = (Vec::new(), vec![Vec::new(); sequences]);
    for (seq, mut ranges) in seen {
        ranges.sort_by_key(|keys| keys.start);
        let places = &mut table[seq as usize];
        for keys in ranges {
            let new = keys.start.max(places.len())..keys.end.max(places.len());
            if !faults::on(Fault::UnseenPositionsGathered) {
                places.resize(new.start, 0);
            }
            let new = places.len()..new.end;
            places.extend((from.len() as u32..).take(new.len()));
            from.extend(new.map(|pos| mask.slots.slot(seq, pos) as u32));
        }
    }
    (from, Slots::Pages { page: 1, table })
}

#[cfg(test)]
#[cfg(xtrain_emu)]
pub(crate) mod tests {
    use crate::testing::emulated;
    use crate::{Device, Dtype, Tensor, ThreadSchedule, ops};

    /// Compares the codes of vectors, one of which has a value that is not finite, with those of the CPU.
    pub(crate) fn not_finite() -> Result<usize, String> {
        let gpu = emulated(ThreadSchedule::Forward);
        let mut compared = 0;
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for (at, dtype) in [(64, Dtype::F32), (70, Dtype::BF16), (127, Dtype::F32)] {
                let mut x: Vec<f32> = (0..3 * 64).map(|i| i as f32 - 90.0).collect();
                x[at] = bad;
                // whether each scale is a number, and the bits of those that are, and of all codes
                let words = |device: &Device| -> crate::Result<Vec<(bool, u32)>> {
                    let x = Tensor::new(device, &[3, 1, 64], x.clone())?.cast(dtype)?;
                    let words = ops::quantize_heads(&x)?.to_vec::<u32>()?;
                    let is_nan = |at: usize, word: u32| at % 17 == 16 && f32::from_bits(word).is_nan();
                    let of =
                        |(at, &word): (usize, &u32)| (is_nan(at, word), u32::from(!is_nan(at, word)) * word);
                    Ok(words.iter().enumerate().map(of).collect())
                };
                let of = |device| words(device).map_err(|e| e.to_string());
                let (want, got) = (of(&Device::cpu())?, of(&gpu)?);
                if want != got {
                    return Err(format!(
                        "quantize_heads, seed 0: {bad} at {at}: {got:?} instead of {want:?}"
                    ));
                }
                compared += want.len();
            }
        }
        Ok(compared)
    }

    #[test]
    fn a_vector_with_a_value_that_is_not_finite_has_the_codes_of_the_cpu() {
        not_finite().unwrap_or_else(|e| panic!("{e}"));
    }
}

#[cfg(test)]
mod gathered_tests {
    use super::*;

    #[test]
    fn a_position_behind_the_window_is_gathered_from_its_slot() {
        let slots = Slots::Runs { base: vec![10, 40] };
        let (seq, pos) = ([1, 0, 1], [7, 2, 8]);
        for window in [None, Some(3)] {
            let mask = AttnMask { seq: &seq, pos: &pos, slots: &slots, window };
            let (from, gathered) = gathered(&mask);
            for (n, &seq) in seq.iter().enumerate() {
                for pos in mask.keys(n) {
                    assert_eq!(from[gathered.slot(seq, pos)] as usize, slots.slot(seq, pos), "{window:?}");
                }
            }
            assert_eq!(from.len(), window.map_or(12, |_| 7));
        }
    }

    #[test]
    fn a_position_that_no_row_sees_is_not_gathered() {
        let slots = Slots::Pages { page: 16, table: vec![[&[0][..], &[9999; 11], &[1]].concat()] };
        let mask = AttnMask { seq: &[0, 0], pos: &[0, 200], slots: &slots, window: Some(1) };
        let (from, gathered) = gathered(&mask);
        assert_eq!(from, [0, 24]);
        assert_eq!([0, 100, 200].map(|pos| gathered.slot(0, pos)), [0, 0, 1]);
        #[cfg(feature = "faults")]
        assert!(faults::with(Fault::UnseenPositionsGathered, || super::gathered(&mask)).0.len() > 2);
    }
}
