//! Training with rewards on several processes.
use std::fs;
use std::path::Path;
use std::process::Stdio;

use super::launched::{Launched, kill, ranks, wait_for};
use super::{fails, mpirun, succeeds, words};
use crate::cli::{Scratch, program, text};

/// A reward program that adds every line it reads to a file, and the words of a small run with its rewards.
pub(super) fn reinforced(dir: &Path) -> Vec<String> {
    let program = "import json, sys\n\
        log = open('lines.jsonl', 'a')\n\
        for line in sys.stdin:\n    \
            print(line, end='', file=log, flush=True)\n    \
            row = json.loads(line)\n    \
            reward = sum(row['completion_ids']) % 7 / 7\n    \
            print(json.dumps({'id': row['id'], 'rewards': {'sum': reward}}), flush=True)\n";
    fs::write(dir.join("reward.py"), program).unwrap();
    let sizes = "model.dim=16 model.n_layers=1 model.n_heads=2 model.n_kv_heads=1 model.head_dim=8 model.ffn_dim=24 \
         train.context=24 train.batch=4 train.shards=4 train.steps=4 train.sample_every=0 train.eval_every=0 \
         grpo.steps=6 grpo.prompts_per_step=6 grpo.num_generations=4 grpo.max_completion_length=6 grpo.eval_every=3 \
         grpo.eval_limit=3 grpo.eval_samples=2 grpo.verify_every=2 grpo.save_every=1 grpo.num_iterations=2 \
         grpo.beta=0.05 grpo.score_duplicates=true";
    let sets = sizes.split_whitespace().flat_map(|key| ["--set".to_string(), key.to_string()]);
    let flags = ["grpo", "--task", "sums", "--reward", "python3 reward.py", "--threads", "1"];
    flags.map(String::from).into_iter().chain(sets).collect()
}

/// The lines that the reward program has read since the last call, by id.
fn reward_lines(dir: &Path) -> Vec<String> {
    let lines = fs::read_to_string(dir.join("lines.jsonl")).unwrap();
    fs::remove_file(dir.join("lines.jsonl")).unwrap();
    let mut lines: Vec<String> = lines.lines().map(String::from).collect();
    lines.sort_by_key(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].as_u64());
    lines
}

/// The weights, metrics and rollouts of a run and its base model.
fn all_files(run: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = crate::grpo::files(run);
    all.extend(crate::grpo::files(&run.join("base")));
    all
}

#[test]
fn reinforcement_learning_on_several_processes_has_the_files_of_one() {
    let scratch = Scratch::new("mpi-grpo");
    let words_of = reinforced(&scratch.0);
    let run = |name: &str| [words_of.clone(), vec!["--run".into(), name.into()]].concat();
    let output = program().args(run("one")).current_dir(&scratch.0).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (want, lines) = (all_files(&scratch.0.join("one")), reward_lines(&scratch.0));
    assert!(want.len() > 12 && lines.len() > 3 * 6 * 4, "{} files, {} lines", want.len(), lines.len());
    for size in [2, 4] {
        let name = size.to_string();
        let output = succeeds(mpirun(&scratch.0, size, &words(&run(&name))));
        assert!(all_files(&scratch.0.join(&name)) == want, "{size} processes");
        assert!(reward_lines(&scratch.0) == lines, "{size} processes: the reward program read other lines");
        let errors = text(&output.stderr);
        assert_eq!(errors.matches("writing to ").count(), 2, "{errors}");
    }
    // killed after a checkpoint, and resumed on another number of processes
    let (dir, mut command) = (scratch.0.join("killed"), mpirun(&scratch.0, 4, &words(&run("killed"))));
    let mut child = Launched::new(command.stdout(Stdio::null()).stderr(Stdio::null()));
    let saved = || crate::kill::checkpoints(&dir).iter().any(|name| name.starts_with("step_000002"));
    wait_for("a checkpoint", || (saved() || child.try_wait().unwrap().is_some()).then_some(()));
    if let Some(&victim) = ranks(&child).last() {
        kill(victim);
    }
    let _ = wait_for("mpirun ends after one of its processes was killed", || child.try_wait().unwrap());
    let _ = succeeds(mpirun(&scratch.0, 2, &["grpo", "--resume", "killed", "--threads", "1"]));
    assert!(all_files(&dir) == want, "killed on 4 processes, resumed on 2");
    // no step is left: all processes end
    let mut again = mpirun(&scratch.0, 2, &["grpo", "--resume", "killed", "--threads", "1"]);
    let mut child = Launched::new(again.stdout(Stdio::piped()).stderr(Stdio::null()));
    let status = wait_for("mpirun ends without a step", || child.try_wait().unwrap());
    let shown = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    assert!(status.success() && shown.starts_with("killed is complete at step 6; "), "{status}: {shown}");
    assert!(all_files(&dir) == want, "resumed without a step");
    let (code, errors) = fails(mpirun(&scratch.0, 3, &words(&run("three"))));
    assert!(
        errors.contains("`train.shards` = 4: expected a multiple of 3, the number of processes"),
        "{errors}"
    );
    assert_eq!((code, scratch.0.join("three").exists()), (2, false), "{errors}");
    let (code, errors) =
        fails(mpirun(&scratch.0, 2, &["grpo", "--resume", "one", "--set", "train.shards=2"]));
    assert!(errors.contains("--resume cannot change train.shards"), "{errors}");
    assert_eq!(code, 2, "{errors}");
}
