//! Golden bits: the bits on which two independent implementations of the contract agreed, and the bits of every case
//! of the table on the reference.
//!
//! After a change of cases, `XTRAIN_BLESS=1 cargo test -p xtrain-tensor golden` rewrites
//! `tests/data/golden_bits/reference_ops.txt`. A line that changes under an existing name is a change of arithmetic
//! and needs an entry under "Bits" in the change log.
use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::table::TABLE;
use super::{Difference, reference};

const GATE: &str = "golden bits";

/// The sha256 of little-endian f32 values, with every NaN as 0x7fc00000.
fn sha<'a>(values: impl IntoIterator<Item = &'a f32>) -> String {
    let mut hash = Sha256::new();
    for x in values {
        hash.update(if x.is_nan() { 0x7fc0_0000u32.to_le_bytes() } else { x.to_le_bytes() });
    }
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string grows");
        text
    })
}

/// One line per case: its name, its seed and the first half of the hash of its rows.
fn lines() -> Result<String, Difference> {
    let mut text = String::new();
    for case in TABLE.iter().flat_map(|entry| (entry.cases)()) {
        let rows = case.whole(&reference()).map_err(|error| Difference {
            gate: GATE,
            case: case.to_string(),
            seed: case.seed,
            row: 0,
            got: error.to_string(),
            want: "a result".into(),
        })?;
        let hash = sha(rows.iter().flatten());
        writeln!(text, "{case} {} {}", case.seed, &hash[..32]).expect("a string grows");
    }
    Ok(text)
}

