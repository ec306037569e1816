//! Gate: no reduction returns -0, so that padding with zeros changes nothing.
use super::case::Case;
use super::values::Values;
use super::{Counts, Difference, name};
use crate::Device;

const GATE: &str = "zero";

/// Runs every f32 reduction among the cases of tiny values on these devices. (A bf16 product may return the -0 of its
/// tile.)
fn gate(cases: &[Case], devices: &[Device]) -> Result<Counts, Difference> {
    let mut counts = Counts::default();
    let tiny = super::values::label(crate::Dtype::F32, Values::Tiny);
    for case in cases.iter().filter(|case| case.name.ends_with(&tiny)) {
        for device in devices {
            let differ = |row, got, want: &str| Difference {
                gate: GATE,
                case: format!("{case} on {}", name(device)),
                seed: case.seed,
                row,
                got,
                want: want.into(),
            };
            let rows = case.whole(device).map_err(|error| differ(0, error.to_string(), "a result"))?;
            for (row, values) in rows.iter().enumerate() {
                if let Some(at) = values.iter().position(|x| x.to_bits() == 1 << 31) {
                    return Err(differ(row, format!("-0 at {at}"), "no -0"));
                }
                counts.values += values.len();
            }
        }
        counts.cases += 1;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::{cases, devices};

    /// The operations whose values are all reductions.
    fn reductions() -> Vec<Case> {
        let all = [
            cases::attention(),
            cases::attention_backward(),
            cases::linear_backward_input(),
            cases::linear_backward_weight(),
            cases::linear_backward_bias(),
            cases::sum_of_squares(),
        ];
        all.into_iter().flatten().collect()
    }

    #[test]
    fn no_reduction_returns_minus_zero() {
        let counts = gate(&reductions(), &devices(&[1])).unwrap_or_else(|difference| panic!("{difference}"));
        println!("gate {GATE}: {counts}");
        assert!(counts.cases >= 20, "{counts:?}");
    }

    #[cfg(feature = "faults")]
    #[test]
    fn a_padding_that_loses_the_sign_of_zero_is_found() {
        let cases = reductions();
        for device in devices(&[1, 2]) {
            let gate = || gate(&cases, std::slice::from_ref(&device));
            let seen =
                crate::faults::with(crate::faults::Fault::FinalZeroNotAdded, gate).expect_err("a fault");
            assert_eq!(seen.gate, GATE);
            assert!(seen.case.starts_with("attention"), "{seen}");
            gate().expect("the fault is off");
        }
    }
}
