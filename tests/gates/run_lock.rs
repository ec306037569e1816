//! The lock of a run is released when its holder is dropped, although a process that is being started at that moment
//! has copies of all open descriptors.
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xtrain::model::checkpoint::{CheckpointDir, RealFs};

use crate::cli::Scratch;

/// Copies of the open descriptors of a file.
fn copies(file: &Path) -> Vec<OwnedFd> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let of_file = open.filter(|link| std::fs::read_link(link).is_ok_and(|target| target == file));
    let number = |link: PathBuf| link.file_name().unwrap().to_str().unwrap().parse().unwrap();
    // all of them before the first copy, which would be one more entry of the directory that is being read
    let numbers: Vec<i32> = of_file.map(number).collect();
    // SAFETY: the caller holds the file, so its descriptors stay open.
    numbers.into_iter().map(|n| unsafe { BorrowedFd::borrow_raw(n) }.try_clone_to_owned().unwrap()).collect()
}

/// Locks a run, copies the descriptor and locks the run again after its holder is dropped.
pub(crate) fn over() -> Result<usize, String> {
    let scratch = Scratch::new("run-lock");
    let run = scratch.0.canonicalize().unwrap();
    let open = || CheckpointDir::open(Arc::new(RealFs), &run, 2);
    let held = open().unwrap();
    let copies = copies(&run.join("lock"));
    let (count, locked) = (copies.len(), open().is_err());
    drop(held);
    let again = open().map(drop);
    drop(copies);
    match (count, locked, again) {
        (1, true, Ok(())) => Ok(count),
        (_, _, again) => Err(format!(
            "gate run lock, seed 0: expected one descriptor, a locked run and a run that is not locked after its holder, \
             found {count} descriptors, {locked} and {again:?}"
        )),
    }
}

#[test]
fn a_run_is_not_locked_after_its_holder_although_its_descriptor_was_copied() {
    over().unwrap_or_else(|e| panic!("{e}"));
}
