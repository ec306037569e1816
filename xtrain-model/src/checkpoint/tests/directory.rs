//! One writer, at least two checkpoints kept, no stale temporaries left.
use super::*;

fn names(fs: &dyn FileSystem, run: &Path) -> Vec<String> {
    fs.list(&run.join("checkpoints")).unwrap()
}

#[test]
fn two_writers_cannot_share_a_run() {
    let run = tempdir().unwrap();
    let held = CheckpointDir::open(Arc::new(RealFs), run.path(), 2).unwrap();
    let refused = CheckpointDir::open(Arc::new(RealFs), run.path(), 2).err().unwrap();
    assert!(
        matches!(&refused, CheckpointError::Locked { path } if *path == run.path().join("lock")),
        "{refused}"
    );
    drop(held);
    CheckpointDir::open(Arc::new(RealFs), run.path(), 2).unwrap();
}

#[test]
fn the_newest_are_kept_and_stale_temporaries_removed() {
    let run = tempdir().unwrap();
    let checkpoints = run.path().join("checkpoints");
    std::fs::create_dir_all(checkpoints.join("step_000001.tmp-77/trainer")).unwrap();
    std::fs::write(checkpoints.join("step_000001.tmp-77/trainer/control.bin"), "x").unwrap();
    std::fs::create_dir_all(checkpoints.join("step_notes.tmp-77")).unwrap();
    let open = CheckpointDir::open(Arc::new(RealFs), run.path(), 2).unwrap();
    for step in [1, 2, 30, 4, 5] {
        let saved = Sample::small(step, 0).with(|snapshot| open.save(snapshot)).unwrap();
        assert!(saved.not_pruned.is_none());
    }
    // Step 30 belongs to an abandoned run and is later than this one, so it is kept.
    let want = ["step_000004", "step_000005", "step_000030", "step_notes.tmp-77"];
    assert_eq!(names(&RealFs, run.path()), want);
}

/// The checkpoints of a run that keeps two, after step 2 was refused and steps 3, 4, 2 and 5 were saved.
fn kept_beside_a_refused_one() -> [Vec<String>; 4] {
    let run = tempdir().unwrap();
    let open = CheckpointDir::open(Arc::new(RealFs), run.path(), 2).unwrap();
    let save = |step| {
        let saved = Sample::small(step, 0).with(|snapshot| open.save(snapshot)).unwrap();
        assert!(saved.not_pruned.is_none());
        names(&RealFs, run.path())
    };
    let _ = [1, 2].map(save);
    let path = run.path().join("checkpoints/step_000002");
    let why = CheckpointError::field(path.join("manifest.json"), "step", "2", 7);
    open.exclude(&[Refused { path, why }]);
    [3, 4, 2, 5].map(save)
}

/// The names of checkpoints.
fn steps(steps: &[u64]) -> Vec<String> {
    steps.iter().map(|step| format!("step_{step:06}")).collect()
}

#[test]
fn a_checkpoint_that_cannot_be_loaded_is_not_one_of_those_that_are_kept() {
    // saved again, step 2 can be loaded
    assert_eq!(
        kept_beside_a_refused_one(),
        [steps(&[1, 2, 3]), steps(&[2, 3, 4]), steps(&[2, 3, 4]), steps(&[4, 5])]
    );
}

#[test]
#[cfg(feature = "faults")]
fn a_refused_checkpoint_that_counts_is_found() {
    use xtrain_tensor::faults::{self, Fault};

    let [first, ..] = faults::with(Fault::RefusedCheckpointCounted, kept_beside_a_refused_one);
    assert_eq!(first, steps(&[2, 3]));
}

#[test]
fn one_step_or_none_is_retained() {
    let run = tempdir().unwrap();
    let open = CheckpointDir::open(Arc::new(RealFs), run.path(), 3).unwrap();
    for step in [1, 2, 3] {
        let saved = Sample::small(step, 0).with(|snapshot| open.save(snapshot)).unwrap();
        assert!(saved.not_pruned.is_none(), "step {step}");
    }
    std::fs::write(run.path().join("checkpoints/notes"), "x").unwrap();
    open.retain_oldest_and_newest().unwrap();
    assert_eq!(names(&RealFs, run.path()), ["notes", "step_000001", "step_000003"]);
    open.retain_oldest_and_newest().unwrap();
    assert_eq!(names(&RealFs, run.path()), ["notes", "step_000001", "step_000003"]);
    for (step, want) in [(Some(3), &["notes", "step_000003"][..]), (None, &["notes"])] {
        open.retain_step(step).unwrap();
        assert_eq!(names(&RealFs, run.path()), want, "{step:?}");
    }
}