/// Compares every case with its committed line. Returns the number of cases.
fn gate(golden: &str) -> Result<usize, Difference> {
    let text = lines()?;
    let mut rest = golden.lines();
    for (row, got) in text.lines().enumerate() {
        let want = rest.next().unwrap_or("the end of the file");
        if got != want {
            let mut words = got.split(' ');
            let case = words.next().unwrap_or_default().to_string();
            let seed = words.next().and_then(|seed| seed.parse().ok()).unwrap_or_default();
            return Err(Difference { gate: GATE, case, seed, row, got: got.into(), want: want.into() });
        }
    }
    match rest.next() {
        None => Ok(text.lines().count()),
        Some(want) => {
            let (case, got) = (want.to_string(), "no such case".into());
            Err(Difference { gate: GATE, case, seed: 0, row: text.lines().count(), got, want: want.into() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::case::tensor;
    use crate::gates::{devices, name};
    use crate::ops::{self, AttnMask, Samples, Slots, Weight};
    use crate::reference::{self, Bf16, F32, Heads};
    use crate::testing::{golden, golden_sizes, val};
    use crate::{Device, Dtype, Tensor, math, round_bf16};

    const COMMITTED: &str = include_str!("../../../tests/data/golden_bits/reference_ops.txt");

    #[test]
    fn every_case_on_the_reference_has_its_golden_bits() {
        if std::env::var_os("XTRAIN_BLESS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/golden_bits/reference_ops.txt");
            std::fs::write(path, lines().unwrap()).unwrap();
            return;
        }
        let n = gate(COMMITTED).unwrap_or_else(|difference| panic!("{difference}"));
        println!("gate {GATE}: {n} cases, 0 differ");
    }

    #[cfg(feature = "faults")]
    #[test]
    fn every_planted_fault_of_an_operation_changes_golden_bits() {
        for fault in [
            crate::faults::Fault::SingleRowSumReversed,
            crate::faults::Fault::MaskOffByOne,
            crate::faults::Fault::FinalZeroNotAdded,
            crate::faults::Fault::LossOfKeptSetsNotAdded,
        ] {
            let seen = crate::faults::with(fault, || gate(COMMITTED)).expect_err(&fault.to_string());
            assert_eq!(seen.gate, GATE, "{fault}: {seen}");
        }
    }

    fn vals(first: usize, n: usize) -> Vec<f32> {
        (first..first + n).map(val).collect()
    }

    fn bits(x: f32) -> String {
        format!("{:08x}", x.to_bits())
    }

    fn of(device: &Device, shape: &[usize], x: &[f32]) -> Tensor {
        tensor(device, shape, x, Dtype::F32).unwrap()
    }

    fn one(x: &Tensor) -> f32 {
        x.data::<f32>().unwrap()[0]
    }

    #[test]
    fn exp_and_log_have_their_golden_bits() {
        let exps: Vec<f32> = (0..4096).map(|i| math::exp(40.0 * val(i))).collect();
        let logs: Vec<f32> = exps.iter().map(|&x| math::log(x)).collect();
        assert_eq!(sha(&exps), golden("U/exp")[0]);
        assert_eq!(sha(&logs), golden("U/log")[0]);
    }

    #[test]
    fn dots_have_their_golden_bits() {
        let sizes = golden_sizes("U/dot/");
        assert_eq!(sizes.len(), 16);
        for k in sizes {
            let (a, b) = (vals(0, k), vals(10_000, k));
            for (line, dtype) in [("dot", Dtype::F32), ("dot_bf16cpu", Dtype::BF16)] {
                let want = golden(&format!("U/{line}/{k}"))[0];
                let (ra, rb) = (|i: usize| round_bf16(a[i]), |i: usize| round_bf16(b[i]));
                let got = match dtype {
                    Dtype::BF16 => reference::dot::<Bf16>(0.0, k, ra, rb),
                    _ => reference::dot::<F32>(0.0, k, |i| a[i], |i| b[i]),
                };
                assert_eq!(bits(got), want, "{line} of {k}");
                for device in devices(&[1, 3]) {
                    let x = tensor(&device, &[1, k], &a, dtype).unwrap();
                    let w = Weight::new(&of(&device, &[1, k], &b), dtype).unwrap();
                    let y = ops::linear(&x, &w, None, Dtype::F32).unwrap();
                    assert_eq!(bits(one(&y)), want, "{line} of {k} on {}", name(&device));
                }
            }
        }
    }

    #[test]
    fn sums_and_logarithms_of_sums_have_their_golden_bits() {
        for k in golden_sizes("U/sum32/") {
            let (x, z) = (vals(0, k), vals(20_000, k).iter().map(|v| 8.0 * v).collect::<Vec<_>>());
            let (sum, lse) = (golden(&format!("U/sum32/{k}")), golden(&format!("U/lse/{k}"))[0]);
            assert_eq!(bits(reference::sum32(k, |v, i| v + x[i])), sum[0], "sum of {k}");
            assert_eq!(
                bits(reference::sum32(k, |v: f32, i| math::fma(x[i], x[i], v))),
                sum[2],
                "squares of {k}"
            );
            assert_eq!(bits(reference::lse(&z)), lse, "lse of {k}");
            for device in devices(&[1, 3]) {
                let squares = ops::sum_of_squares(&of(&device, &[k], &x)).unwrap();
                assert_eq!(bits(squares), sum[2], "squares of {k} on {}", name(&device));
                let row = ops::log_prob(&of(&device, &[1, k], &z), &[0]).unwrap();
                assert_eq!(bits(row[0].lse), lse, "lse of {k} on {}", name(&device));
            }
        }
    }

    #[test]
    fn sums_over_rows_have_their_golden_bits() {
        let samples = [
            ("U/rowsum/700,300", Samples::of_lengths([700, 300])),
            ("U/rowsum/140x5,60x5", Samples::of_lengths([140, 60]).times(5)),
        ];
        for (line, samples) in samples {
            for device in devices(&[1, 3]) {
                let (dy, x) = (of(&device, &[1000, 1], &vals(0, 1000)), vals(10_000, 1000));
                let mut dw = Tensor::zeros(&device, &[1, 1], Dtype::F32).unwrap();
                ops::linear_backward_weight(&mut dw, &dy, &of(&device, &[1000, 1], &x), &samples).unwrap();
                assert_eq!(bits(one(&dw)), golden(line)[0], "{line} on {}", name(&device));
            }
        }
    }

    #[test]
    fn the_gradient_of_a_group_has_its_golden_bits() {
        let want = golden("U/groupdx");
        for device in devices(&[1, 3]) {
            let (mut ws, mut dys) = (Vec::new(), Vec::new());
            for (g, out) in [300, 100, 520].into_iter().enumerate() {
                let w = of(&device, &[out, 2], &vals(30_000 + 2000 * g, out * 2));
                ws.push(Weight::new(&w, Dtype::F32).unwrap());
                dys.push(of(&device, &[1, out], &vals(40_000 + 1000 * g, out)));
            }
            let (ws, dys): (Vec<_>, Vec<_>) = (ws.iter().collect(), dys.iter().collect());
            let dx = ops::linear_backward_input(&dys, &ws).unwrap();
            let got: Vec<String> = dx.data::<f32>().unwrap().iter().map(|&x| bits(x)).collect();
            assert_eq!(got, want, "on {}", name(&device));
        }
    }

    #[test]
    fn attentions_have_their_golden_bits() {
        for (line, dtype) in [("attend", Dtype::F32), ("attend_bf16cpu", Dtype::BF16)] {
            for t in golden_sizes(&format!("U/{line}/")) {
                let round = |x: Vec<f32>| -> Vec<f32> {
                    match dtype {
                        Dtype::BF16 => x.into_iter().map(round_bf16).collect(),
                        _ => x,
                    }
                };
                let [q, k, v] = [(50_000, 1), (60_000, t + 1), (70_000, t + 1)]
                    .map(|(first, rows)| round(vals(first, 16 * rows)));
                let want = golden(&format!("U/{line}/{t}"));
                let slots = Slots::Runs { base: vec![0] };
                let mask = AttnMask { seq: &[0], pos: &[t as u32], slots: &slots, window: None };
                let (heads, operands) = (Heads { nh: 1, nkv: 1, hd: 16 }, [&q[..], &k, &v]);
                let done = match dtype {
                    Dtype::BF16 => reference::attention::<Bf16>(operands, heads, &mask),
                    _ => reference::attention::<F32>(operands, heads, &mask),
                };
                assert_eq!(sha(&done.y)[..16], *want[0], "{line} {t}");
                for device in devices(&[1, 3]) {
                    let of = |n: usize, x: &[f32]| tensor(&device, &[n, 1, 16], x, dtype).unwrap();
                    let (q, k, v) = (of(1, &q), of(t + 1, &k), of(t + 1, &v));
                    let (y, lse) = ops::attention(&q, &k, &v, &mask).unwrap();
                    let stored = round(done.y.clone());
                    assert_eq!(y.to_f32().unwrap().data::<f32>().unwrap(), stored, "{line} {t}");
                    assert_eq!(bits(one(&lse)), want[2], "{line} {t} on {}", name(&device));
                }
            }
        }
    }
}
