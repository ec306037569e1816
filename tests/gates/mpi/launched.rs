//! A running `mpirun` and its processes.
use std::fs;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A run of `mpirun`. A test that fails leaves no process.
pub(super) struct Launched(Child);

impl Launched {
    pub(super) fn new(command: &mut Command) -> Launched {
        Launched(command.spawn().unwrap())
    }
}

impl Deref for Launched {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Launched {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if let Ok(None) = self.try_wait() {
            ranks(self).into_iter().for_each(kill);
            let _ = self.kill();
            let _ = self.wait();
        }
    }
}

/// The processes that `mpirun` has started.
pub(super) fn ranks(mpirun: &Child) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", mpirun.id())).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let all: Vec<i32> = children
        .flat_map(|pids| pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    let is_rank =
        |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "xtrain");
    all.into_iter().filter(is_rank).collect()
}

/// Kills a process of [`ranks`].
pub(super) fn kill(rank: i32) {
    // SAFETY: it is a child of mpirun, which waits for it only when it has ended.
    let _ = unsafe { libc::kill(rank, libc::SIGKILL) };
}

/// Waits for a condition, at most a minute.
#[track_caller]
pub(super) fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "after 60 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
