//! The numbers of tokens of a run: those in `num_tokens`, and those that the loss divides by.
use std::path::Path;

use serde_json::Value;

use super::{Scratch, Setup, config, run};

/// The objects of a file of JSON lines.
pub(super) fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The completions of the generation batch of a step.
pub(super) fn rollouts(dir: &Path, step: u64) -> Vec<Value> {
    lines(&dir.join(format!("rollouts/step_{step:06}.jsonl")))
}

/// `num_tokens` counts the prompts and completions of each batch, also of a batch that does not train because its
/// rewards have no spread. Returns the number of steps.
pub(crate) fn counted() -> Result<usize, String> {
    let mut steps = 0;
    for (name, keys) in [("spread", &[][..]), ("no spread", &["grpo.top_k=1"])] {
        let dir = Scratch::new("counted");
        run(&config(keys), &Setup::threads(1), &dir.0).unwrap();
        let mut want = 0;
        for line in lines(&dir.0.join("metrics.jsonl")).iter().filter(|line| line["step"] != 0) {
            let ids = |row: &Value, key: &str| row[key].as_array().unwrap().len();
            let step = line["step"].as_u64().unwrap();
            let batch = rollouts(&dir.0, step);
            want +=
                batch.iter().map(|row| ids(row, "prompt_ids") + ids(row, "completion_ids")).sum::<usize>();
            let (found, trained) = (&line["num_tokens"], &line["trained_completions"]);
            if (trained.as_f64() == Some(0.0)) != (name == "no spread") {
                return Err(format!(
                    "gate token counts, seed 0: {name}, step {step}: {trained} trained completions"
                ));
            }
            if found.as_f64() != Some(want as f64) {
                return Err(format!(
                    "gate token counts, seed 0: {name}, step {step}: expected num_tokens {want}, found {found}"
                ));
            }
            steps += 1;
        }
    }
    Ok(steps)
}

/// With `mask_truncated_completions`, a loss that divides by the tokens of the batch does not count those of truncated
/// completions: with the weights that sampled, the loss of a completion is minus its advantage for each token
/// (docs/numerics.md, section 8). Returns the number of steps.
pub(crate) fn divided() -> Result<usize, String> {
    let dir = Scratch::new("divided");
    let keys = [
        "grpo.loss_type=dapo",
        "grpo.mask_truncated_completions=true",
        "grpo.max_completion_length=40",
        "grpo.num_generations=16",
        "grpo.steps=2",
    ];
    run(&config(&keys), &Setup::threads(1), &dir.0).unwrap();
    let mut steps = 0;
    for line in lines(&dir.0.join("metrics.jsonl")).iter().filter(|line| line["step"] != 0) {
        let step = line["step"].as_u64().unwrap();
        let batch = rollouts(&dir.0, step);
        let whole = |row: &&Value| row["truncated"] == false;
        let tokens = |row: &Value| row["completion_ids"].as_array().unwrap().len();
        let divisor = batch.iter().filter(whole).map(tokens).sum::<usize>() as f64;
        let of_row = |row: &Value| {
            let advantage = row["advantage"].as_f64().unwrap();
            (0..tokens(row)).fold(0.0, |sum, _| sum - advantage) / divisor
        };
        let want = batch.iter().filter(whole).map(of_row).fold(0.0, |sum, loss| sum + loss);
        let found = line["loss"].as_f64().unwrap();
        let count = batch.iter().filter(whole).count();
        if count == 0 || count == batch.len() || found.to_bits() != want.to_bits() {
            return Err(format!(
                "gate token counts, seed 0: step {step}, {count} of {} completions are not truncated and have {divisor} \
                 tokens: expected the loss {want} ({:016x}), found {found} ({:016x})",
                batch.len(),
                want.to_bits(),
                found.to_bits()
            ));
        }
        steps += 1;
    }
    Ok(steps)
}

#[test]
fn a_batch_without_spread_counts_its_tokens() {
    let steps = counted().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(steps, 8);
}

#[test]
fn the_loss_does_not_divide_by_the_tokens_of_masked_completions() {
    let steps = divided().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(steps, 2);
}
