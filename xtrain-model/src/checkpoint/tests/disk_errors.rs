//! A full disk and errors of the system, at every call of a save.
use std::io::ErrorKind;

use super::*;

/// Opens and saves with `plan(call)` injected at each call, on copies of a disk with one checkpoint.
#[track_caller]
fn check(plan: impl Fn(u64) -> Injected) {
    let (first, second) = (Sample::small(1, 0), Sample::small(2, 0));
    let (before, _) = saved(&first);
    let mut failed = 0;
    for call in 0.. {
        let fs = before.fork();
        let begin = fs.calls();
        fs.inject(Some(plan(begin + call)));
        let done = CheckpointDir::open(Arc::new(fs.clone()), run(), 2)
            .and_then(|checkpoints| second.with(|snapshot| checkpoints.save(snapshot)));
        let calls = fs.calls() - begin;
        fs.inject(None);
        let found = newest(&fs).unwrap();
        assert!(found.refused.is_empty(), "call {call}: {}", found.refused[0]);
        match &done {
            Ok(_) => assert!(second.is(&found.loaded), "call {call}"),
            Err(error) => {
                failed += 1;
                let text = error.to_string();
                assert!(
                    matches!(error, CheckpointError::Io { path, .. } if path.starts_with("run") || path == Path::new(".")),
                    "call {call}: {text}"
                );
                assert!(first.is(&found.loaded) || second.is(&found.loaded), "call {call}");
            }
        }
        let after = fs.power_cut(&mut |n| n - 1);
        let found = newest(&after).unwrap();
        assert!(second.is(&found.loaded) || (done.is_err() && first.is(&found.loaded)), "call {call}");
        let _ = second.with(|snapshot| opened(&fs).save(snapshot)).unwrap();
        assert!(second.is(&newest(&fs).unwrap().loaded), "call {call}: the next save");
        if call >= calls {
            break;
        }
    }
    println!("disk errors: {failed} saves refused");
    assert!(failed > 40, "{failed}");
}

#[test]
fn an_io_error_at_any_call_names_its_path_and_loses_nothing() {
    check(|call| Injected::Once(call, ErrorKind::Other));
}

#[test]
fn a_disk_that_is_full_from_any_call_on_loses_nothing() {
    check(Injected::DiskFull);
}

#[test]
fn a_directory_that_cannot_be_written_loses_nothing() {
    check(|call| Injected::Once(call, ErrorKind::PermissionDenied));
    check(|call| Injected::Once(call, ErrorKind::ReadOnlyFilesystem));
}

#[test]
fn a_full_disk_is_reported_as_such() {
    let (fs, _) = saved(&Sample::small(1, 0));
    let checkpoints = opened(&fs);
    fs.inject(Some(Injected::DiskFull(fs.calls())));
    let error = Sample::small(2, 0).with(|snapshot| checkpoints.save(snapshot)).unwrap_err().to_string();
    assert!(
        error.contains("cannot create run/checkpoints/step_000002.tmp-")
            && error.contains("no storage space"),
        "{error}"
    );
}
