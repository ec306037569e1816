//! Runs one test in a process of its own, with limits of time and memory.
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::scratch::Test;

/// Resident memory of a test and of what it starts, in pages of 4 KiB: a mutated loop may never stop allocating. The
/// address space is not limited: the emulator reserves more than it uses.
const MEMORY: u64 = 3 << 20;

/// Runs `test` with the mutant `active` (a number or `record`) for at most `limit`. `temporary` is its directory for
/// temporary files and is emptied. Returns whether the test passed. A test that is stopped has failed.
pub fn passes(test: &Test, active: &str, limit: Duration, temporary: &Path) -> bool {
    let _ = fs::remove_dir_all(temporary);
    fs::create_dir_all(temporary).expect("can be created");
    let mut command = Command::new(&test.binary);
    command.args([&test.name, "--exact", "--test-threads=1"]).current_dir(&test.directory);
    command
        .env("XTRAIN_MUTANT", active)
        .env("XTRAIN_MUTANT_FILE", record_file(temporary))
        .env("TMPDIR", temporary);
    command.env("CARGO_MANIFEST_DIR", &test.directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().expect("a test binary starts");
    let start = Instant::now();
    let mut next_check = Duration::from_millis(100);
    let passed = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status.success();
        }
        if start.elapsed() > next_check {
            next_check += Duration::from_millis(100);
            if start.elapsed() > limit || resident(child.id()) > MEMORY {
                break false;
            }
        }
        sleep(Duration::from_millis(2));
    };
    // its process group: the test and what it started
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    let _ = child.wait();
    passed
}

/// The resident memory of a process group in pages.
fn resident(group: u32) -> u64 {
    let processes = fs::read_dir("/proc").expect("Linux").flatten();
    let stats = processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    // the fields after the name: state, parent, group, ..; the 22nd is the resident memory
    let fields = |stat: &str| -> Option<(u32, u64)> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some((fields.get(2)?.parse().ok()?, fields.get(21)?.parse().ok()?))
    };
    let of_group = stats.filter_map(|stat| fields(&stat)).filter(|(its_group, _)| *its_group == group);
    of_group.map(|(_, pages)| pages).sum()
}

/// Where a recorded test writes what it reaches.
pub fn record_file(temporary: &Path) -> std::path::PathBuf {
    temporary.with_extension("reached")
}

/// Runs `work` on the numbers below `count`, on as many threads as there are processors.
pub fn parallel(count: usize, work: impl Fn(usize, &str) + Sync) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (next, work) = (&next, &work);
            scope.spawn(move || {
                let name = format!("tmp{thread}");
                loop {
                    let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if at >= count {
                        break;
                    }
                    work(at, &name);
                }
            });
        }
    });
}
