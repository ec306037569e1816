//! The rounding of `Q8_0`: halves are rounded away from zero, as in ggml's `quantize_row_q8_0_ref` (`roundf`).
use xtrain::model::gguf::Quant;

/// Blocks whose scale is a power of two, so that `x / scale` is exact: every half from -126.5 to 126.5.
pub(crate) fn over() -> Result<usize, String> {
    let mut checked = 0;
    for exponent in [-3, 0, 5] {
        let scale = 2f32.powi(exponent);
        for first in (-126i32..=126).step_by(31) {
            // the largest magnitude, then 31 halves
            let halves: Vec<f32> =
                (first..first + 31).map(|n| (n as f32 + 0.5).clamp(-126.5, 126.5)).collect();
            let block: Vec<f32> = std::iter::once(127.0).chain(halves).map(|x| x * scale).collect();
            let mut bytes = Vec::new();
            assert!(Quant::Q8_0.narrow(&block, &mut bytes), "{block:?}");
            for (x, &byte) in block.iter().zip(&bytes[2..]) {
                let exact = x / scale;
                let want = (exact.abs() + 0.5).floor().copysign(exact) as i8;
                if byte as i8 != want {
                    return Err(format!(
                        "gate halves of Q8_0, seed 0: {x} with the scale {scale}: expected {want}, found {}",
                        byte as i8
                    ));
                }
                checked += 1;
            }
        }
    }
    Ok(checked)
}

#[test]
fn halves_are_rounded_away_from_zero() {
    over().unwrap_or_else(|e| panic!("{e}"));
}

/// ggml multiplies by the rounded inverse of the scale. Near a half, a division by the scale gives another code. Returns
/// the number of such values.
pub(crate) fn inverses() -> Result<usize, String> {
    let mut differing = 0;
    for n in 0..2000u32 {
        let largest = 1.0 + n as f32 / 1999.0;
        let scale = largest / 127.0;
        let inverse = 1.0 / scale;
        // the float nearest to a half, and its neighbors
        let near = |code: i32| f32::from_bits(((code as f32 + 0.5) * scale).to_bits() + n % 3 - 1);
        let block: Vec<f32> = std::iter::once(largest).chain((0..31).map(|code| near(4 * code))).collect();
        let mut bytes = Vec::new();
        assert!(Quant::Q8_0.narrow(&block, &mut bytes));
        for (x, &byte) in block.iter().zip(&bytes[2..]) {
            let want = (x * inverse).round() as i8;
            if byte as i8 != want {
                return Err(format!(
                    "gate inverse of Q8_0, seed 0: {x} with the scale {scale}: expected {want}, found {}",
                    byte as i8
                ));
            }
            differing += usize::from((x * inverse).round() != (x / scale).round());
        }
    }
    Ok(differing)
}

#[test]
fn values_are_multiplied_by_the_inverse_of_the_scale() {
    let differing = inverses().unwrap_or_else(|e| panic!("{e}"));
    assert!(differing > 100, "{differing}");
}
