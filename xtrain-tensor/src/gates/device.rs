//! Gate: every instruction set and number of threads has the bits of the reference.
use super::case::Case;
use super::{Comparison, Counts, Difference, devices, name, reference};

const GATE: &str = "device";

/// Runs every case on every instruction set, alternating between three threads and one. The reference with one thread
/// gives the expected values.
fn gate(cases: &[Case]) -> Result<Counts, Difference> {
    let (mut counts, reference, devices) = (Counts::default(), reference(), devices(&[1, 3]));
    for (i, case) in cases.iter().enumerate() {
        let check =
            |how: String| Comparison { gate: GATE, case: format!("{case} on {how}"), seed: case.seed };
        let want = match case.whole(&reference) {
            Ok(want) => want,
            Err(error) => return Err(check(name(&reference)).failed(&error)),
        };
        for device in devices.iter().skip(1 + i % 2).step_by(2) {
            counts.values += check(name(device)).same(case.whole(device), &want)?;
        }
        counts.cases += 1;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::table::TABLE;

    #[test]
    fn every_instruction_set_and_thread_count_has_the_bits_of_the_reference() {
        let mut total = Counts::default();
        for entry in &TABLE {
            let start = std::time::Instant::now();
            let counts = gate(&(entry.cases)()).unwrap_or_else(|difference| panic!("{difference}"));
            println!("{:24} {counts}, {:?}", entry.name, start.elapsed());
            total.cases += counts.cases;
            total.values += counts.values;
        }
        println!("gate {GATE}: {total}");
        assert!(total.cases >= 600, "{total:?}");
    }

    #[test]
    fn no_case_has_a_non_finite_result() {
        for case in TABLE.iter().flat_map(|entry| (entry.cases)()) {
            let rows = case.whole(&reference()).unwrap_or_else(|error| panic!("{case}: {error}"));
            let removed = |x: f32| case.op == "log_prob" && x == f32::NEG_INFINITY;
            // one case has an infinite gradient, whose norm, the first value, is infinite
            let norm = |at: usize| at == 0 && case.op == "adamw_all";
            for (n, row) in rows.iter().enumerate() {
                let bad = (0..row.len()).find(|&at| !(row[at].is_finite() || removed(row[at]) || norm(at)));
                assert!(bad.is_none(), "{case}: row {n}, value {bad:?} of {row:?}");
            }
        }
    }
}
