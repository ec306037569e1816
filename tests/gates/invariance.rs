//! The random invariance gate: all logits have the same bits for any cache, page size, chunk, batch, number of
//! threads and instruction set. Those over an int8 or a sinks cache have the bits of its naive definition.
//!
//! The test command runs 5,000 cases; `XTRAIN_SOAK=1` runs 20,000.
mod case;
mod drive;
mod oracle;
mod outcome;
mod shrink;

use std::ops::Range;

use case::Case;
use oracle::Answers;
pub(crate) use outcome::{Counts, Difference};
use xtrain::tensor::testing::times;

/// Number of cases in each of the tests below.
const CASES: u64 = 1000;

/// Minimum counts of any 1,000 cases, on a machine where several instruction sets have FMA, or none.
const MINIMUM: Counts = Counts {
    cases: 1000,
    rows: 200_000,
    values: 7_500_000,
    f32: 400,
    bf16: 400,
    growing: 80,
    contiguous: 80,
    paged: 600,
    int8: 180,
    sinks: 50,
    sinks_exact: 10,
    chunked: 1000,
    mixed: 600,
    prefill_with_decode: 400,
    threads: 400,
    simd: 300,
    engine: 150,
    shared: 200,
    recomputed: 100,
    crosses_64: 200,
    crosses_256: 50,
    literal: 20,
    windowed: 120,
    offloaded: 45,
    evicted: 35,
    member: 5,
    member_evicted: 5,
};

/// The minimum counts on this machine. If a single instruction set has FMA, the others are drawn less often.
fn minimum() -> Counts {
    let simd = if case::simd_groups().1.len() > 1 { MINIMUM.simd } else { 90 };
    Counts { simd, ..MINIMUM }
}

/// Runs one case: the oracle, then the path under test.
fn check(case: &Case) -> Result<Counts, Difference> {
    compare(case, &Answers::of(case)?)
}

/// Compares the path under test with the answers.
fn compare(case: &Case, answers: &Answers) -> Result<Counts, Difference> {
    let mut seen = drive::run(case, answers)?;
    if case.oracle.literal {
        seen.rows += answers.tokens.iter().map(Vec::len).sum::<usize>();
    }
    Ok(Counts::of(case, seen))
}

/// Runs the cases with these numbers. The first failing case is shrunk.
fn cases(
    numbers: Range<u64>,
    check: &dyn Fn(&Case) -> Result<Counts, Difference>,
) -> Result<Counts, Box<Difference>> {
    let mut all = Counts::default();
    for case in numbers.map(Case::draw) {
        match check(&case) {
            Ok(counts) => {
                let axes = 1 + counts.paged + counts.chunked + counts.mixed + counts.threads;
                assert!(counts.rows >= 64 && axes >= 2, "a trivial case: {counts}\n{case:?}");
                all.add(&counts);
            }
            Err(difference) => {
                let fails = |case: &Case| check(case).err();
                return Err(Box::new(shrink::shrink(case, difference, &fails).1));
            }
        }
    }
    Ok(all)
}

/// Runs the `part`-th 1,000 cases, or 4,000 in the longer suite.
#[track_caller]
fn part(part: u64) {
    let times = times(1, 4);
    let n = times * CASES;
    let counts = cases(part * n..(part + 1) * n, &check).unwrap_or_else(|difference| panic!("{difference}"));
    println!("invariance, part {part}: {counts}; 0 differ");
    if let Some((name, got, minimum)) = counts.short_of(&minimum().times(times as usize)) {
        panic!("invariance, part {part}: {name}: got {got}, want at least {minimum}");
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_batch_first_thousand() {
    part(0);
}

#[test]
fn a_row_has_the_same_bits_in_any_batch_second_thousand() {
    part(1);
}

#[test]
fn a_row_has_the_same_bits_in_any_batch_third_thousand() {
    part(2);
}

#[test]
fn a_row_has_the_same_bits_in_any_batch_fourth_thousand() {
    part(3);
}

#[test]
fn a_row_has_the_same_bits_in_any_batch_fifth_thousand() {
    part(4);
}

/// Runs the first `n` cases on two threads with a planted fault in the path under test, but not in the oracle.
/// Returns the first difference.
#[cfg(feature = "faults")]
pub(crate) fn under(fault: xtrain::tensor::faults::Fault, n: u64) -> Result<Counts, Box<Difference>> {
    cases(0..n, &|case| {
        let case = Case { threads: 2, ..case.clone() };
        let answers = Answers::of(&case)?;
        xtrain::tensor::faults::with(fault, || compare(&case, &answers))
    })
}
