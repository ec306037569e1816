//! Errors of one of two processes.
use super::*;

/// The error of scoring four completions with two processes. Process 0 has the ids 0 and 3, process 1 has 1 and 2.
#[track_caller]
fn error_of_two(body: &str, limit: Duration) -> String {
    let body = format!("{body}; echo \"{{\\\"id\\\":$id,\\\"reward\\\":1}}\"");
    let options = ExternalOptions { time_limit: limit, ..options(2) };
    let mut reward = ExternalReward::start(&shell(&body), &options).unwrap();
    let samples = samples(4);
    reward.score(&inputs(&samples)).unwrap_err().to_string()
}

/// Checks that an error contains `parts` and ends with the lines `stderr`. The command line is a part of it, too.
#[track_caller]
fn assert_error(error: &str, parts: &[&str], stderr: &str) {
    for part in parts {
        assert!(error.contains(part), "{part}: {error}");
    }
    let (_, found) = error.split_once("; the last lines of its standard error:\n").unwrap_or_default();
    assert_eq!(found, stderr, "{error}");
}

#[test]
fn the_process_that_dies_is_named_with_its_completions_and_its_last_words() {
    let body = "case $id in 0) sleep 5;; 1) echo broken >&2; exit 7;; esac";
    let error = error_of_two(body, Duration::from_secs(20));
    let parts = [
        "reward process 1 (",
        "): prompt 0, completion 1: ended with exit status: 7",
        "(2 completions without a reply)",
    ];
    assert_error(&error, &parts, "broken");
}

#[test]
fn the_process_that_hangs_is_named_with_its_completions_and_its_last_words() {
    let body = "case $id in 1) echo stuck >&2; sleep 60;; *) echo fine >&2;; esac";
    let error = error_of_two(body, Duration::from_millis(1200));
    let parts = [
        "reward process 1 (",
        "): prompt 0, completion 1: no reply within 1.2 s",
        "(2 completions without a reply)",
    ];
    assert_error(&error, &parts, "stuck");
}
