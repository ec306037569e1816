//! Runs on several processes, which are threads here, write the files of one process, also when they are continued on
//! another number of processes.
use std::path::Path;
use std::sync::Arc;

use xtrain::grpo::Error;
use xtrain::rewards::Reward;
use xtrain::run::RunDir;

use super::stop_texts::stop_texts;
use super::{
    Compared, Files, REUSED_BATCH, Scratch, Setup, assert_equal, compare, config, files, outcome, run_as,
};
use crate::shards::on_each;
use crate::turns::tool;

/// Four shards; six groups, so that the processes have different numbers of them.
const SHARDED: [&str; 2] = ["train.shards=4", "grpo.prompts_per_step=6"];

fn sharded(keys: &[&str]) -> xtrain::config::RunConfig {
    config(&[&SHARDED[..], keys].concat())
}

/// Runs on each number of processes in turn, to the step after it. Returns the files and what process 0 compared.
fn on_processes(
    keys: &[&str],
    reward: fn() -> Box<dyn Reward>,
    dir: &Path,
    parts: &[(usize, Option<u64>)],
) -> Result<(Files, Compared), Error> {
    let config = sharded(keys);
    let run = RunDir::create(dir, &config.to_toml())?;
    let mut compared = Compared::default();
    for &(size, stop) in parts {
        let before = compared;
        let ends = on_each(size, |process| {
            let setup = Setup { reward, ..Setup::threads(1) };
            run_as(&config, &setup, &run, (stop, before), Arc::new(process))
        });
        // an error of one process ends the others with an error that names it
        let is_cause =
            |end: &Result<_, Error>| matches!(end, Err(error) if !matches!(error, Error::Communication(_)));
        let cause = ends.iter().position(is_cause).unwrap_or(0);
        compared = ends.into_iter().nth(cause).expect("a process")?;
    }
    Ok((files(dir), compared))
}

/// Compares runs on 2 and 4 processes, and a run that changes their number, with one process.
fn equal(name: &str, keys: &[&str], reward: fn() -> Box<dyn Reward>) -> Result<usize, String> {
    let setup = Setup { reward, ..Setup::threads(2) };
    let (want, one) = outcome(name, &sharded(keys), &setup);
    let mut n = 0;
    for parts in [&[(2, None)][..], &[(4, None)], &[(4, Some(2)), (1, Some(4)), (2, None)]] {
        let scratch = Scratch::new(name);
        let found = on_processes(keys, reward, &scratch.0, parts);
        let (got, compared) =
            found.map_err(|error| format!("gate grpo, seed 0: {name}, {parts:?}: {error}"))?;
        n += compare(&format!("{name}, {parts:?}"), &want, &got)?;
        assert!(compared == one && one.tokens > 0.0, "{name}, {parts:?}: {compared:?}, one process: {one:?}");
    }
    Ok(n)
}

fn plain() -> Box<dyn Reward> {
    (Setup::threads(1).reward)()
}

/// A batch that is used once: a fault that changes the bytes of its files is found.
pub(crate) fn over() -> Result<usize, String> {
    equal("once", &["grpo.steps=6"], plain)
}

/// A batch that is used several times, with a reference model and filtered tokens.
pub(crate) fn reused() -> Result<usize, String> {
    let keys = [&REUSED_BATCH[..], &["train.dtype=bf16", "grpo.ref_model_sync_steps=4"]].concat();
    equal("reused", &keys, plain)
}

#[test]
fn a_run_writes_the_same_files_on_any_number_of_processes() {
    let n = over().unwrap_or_else(|e| panic!("{e}"));
    let reused = reused().unwrap_or_else(|e| panic!("{e}"));
    println!("grpo: 2 runs, each on 2, on 4, and on 4, 1 and 2 processes, {} bytes, 0 differ", n + reused);
    assert!(n > 100_000 && reused > 100_000, "{n} {reused}");
}

#[test]
fn losses_of_every_kind_have_the_same_files_on_any_number_of_processes() {
    let entropy = ["grpo.entropy_coef=0.01", "grpo.steps=5", "grpo.verify_every=2", "train.dtype=bf16"];
    let replaced = ["grpo.resample_groups=2", "grpo.num_generations=2", "grpo.top_k=3", "grpo.steps=5"];
    let constrained = ["grpo.regex=[0-9]{1,4}=?", "grpo.num_iterations=2", "grpo.steps=8", "grpo.beta=0.05"];
    let sequence = ["grpo.importance_sampling_level=sequence", "grpo.num_iterations=2", "grpo.steps=8"];
    let whole = ["grpo.top_entropy_quantile=0.5", "grpo.num_iterations=2", "grpo.steps=8"];
    for (name, keys) in [
        ("entropy", &entropy[..]),
        ("replaced", &replaced),
        ("constrained", &constrained),
        ("sequence", &sequence),
        ("whole", &whole),
    ] {
        let n = equal(name, keys, plain).unwrap_or_else(|e| panic!("{e}"));
        assert!(n > 50_000, "{name}: {n}");
    }
}

#[test]
fn completions_of_several_turns_are_the_same_on_any_number_of_processes() {
    let keys = ["grpo.max_turns=3", "grpo.max_completion_length=16", "grpo.steps=6", "grpo.num_iterations=2"];
    let stops = stop_texts();
    for (name, keys) in [("turns", &keys[..]), ("stops", &[&keys[..], &[&stops]].concat())] {
        let n = equal(name, keys, tool).unwrap_or_else(|e| panic!("{e}"));
        assert!(n > 100_000, "{name}: {n}");
    }
}

#[test]
fn a_run_of_several_processes_that_is_stopped_at_once_resumes() {
    for preallocate in ["grpo.preallocate=true", "grpo.preallocate=false"] {
        let keys = ["grpo.steps=3", preallocate];
        let (want, _) = outcome("stopped", &sharded(&keys), &Setup::threads(1));
        let scratch = Scratch::new("stopped");
        let parts = [(3, Some(0)), (2, Some(0)), (4, None)];
        let keys_of_six = [&keys[..], &["train.shards=12"]].concat();
        let (twelve, _) = outcome("twelve", &sharded(&keys_of_six), &Setup::threads(1));
        let (got, _) = on_processes(&keys_of_six, plain, &scratch.0, &parts).unwrap();
        assert_equal("stopped at once", &twelve, &got);
        assert!(want != twelve, "4 and 12 shards have different bits");
    }
}

#[test]
fn one_shard_has_other_bits_than_four() {
    let keys = ["grpo.steps=2"];
    let (four, _) = outcome("four", &sharded(&keys), &Setup::threads(1));
    let (one, _) = outcome("one", &sharded(&["grpo.steps=2", "train.shards=1"]), &Setup::threads(1));
    assert!(one != four);
}
