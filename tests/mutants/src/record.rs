//! Runs each test once, without a mutant, and records which mutants it reaches.
use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::build::Binary;
use crate::process::{parallel, passes, record_file};
use crate::scratch::{Scratch, Test};

/// Tests that take longer are left out: the random gate of invariance, the test of all power cuts, and a few others.
const LONGEST: Duration = Duration::from_secs(150);

/// Tests that run other gates with planted faults.
const LEFT_OUT: &str = "faults::";

/// Adds the tests of the crates whose directory begins with `prefix` and whose names contain `name` to `tests.json`.
/// Tests that fail or take too long are named and left out.
pub fn record(scratch: &Scratch, prefix: &str, name: &str) {
    let mut binaries: Vec<Binary> = scratch.read("binaries.json").expect("run `mutants build` first");
    binaries
        .retain(|(_, directory)| directory.rsplit('/').next().is_some_and(|name| name.starts_with(prefix)));
    let mut known: Vec<Test> = scratch.read("tests.json").unwrap_or_default();
    let mut tests: Vec<Test> = binaries.iter().flat_map(list).collect();
    tests.retain(|test| test.name.contains(name));
    let again = |test: &Test| tests.iter().any(|t| (&t.binary, &t.name) == (&test.binary, &test.name));
    known.retain(|test| !again(test));
    let recorded = Mutex::new(Vec::new());
    parallel(tests.len(), |at, temporary| {
        let temporary = scratch.0.join(temporary);
        let mut test = tests[at].clone();
        let file = record_file(&temporary);
        let _ = fs::remove_file(&file);
        let start = Instant::now();
        if passes(&test, "record", LONGEST, &temporary) {
            test.seconds = start.elapsed().as_secs_f64();
            let reached = fs::read_to_string(&file).unwrap_or_default();
            test.reached = reached.lines().filter_map(|line| line.parse().ok()).collect();
            test.reached.sort_unstable();
            test.reached.dedup();
            recorded.lock().expect("no thread panics").push(test);
        } else {
            println!("left out: {} ({:.1} s)", test.name, start.elapsed().as_secs_f64());
        }
    });
    let recorded = recorded.into_inner().expect("no thread panics");
    println!("{} of {} tests recorded", recorded.len(), tests.len());
    known.extend(recorded);
    scratch.write("tests.json", &known);
}

/// The tests of a binary.
fn list((binary, directory): &Binary) -> Vec<Test> {
    let output = Command::new(binary).args(["--list", "--format=terse"]).current_dir(directory).output();
    let text = String::from_utf8(output.expect("a test binary starts").stdout).expect("names are UTF-8");
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    let test = |name: &str| Test {
        binary: binary.into(),
        directory: directory.into(),
        name: name.to_string(),
        seconds: 0.0,
        reached: Vec::new(),
    };
    names.filter(|name| !name.starts_with(LEFT_OUT)).map(test).collect()
}
