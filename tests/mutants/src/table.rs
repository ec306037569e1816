//! Writes docs/mutants.md from the outcomes and from the list of equivalent mutants.
use std::fs;
use std::path::Path;

use crate::build;
use crate::points::Mutant;
use crate::sample::Selection;
use crate::scratch::{EQUIVALENT, Outcome, Scratch, equivalent};

const HEAD: &str = "# Mutation testing

Each mutant is one change of a source: an operator, the guard of a match arm, or the body of a function. A mutant is
caught if a test fails, crashes or takes too long with it. [CONTRIBUTING](contributing.md) describes how to run this
again; the program is in `tests/mutants`. This page is generated. The first table is a run of all mutants of some
modules; samples of all modules, with more kinds of mutants, are at the end.

| column | meaning |
|---|---|
| caught | a test fails with the mutant |
| equivalent | no test can catch it; the reason is below |
| open | no test that ran has caught it |
| unreached | open, and no test that was recorded reaches it |

Tests that take long are left out: the random gate of invariance, the test of all power cuts, and some of the emulator.
An open mutant may be caught by one of them. \"N of M tests\": the other tests that reach it did not run. A mutant that an
earlier run caught is not run again.

";

/// Writes the page of the mutants of `all`. Warns of listed equivalent mutants that do not exist in `all` or, if the list
/// is that of samples, in `sampled`, and of those that are caught.
pub fn write(repository: &Path, scratch: &Scratch, [all, sampled]: [&Selection; 2]) {
    let modules = all.modules;
    let outcomes = scratch.outcomes();
    let mutants = scratch.mutants();
    let equivalent = equivalent(repository, EQUIVALENT[0]);
    let mut page = HEAD.to_string();
    page += "| module | mutants | caught | equivalent | open | of these unreached | not run |\n|---|--:|--:|--:|--:|--:|--:|\n";
    let (mut reasons, mut open) = (String::new(), String::new());
    let mut sums = [0; 6];
    for module in modules {
        let mut row = [0; 6];
        for mutant in mutants.iter().filter(|mutant| mutant.file.starts_with(module)) {
            row[0] += 1;
            let reason = equivalent.get(&mutant.key);
            match outcomes.get(&mutant.key) {
                Some(Outcome { caught: Some(test), .. }) => {
                    row[1] += 1;
                    if reason.is_some() {
                        println!("not equivalent, caught by {test}: {}", mutant.key);
                    }
                }
                _ if reason.is_some() => {
                    row[2] += 1;
                    reasons += &format!("{}\n    {}\n", mutant.key, reason.expect("is some"));
                }
                None => row[5] += 1,
                Some(outcome) => {
                    row[3] += 1;
                    row[4] += usize::from(outcome.reaching == 0);
                    open += &line(mutant, outcome);
                }
            }
        }
        page += &format!("| {} |{}\n", module.replace("/src/", ": ").trim_end_matches('/'), cells(&row));
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
    page += &format!("| **all** |{}\n", cells(&sums));
    page += &format!("\n## Equivalent mutants\n\n```text\n{reasons}```\n");
    page += &format!("\n## Open mutants\n\n```text\n{open}```\n");
    page += &samples(repository);
    fs::write(repository.join("docs/mutants.md"), page).expect("docs/mutants.md can be written");
    for (list, selection) in EQUIVALENT.into_iter().zip([all, sampled]) {
        for key in stale(repository, list, selection) {
            println!("{list}: no such mutant: {key}");
        }
    }
}

/// The keys of a list of equivalent mutants that the sources do not have, sorted.
fn stale(repository: &Path, list: &str, selection: &Selection) -> Vec<String> {
    let keys = build::keys(repository, selection);
    let mut stale: Vec<_> =
        equivalent(repository, list).into_keys().filter(|key| !keys.contains(key)).collect();
    stale.sort();
    stale
}

/// The text about samples, and their equivalent mutants.
fn samples(repository: &Path) -> String {
    let text = fs::read_to_string(repository.join("tests/mutants/samples.md")).expect("samples.md");
    let mut all: Vec<_> = equivalent(repository, EQUIVALENT[1]).into_iter().collect();
    all.sort();
    let lines: String = all.iter().map(|(key, reason)| format!("{key}\n    {reason}\n")).collect();
    format!("\n{text}\n### Equivalent mutants of samples\n\n```text\n{lines}```\n")
}

fn cells(row: &[usize; 6]) -> String {
    row.iter().map(|value| format!(" {value} |")).collect()
}

fn line(mutant: &Mutant, outcome: &Outcome) -> String {
    let note = match outcome {
        Outcome { reaching: 0, .. } => " (unreached)".to_string(),
        Outcome { reaching, ran, .. } if ran < reaching => format!(" ({ran} of {reaching} tests)"),
        _ => String::new(),
    };
    format!("{}{note}\n", mutant.key)
}
