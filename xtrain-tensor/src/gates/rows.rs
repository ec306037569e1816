//! Gate: a row (in the attention backward: a sequence) has the same bits alone, in any batch and in any order.
use super::case::{Case, Run};
use super::values::CaseRng;
use super::{Comparison, Counts, Difference, devices, name};

const GATE: &str = "rows";

/// Runs single rows, and all rows backwards or random subsets (alternating), on every instruction set.
fn gate(cases: &[Case]) -> Result<Counts, Difference> {
    let (mut counts, devices) = (Counts::default(), devices(&[1]));
    for (i, case) in cases.iter().enumerate() {
        let Run::Rows(n, run) = &case.run else { continue };
        for (s, device) in devices.iter().enumerate() {
            let check = |how: &str| Comparison {
                gate: GATE,
                case: format!("{case} {how} on {}", name(device)),
                seed: case.seed,
            };
            let whole = match case.whole(device) {
                Ok(whole) => whole,
                Err(error) => return Err(check("complete").failed(&error)),
            };
            for (how, rows) in selections(*n, case.seed, i + s) {
                let want: Vec<Vec<f32>> = rows.iter().map(|&r| whole[r].clone()).collect();
                counts.values += check(&how).same(run(device, &rows), &want)?;
            }
        }
        counts.cases += 1;
    }
    Ok(counts)
}

/// The sets of the `n` rows that are computed together in round `round`.
fn selections(n: usize, seed: u64, round: usize) -> Vec<(String, Vec<usize>)> {
    let mut rng = CaseRng::new(seed + round as u64);
    let mut alone: Vec<usize> = vec![0, n - 1, rng.below(n)];
    alone.sort_unstable();
    alone.dedup();
    let mut all: Vec<(String, Vec<usize>)> =
        alone.into_iter().map(|r| (format!("row {r} alone"), vec![r])).collect();
    if n > 1 && round.is_multiple_of(2) {
        all.push(("backwards".into(), (0..n).rev().collect()));
    } else if n > 1 {
        for size in [2, 3, 4, 9] {
            let some = rng.shuffled(n).into_iter().take(size).collect::<Vec<_>>();
            all.push((format!("rows {some:?}"), some));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::table::TABLE;

    #[test]
    fn a_row_does_not_depend_on_other_rows() {
        let mut total = Counts::default();
        for entry in &TABLE {
            let counts = gate(&(entry.cases)()).unwrap_or_else(|difference| panic!("{difference}"));
            total.cases += counts.cases;
            total.values += counts.values;
        }
        println!("gate {GATE}: {total}");
        assert!(total.cases >= 500, "{total:?}");
    }

    #[cfg(feature = "faults")]
    #[test]
    fn a_sum_reversed_for_one_row_is_found() {
        let cases = crate::gates::cases::linear();
        let seen = crate::faults::with(crate::faults::Fault::SingleRowSumReversed, || gate(&cases))
            .expect_err("a fault");
        assert_eq!((seen.gate, seen.row), (GATE, 0));
        assert!(seen.case.starts_with("linear/") && seen.case.contains("alone"), "{seen}");
        gate(&cases).expect("the fault is off");
    }
}
