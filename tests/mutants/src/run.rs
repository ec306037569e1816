//! Runs each mutant with the tests that reach it until one fails.
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::points::Mutant;
use crate::process::{parallel, passes};
use crate::scratch::{Equivalent, Outcome, Scratch, Test, by_mutant};

/// Time for the tests of one mutant, in seconds as recorded. Tests beyond it are not run, and the table says so.
const BUDGET: f64 = 90.0;

/// Appends an outcome for each mutant of a file that begins with `prefix`, unless it is caught, in `equivalent`, or the
/// same tests have run with it.
pub fn run(scratch: &Scratch, prefix: &str, equivalent: &Equivalent) {
    let tests: Vec<Test> = scratch.read("tests.json").expect("run `mutants record` first");
    let reaching = by_mutant(&tests);
    let known = scratch.outcomes();
    let mut mutants = scratch.mutants();
    let settled = |mutant: &Mutant| {
        let tests = reaching.get(&mutant.id).map_or(0, Vec::len);
        known.get(&mutant.key).is_some_and(|outcome| outcome.caught.is_some() || outcome.reaching == tests)
    };
    mutants.retain(|mutant| {
        mutant.file.starts_with(prefix) && !equivalent.contains_key(&mutant.key) && !settled(mutant)
    });
    // the test that caught a mutant of a function probably catches the next one
    let last = Mutex::new(HashMap::new());
    let done = Mutex::new((0, 0));
    parallel(mutants.len(), |at, temporary| {
        let mutant = &mutants[at];
        let mut candidates = reaching.get(&mutant.id).cloned().unwrap_or_default();
        let function = mutant.key.rsplitn(2, ": ").last().unwrap_or_default().to_string();
        let first = last.lock().expect("no thread panics").get(&function).cloned();
        let outside = |test: &Test| !mutant.file.starts_with(directory(test));
        candidates.sort_by(|a, b| {
            let slow = |test: &Test| test.seconds > 1.0 && !compares_outputs(test);
            let order = |test: &Test| (Some(&test.name) != first.as_ref(), slow(test), outside(test));
            order(a).cmp(&order(b)).then(a.seconds.total_cmp(&b.seconds))
        });
        let outcome = attempt(mutant, &candidates, &scratch.0.join(temporary));
        if let Some(name) = &outcome.caught {
            last.lock().expect("no thread panics").insert(function, name.clone());
        }
        scratch.add_outcome(&outcome);
        let mut done = done.lock().expect("no thread panics");
        done.0 += 1;
        if outcome.caught.is_none() {
            done.1 += 1;
            println!("{}/{}: survivor {} ({} tests)", done.0, mutants.len(), mutant.key, outcome.ran);
        }
    });
}

/// Whether a test compares whole outputs: a transcript or a record, which find many mutants.
fn compares_outputs(test: &Test) -> bool {
    let binary = test.binary.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    ["transcripts-", "records-"].iter().any(|start| binary.starts_with(start))
}

/// The directory of the test's crate, as a prefix of its files.
fn directory(test: &Test) -> &str {
    test.directory.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn attempt(mutant: &Mutant, candidates: &[&Test], temporary: &std::path::Path) -> Outcome {
    let mut outcome = Outcome { key: mutant.key.clone(), caught: None, reaching: candidates.len(), ran: 0 };
    let mut left = BUDGET;
    for test in candidates {
        left -= test.seconds;
        if left < 0.0 && outcome.ran > 0 {
            continue;
        }
        outcome.ran += 1;
        let limit = Duration::from_secs_f64(5.0 + 8.0 * test.seconds);
        // without the mutant the test passes again: it is not the load of the machine
        if !passes(test, &mutant.id.to_string(), limit, temporary) && passes(test, "0", 4 * limit, temporary)
        {
            outcome.caught = Some(test.name.clone());
            break;
        }
    }
    outcome
}
