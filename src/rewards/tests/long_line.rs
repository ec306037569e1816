//! A long line of standard error in the log.
use super::*;

/// The log of a program that writes a line of 1000 zeros and a short one to standard error.
fn log_of_a_long_line() -> String {
    let dir = tempfile::tempdir().unwrap();
    let options = ExternalOptions { log_dir: Some(dir.path().into()), ..options(1) };
    let command = shlex::try_join(["sh", "-c", "printf '%01000d\nbye\n' 0 >&2; cat > /dev/null"]).unwrap();
    let reward = ExternalReward::start(&command, &options).unwrap();
    let (log, clock) = (dir.path().join("reward-0.log"), Instant::now());
    let read = || std::fs::read_to_string(&log).unwrap();
    while !read().ends_with("bye\n") {
        assert!(clock.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(reward);
    read()
}

#[test]
fn the_log_has_all_of_a_long_line_of_standard_error() {
    assert_eq!(log_of_a_long_line(), format!("{}\nbye\n", "0".repeat(1000)));
}

#[test]
#[cfg(feature = "faults")]
fn a_line_that_is_cut_in_the_log_is_found() {
    use crate::tensor::faults::{self, Fault};

    let log = faults::with(Fault::LogLineCut, log_of_a_long_line);
    assert_eq!(log, format!("{}bye\n", "0".repeat(400)));
}
