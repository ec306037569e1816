//! `xtrain verify` as a process: exit code 0 if all values agree, 1 if one differs.
use std::process::Output;

use crate::cli::program;
use crate::fixtures::path;

fn verify(words: &[&str]) -> Output {
    let mut command = program();
    command.arg("verify").arg(path("models/qwen3_tied")).args(["--max-new", "5", "--threads", "2"]);
    command.args(words).output().unwrap()
}

#[test]
fn verify_exits_with_0_if_every_bit_agrees() {
    let done = verify(&[]);
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(done.status.code(), Some(0), "{err}");
    assert!(out.contains("values compared") && out.contains(" 0 differ"), "{out}");
}

#[cfg(feature = "faults")]
#[test]
fn verify_exits_with_1_and_names_the_position_of_a_planted_fault() {
    for fault in [
        xtrain::tensor::faults::Fault::DroppedCacheWrite,
        xtrain::tensor::faults::Fault::PageOffByOne,
        xtrain::tensor::faults::Fault::SingleRowSumReversed,
    ] {
        let done = verify(&["--fault", &fault.to_string()]);
        let err = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{fault}: {err}");
        assert!(err.contains("bits differ, first at sequence "), "{fault}: {err}");
    }
}
