//! The check for NaN and infinity of a tensor that is longer than the parts in which it runs.
use xtrain::tensor::testing::checked_simds;
use xtrain::tensor::{Device, Dtype, Tensor, ops};

/// Elements of a part of the check on the CPU.
const PART: usize = 4 * 8192;

/// A NaN or an infinity is found at the ends and around the borders of parts. Returns the number of checked tensors.
pub(crate) fn over() -> Result<usize, String> {
    let mut devices = vec![Device::reference()];
    for simd in checked_simds()? {
        devices.extend([1, 3].map(|threads| Device::cpu_with(threads, simd)));
    }
    let mut checked = 0;
    for device in &devices {
        for len in [PART - 1, PART + 1, 2 * PART, 2 * PART + 33] {
            let borders = [0, PART - 1, PART, 2 * PART - 1, 2 * PART, len - 1];
            for (dtype, bad) in [(Dtype::F32, f32::NAN), (Dtype::BF16, f32::INFINITY)] {
                let found = |values: &[f32]| {
                    let x = Tensor::new(device, &[len], values.to_vec()).and_then(|x| x.cast(dtype)).unwrap();
                    ops::first_non_finite(&[&x]).unwrap()
                };
                let mut values = vec![1.0; len];
                let mut cases = vec![(None, found(&values))];
                for at in borders.into_iter().filter(|&at| at < len) {
                    values[at] = bad;
                    cases.push((Some(at), found(&values)));
                    values[at] = 1.0;
                }
                checked += cases.len();
                if let Some((at, found)) = cases.into_iter().find(|(at, found)| at.map(|_| 0) != *found) {
                    return Err(format!(
                        "gate finite tails, seed 0: {len} values of {dtype} on {device}, {bad:?} at {at:?}: found tensor \
                         {found:?}"
                    ));
                }
            }
        }
    }
    Ok(checked)
}

#[test]
fn a_value_that_is_not_finite_is_found_in_every_part_of_a_long_tensor() {
    over().unwrap_or_else(|e| panic!("{e}"));
}
