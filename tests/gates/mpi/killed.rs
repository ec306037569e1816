//! Training on processes that are killed.
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use xtrain::tensor::rng::{Purpose, uniform_u64};
use xtrain::tensor::testing::times;

use super::launched::{Launched, kill, ranks, wait_for};
use super::{fails, mpirun, small, succeeds, words};
use crate::cli::{Scratch, program};
use crate::kill::{bytes, unfinished_save, write_text};

/// Waits until a process of `all` is inside a save that it was not inside of before, or `mpirun` has ended.
fn await_save(child: &mut Child, all: &[i32], run: &Path) {
    let inside = || all.iter().find_map(|&rank| unfinished_save(rank as u32, run));
    let before = inside();
    while child.try_wait().unwrap().is_none() {
        let now = inside();
        if now.is_some() && now != before {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_run_whose_processes_are_killed_ends_and_resumes_with_the_same_bytes() {
    let (min_kills, min_inside) = (times(4, 20), times(1, 5));
    let steps = 30 * min_kills;
    let scratch = Scratch::new("mpi-kill");
    write_text(&scratch.0);
    let start = |run: &str| [small(steps, "train.save_every=1"), vec!["--run".into(), run.into()]].concat();
    assert!(program().args(start("whole")).current_dir(&scratch.0).output().unwrap().status.success());
    let want = bytes(&scratch.0.join("whole"), steps);
    let run = scratch.0.join("killed");
    let can_resume = || crate::kill::checkpoints(&run).iter().any(|name| !name.contains(".tmp-"));
    let (mut kills, mut inside_a_save, mut rounds) = (0, 0, 0);
    while kills < min_kills || inside_a_save < min_inside {
        rounds += 1;
        assert!(rounds <= 5 * min_kills, "{kills} kills, {inside_a_save} inside a save");
        let size = [4, 2][rounds as usize % 2];
        let args = match can_resume() {
            true => ["train", "--resume", "killed", "--threads", "1"].map(String::from).to_vec(),
            false => {
                let _ = fs::remove_dir_all(&run);
                start("killed")
            }
        };
        let mut command = mpirun(&scratch.0, size, &words(&args));
        let mut child = Launched::new(command.stdout(Stdio::null()).stderr(Stdio::piped()));
        let before = crate::kill::checkpoints(&run);
        let all = wait_for("all processes have started", || {
            Some(ranks(&child)).filter(|all| all.len() == size || child.try_wait().unwrap().is_some())
        });
        let ended = wait_for("a checkpoint", || match child.try_wait().unwrap() {
            Some(_) => Some(true),
            None => (crate::kill::checkpoints(&run) != before).then_some(false),
        });
        let random = uniform_u64(11, rounds, 0, Purpose::Prompts);
        // alternating: at any instant, and inside a save
        match rounds % 4 < 2 {
            true => std::thread::sleep(Duration::from_micros(random % 50_000)),
            false => await_save(&mut child, &all, &run),
        }
        if !ended {
            let victim = all[(random >> 32) as usize % all.len()];
            kill(victim);
        }
        let status =
            wait_for("mpirun ends after one of its processes was killed", || child.try_wait().unwrap());
        let errors = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        if status.success() {
            // finished before it was killed: start again
            fs::remove_dir_all(&run).unwrap();
            continue;
        }
        assert!(errors.contains("process rank ") && errors.contains("signal 9"), "{errors}");
        assert_eq!(status.code(), Some(137), "{errors}");
        kills += 1;
        inside_a_save += u64::from(all.iter().any(|&rank| unfinished_save(rank as u32, &run).is_some()));
    }
    println!("mpi: {kills} kills, {inside_a_save} of them inside a save");
    if can_resume() {
        let _ = succeeds(mpirun(&scratch.0, 2, &["train", "--resume", "killed", "--threads", "1"]));
    } else {
        let _ = fs::remove_dir_all(&run);
        let _ = succeeds(mpirun(&scratch.0, 2, &words(&start("killed"))));
    }
    assert_eq!(bytes(&run, steps), want);
    let other = ["train", "--resume", "killed", "--threads", "1", "--set", "train.shards=2"];
    let (code, errors) = fails(mpirun(&scratch.0, 2, &other));
    assert!(errors.contains("--resume cannot change train.shards"), "{errors}");
    assert!(errors.contains("the number of processes may change, to a divisor of 4"), "{errors}");
    assert_eq!((code, errors.matches("error: ").count()), (2, 1), "{errors}");
}