#[cfg(unix)]
#[test]
fn links_in_stale_temporaries_are_not_followed() {
    let run = tempdir().unwrap();
    let (outside, stale) = (run.path().join("precious"), run.path().join("checkpoints/step_000001.tmp-77"));
    std::fs::create_dir_all(&stale).unwrap();
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(outside.join("data"), "x").unwrap();
    std::os::unix::fs::symlink(&outside, stale.join("link")).unwrap();
    CheckpointDir::open(Arc::new(RealFs), run.path(), 2).unwrap();
    assert!(!stale.exists() && outside.join("data").exists());
}

#[test]
fn an_interrupted_replacement_is_restored() {
    let old = Sample::small(7, 0);
    let (fs, path) = saved(&old);
    fs.rename(&path, &path.with_file_name("step_000007.old-5")).unwrap();
    assert!(old.is(&newest(&fs).unwrap().loaded));
    drop(opened(&fs));
    assert_eq!(names(&fs, run()), ["step_000007"]);
    assert!(old.is(&newest(&fs).unwrap().loaded));
}

#[test]
fn a_checkpoint_under_the_name_of_another_step_is_refused() {
    let (fs, path) = saved(&Sample::small(7, 0));
    fs.rename(&path, &path.with_file_name("step_000008")).unwrap();
    let error = newest(&fs).unwrap_err();
    let CheckpointError::NoneGood { refused, .. } = &error else { panic!("{error}") };
    let why = refused[0].why.to_string();
    assert!(why.contains("manifest.json") && why.contains("step: expected 8, found 7"), "{why}");
}

/// Another process may create a directory between the query and the call.
#[test]
fn only_a_directory_that_exists_already_may_fail_to_be_created() {
    use std::io::ErrorKind::{AlreadyExists, PermissionDenied};
    for (kind, created) in [(AlreadyExists, true), (PermissionDenied, false)] {
        let mut failed_to_create = false;
        for call in 0..20 {
            let fs = SimulatedFs::default();
            fs.inject(Some(Injected::Once(call, kind)));
            let opened = CheckpointDir::open(Arc::new(fs.clone()), run(), 2).map(|_| ());
            failed_to_create |= matches!(opened, Err(CheckpointError::Io { op: "create", .. }));
        }
        assert_eq!(failed_to_create, !created, "{kind}");
    }
}

#[test]
fn an_observer_is_called_after_every_step_of_a_save_in_order() {
    let (fs, mut steps) = (SimulatedFs::default(), Vec::new());
    let _ = Sample::small(1, 0)
        .with(|snapshot| opened(&fs).save_observed(snapshot, &mut |step| steps.push(step.clone())))
        .unwrap();
    let want = [
        SaveStep::Started,
        SaveStep::Written("config.json"),
        SaveStep::WrittenFile("tokenizer.json".into()),
        SaveStep::WrittenFile("generation_config.json".into()),
        SaveStep::Written("model.safetensors"),
        SaveStep::Written("trainer/optimizer.safetensors"),
        SaveStep::Written("trainer/control.bin"),
        SaveStep::FilesSynced,
        SaveStep::ManifestSynced,
        SaveStep::DirectorySynced,
        SaveStep::Renamed,
        SaveStep::Acknowledged,
        SaveStep::Pruned,
    ];
    assert_eq!(steps, want);
}

#[test]
fn older_checkpoints_that_cannot_be_removed_do_not_undo_a_save() {
    let fs = SimulatedFs::default();
    let checkpoints = opened(&fs);
    for step in [1, 2] {
        let _ = Sample::small(step, 0).with(|snapshot| checkpoints.save(snapshot)).unwrap();
    }
    let sample = Sample::small(3, 0);
    let fail_next = |step: &SaveStep| {
        if *step == SaveStep::Acknowledged {
            fs.inject(Some(Injected::Once(fs.calls(), std::io::ErrorKind::Other)));
        }
    };
    let mut fail_next = fail_next;
    let saved = sample.with(|snapshot| checkpoints.save_observed(snapshot, &mut fail_next)).unwrap();
    assert!(matches!(saved.not_pruned, Some(CheckpointError::Io { op: "list", .. })));
    assert!(sample.is(&newest(&fs).unwrap().loaded));
}
