//! No power failure loses an acknowledged save or exposes a torn one.
use std::collections::HashSet;

use rand::RngExt as _;
use xtrain_tensor::testing::times;

use super::*;

/// A disk at a power failure, and the samples that may be found on it afterwards: the last acknowledged one and the
/// one being saved.
struct Moment {
    fs: SimulatedFs,
    acknowledged: Option<Sample>,
    saving: Option<Sample>,
}

/// Opens `fs`, saves each of `samples` and returns every intermediate state.
fn moments(fs: &SimulatedFs, mut acknowledged: Option<Sample>, samples: &[Sample]) -> Vec<Moment> {
    fs.start_history();
    let checkpoints = opened(fs);
    let (mut marks, mut found) = (vec![(fs.history().len(), acknowledged.clone(), None)], Vec::new());
    for sample in samples {
        let mut durable = 0;
        let count = |step: &SaveStep| {
            if *step == SaveStep::Acknowledged {
                durable = fs.history().len();
            }
        };
        let mut count = count;
        let saved = sample.with(|snapshot| checkpoints.save_observed(snapshot, &mut count)).unwrap();
        assert!(saved.not_pruned.is_none());
        marks.push((durable, acknowledged.replace(sample.clone()), Some(sample.clone())));
        marks.push((fs.history().len(), acknowledged.clone(), None));
    }
    marks.push((usize::MAX, acknowledged, None));
    let mut marks = marks.into_iter().peekable();
    for (at, fs) in fs.history().into_iter().chain([fs.fork()]).enumerate() {
        while marks.peek().is_some_and(|mark| mark.0 <= at) {
            marks.next();
        }
        let (_, acknowledged, saving) = marks.peek().cloned().unwrap();
        found.push(Moment { fs, acknowledged, saving });
    }
    found
}

/// Checks the state after a power failure. Returns the sample that was found.
fn judge(moment: &Moment, after: &SimulatedFs) -> Result<Option<Sample>, String> {
    match newest(after) {
        Ok(found) if !found.refused.is_empty() => Err(format!("a torn checkpoint: {}", found.refused[0])),
        Ok(found) => [&moment.saving, &moment.acknowledged]
            .into_iter()
            .flatten()
            .find(|sample| sample.is(&found.loaded))
            .map(|sample| Some(sample.clone()))
            .ok_or_else(|| format!("an older checkpoint than was acknowledged: {:?}", found.loaded.path)),
        Err(CheckpointError::Missing { .. }) if moment.acknowledged.is_none() => Ok(None),
        Err(error) => Err(format!("an acknowledged save is lost: {error}")),
    }
}

/// Simulates power failures at each moment until `max` different disks were checked or no new one occurs. Returns
/// the hashes of all disks. A disk is checked again after another save was acknowledged: a state that is valid before
/// the acknowledgement is a loss after it.
fn cut(moments: &[Moment], seed: u64, max: usize) -> Result<HashSet<u64>, String> {
    let (mut seen, mut judged, mut promise) = (HashSet::new(), HashSet::new(), (None, None));
    for (at, moment) in moments.iter().enumerate() {
        let control = |sample: &Option<Sample>| sample.as_ref().map(|sample| sample.control.clone());
        let now = (control(&moment.acknowledged), control(&moment.saving));
        if now != promise {
            judged.clear();
            promise = now;
        }
        let mut random = rng(seed ^ ((at as u64) << 32));
        let (mut new, mut old) = (0, 0);
        for draw in 0.. {
            let after = moment.fs.power_cut(&mut |n| match draw {
                0 => 0,
                1 => n - 1,
                _ => random.random_range(0..n),
            });
            seen.insert(after.digest());
            if judged.insert(after.digest()) {
                judge(moment, &after).map_err(|wrong| format!("moment {at}, draw {draw}: {wrong}"))?;
                (new, old) = (new + 1, 0);
            } else {
                old += 1;
            }
            if new == max || old == 16 {
                break;
            }
        }
    }
    Ok(seen)
}

