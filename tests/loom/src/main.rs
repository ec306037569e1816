//! Tries the interleavings of the thread pool of xtrain-tensor, up to a number of preemptions, and checks that every
//! chunk of every job runs once, that a job has ended when `run` returns, and that no thread waits for ever. Then it
//! plants faults and expects that each is found.
//!
//!     cargo run --release --manifest-path tests/loom/Cargo.toml
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sync::{Fault, plant};

mod faults;
#[path = "../../../xtrain-tensor/src/lock.rs"]
mod lock;
#[path = "../../../xtrain-tensor/src/device/pool.rs"]
#[allow(dead_code, unfulfilled_lint_expectations, reason = "the operations use more of it")]
mod pool;
mod sync;

use loom::cell::UnsafeCell;
use pool::Pool;

/// Runs jobs of these numbers of chunks on a pool, one after the other, and drops it.
fn jobs(threads: usize, jobs: &[usize]) {
    let pool = Pool::new(threads);
    assert_eq!(pool.threads(), threads);
    for &chunks in jobs {
        // loom reports an access that the end of the job does not order
        let hits: Vec<Hits> = (0..chunks).map(|_| Hits(UnsafeCell::new(0))).collect();
        pool.run(chunks, |i| hits[i].0.with_mut(|hits| unsafe { *hits += 1 }));
        for (i, hits) in hits.iter().enumerate() {
            let hits = hits.0.with(|hits| unsafe { *hits });
            assert_eq!(hits, 1, "calls of chunk {i} of {chunks}");
        }
    }
}

/// The number of calls of one chunk.
struct Hits(UnsafeCell<u32>);

// SAFETY: loom checks the accesses.
unsafe impl Sync for Hits {}

/// A model: the number of threads, the chunks of each job, and the maximum number of preemptions.
struct Case {
    threads: usize,
    jobs: &'static [usize],
    preemptions: usize,
}

const CASES: [Case; 4] = [
    Case { threads: 2, jobs: &[2], preemptions: 4 },
    Case { threads: 2, jobs: &[3, 2], preemptions: 3 },
    Case { threads: 2, jobs: &[2, 2, 2], preemptions: 2 },
    Case { threads: 3, jobs: &[3], preemptions: 2 },
];

/// Tries the interleavings of a case and returns their number. Panics or aborts at the first failure.
fn explore(case: &Case) -> usize {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(case.preemptions);
    model.max_branches = 100_000;
    let Case { threads, jobs: chunks, .. } = *case;
    model.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        jobs(threads, chunks);
    });
    count.load(Ordering::Relaxed)
}

/// The planted faults and a part of the message with which each is found.
const FAULTS: [(Fault, &str); 3] = [
    (Fault::NoFences, "deadlock"),
    (Fault::Relaxed, "Causality violation"),
    (Fault::NoNotification, "deadlock"),
];

/// The message with which a process with a planted fault ends. `None`: it ends without a failure.
fn failure(fault: Fault) -> Option<String> {
    let program = std::env::current_exe().expect("this program has a path");
    let output = Command::new(program).arg(format!("{fault:?}")).env("RUST_BACKTRACE", "0").output();
    let output = output.expect("this program starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let message = errors.lines().skip_while(|line| !line.contains("panicked")).nth(1).unwrap_or("no message");
    (!output.status.success()).then(|| message.to_string())
}

fn main() -> ExitCode {
    if let Some(name) = std::env::args().nth(1) {
        let fault = FAULTS.into_iter().find(|(fault, _)| format!("{fault:?}") == name);
        plant(fault.unwrap_or_else(|| panic!("expected one of {FAULTS:?}, found {name}")).0);
        CASES.iter().for_each(|case| _ = explore(case));
        return ExitCode::SUCCESS;
    }
    println!("threads  jobs       preemptions  interleavings");
    for case in &CASES {
        let jobs = format!("{:?}", case.jobs);
        println!("{:>7}  {jobs:<9}  {:>11}  {:>13}", case.threads, case.preemptions, explore(case));
    }
    let mut all_found = true;
    for (fault, want) in FAULTS {
        let failure = failure(fault);
        all_found &= failure.as_deref().is_some_and(|message| message.contains(want));
        println!("{fault:?}: expected {want:?}, found {:?}", failure.as_deref().unwrap_or("no failure"));
    }
    if all_found { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
