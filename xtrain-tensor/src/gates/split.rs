//! Gate: a gradient has the same bits for any split of its training examples into micro-batches.
use std::ops::Range;

use super::case::{Case, Run};
use super::values::CaseRng;
use super::{Comparison, Counts, Difference, devices, name};

const GATE: &str = "micro-batches";

/// Runs every sum over training examples with micro-batches of one and with random splits, on every instruction set,
/// alternating between one thread and three.
fn gate(cases: &[Case]) -> Result<Counts, Difference> {
    let (mut counts, devices) = (Counts::default(), devices(&[1, 3]));
    for (i, case) in cases.iter().enumerate() {
        let Run::Sums(n, run) = &case.run else { continue };
        for device in devices.iter().skip(i % 2).step_by(2) {
            let check = |how: &str| Comparison {
                gate: GATE,
                case: format!("{case} {how} on {}", name(device)),
                seed: case.seed,
            };
            let whole = match case.whole(device) {
                Ok(whole) => whole,
                Err(error) => return Err(check("complete").failed(&error)),
            };
            for parts in splits(*n, case.seed) {
                counts.values += check(&format!("in {parts:?}")).same(run(device, &parts), &whole)?;
            }
        }
        counts.cases += 1;
    }
    Ok(counts)
}

/// Splits of `n` training examples.
fn splits(n: usize, seed: u64) -> Vec<Vec<Range<usize>>> {
    let mut rng = CaseRng::new(seed);
    let mut all: Vec<Vec<Range<usize>>> = vec![(0..n).map(|s| s..s + 1).collect()];
    for _ in 0..2 {
        let (mut parts, mut at) = (Vec::new(), 0);
        while at < n {
            let end = at + 1 + rng.below(n - at);
            parts.push(at..end);
            at = end;
        }
        if parts.len() > 1 && !all.contains(&parts) {
            all.push(parts);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::table::TABLE;

    #[test]
    fn a_gradient_does_not_depend_on_its_micro_batches() {
        let mut total = Counts::default();
        for entry in &TABLE {
            let counts = gate(&(entry.cases)()).unwrap_or_else(|difference| panic!("{difference}"));
            total.cases += counts.cases;
            total.values += counts.values;
        }
        println!("gate {GATE}: {total}");
        assert!(total.cases >= 120, "{total:?}");
    }

    #[cfg(feature = "faults")]
    #[test]
    fn a_micro_batch_total_added_at_its_end_is_found() {
        let cases = crate::gates::cases::linear_backward_weight();
        let seen = crate::faults::with(crate::faults::Fault::MicroBatchSubtotal, || gate(&cases))
            .expect_err("a fault");
        assert_eq!(seen.gate, GATE);
        assert!(seen.case.starts_with("linear_backward_weight/"), "{seen}");
        gate(&cases).expect("the fault is off");
    }
}