/// Four saves, one of them of the same step again: pruning and replacement included.
fn script() -> Vec<Sample> {
    [(1, 0), (2, 0), (2, 1), (3, 0), (4, 0)].map(|(step, variant)| Sample::small(step, variant)).into()
}

#[test]
fn no_power_cut_loses_an_acknowledged_save_or_shows_a_torn_one() {
    let first = moments(&SimulatedFs::default(), None, &script());
    // Runs that start from the state after a power failure and may lose power again.
    let more = times(1, 10);
    let again: Vec<Moment> = (0..24 * more)
        .flat_map(|case| {
            let mut random = rng(case);
            let moment = &first[random.random_range(0..first.len())];
            let after = moment.fs.power_cut(&mut |n| random.random_range(0..n));
            let found = judge(moment, &after).expect("judged by the first half as well");
            let step = found.as_ref().map_or(1, |sample| sample.control.step);
            moments(&after, found, &[Sample::small(step, 2), Sample::small(step + 1, 2)])
        })
        .collect();
    let halves = [(&first, 800 * more as usize), (&again, times(100, 300) as usize)];
    let seen = std::thread::scope(|scope| {
        halves
            .map(|(moments, max)| scope.spawn(move || cut(moments, 7, max)))
            .map(|half| half.join().unwrap())
    });
    let seen: HashSet<u64> =
        seen.into_iter().flat_map(|half| half.unwrap_or_else(|wrong| panic!("{wrong}"))).collect();
    println!("power cuts: {} different disks from {} and {} moments", seen.len(), first.len(), again.len());
    assert!(seen.len() as u64 >= 100_000 * more, "{}", seen.len());
}

/// Also the older ones, which pruning removes and another save of the same step replaces.
#[test]
fn every_checkpoint_under_its_final_name_is_complete_after_a_power_cut() {
    let dir = run().join("checkpoints");
    for (at, moment) in moments(&SimulatedFs::default(), None, &script()).iter().enumerate() {
        let mut random = rng(at as u64);
        for _ in 0..10 {
            let after = moment.fs.power_cut(&mut |n| random.random_range(0..n));
            let names = after.list(&dir).unwrap_or_default();
            for name in names.iter().filter(|name| !name.contains('.')) {
                let loaded = load(&after, &dir.join(name), &LoadOptions::default());
                loaded.unwrap_or_else(|error| panic!("moment {at}: {error}"));
            }
        }
    }
}

#[test]
fn a_process_killed_at_any_call_leaves_a_resumable_run() {
    for moment in moments(&SimulatedFs::default(), None, &script()) {
        judge(&moment, &moment.fs).unwrap();
        let fs = moment.fs.fork();
        let checkpoints = opened(&fs);
        judge(&moment, &fs).unwrap();
        let next = Sample::small(9, 9);
        let _ = next.with(|snapshot| checkpoints.save(snapshot)).unwrap();
        assert!(next.is(&newest(&fs).unwrap().loaded));
        let names = fs.list(Path::new("run/checkpoints")).unwrap();
        assert!(names.iter().all(|name| !name.contains('.')), "{names:?}");
    }
}

#[cfg(feature = "faults")]
#[test]
fn renaming_before_syncing_is_caught() {
    let moments =
        xtrain_tensor::faults::with(xtrain_tensor::faults::Fault::CheckpointRenameBeforeSync, || {
            moments(&SimulatedFs::default(), None, &script())
        });
    let wrong = cut(&moments, 7, 100).unwrap_err();
    assert!(wrong.contains("step_000001 refused"), "{wrong}");
}

#[cfg(feature = "faults")]
#[test]
fn acknowledging_before_the_name_is_durable_is_caught() {
    let moments =
        xtrain_tensor::faults::with(xtrain_tensor::faults::Fault::CheckpointDirectoryNotSynced, || {
            moments(&SimulatedFs::default(), None, &script())
        });
    let wrong = cut(&moments, 7, 100).unwrap_err();
    assert!(wrong.contains("acknowledged"), "{wrong}");
}
