//! The optimizer steps of a generation batch: each trains its own completions, with their advantages and the tokens that
//! the filters kept of them, and divides by its share of the batch's tokens.
use super::token_counts::{lines, rollouts};
use super::{Scratch, Setup, config, run};

/// Two steps on each batch. The learning rate is too small to change a weight, so every ratio is 1, and the loss of a
/// completion is minus its advantage for each token (docs/numerics.md, section 8). Returns the number of steps.
pub(crate) fn over() -> Result<usize, String> {
    let keys = [
        "grpo.loss_type=dapo",
        "grpo.steps_per_generation=2",
        "grpo.steps=6",
        "grpo.learning_rate=1e-30",
        "grpo.top_p=0.9",
        "grpo.eval_every=0",
    ];
    let dir = Scratch::new("parts");
    run(&config(&keys), &Setup::threads(1), &dir.0)
        .map_err(|error| format!("gate parts, seed 0: {error}"))?;
    let mut steps = 0;
    for line in lines(&dir.0.join("metrics.jsonl")).iter().filter(|line| line["step"] != 0) {
        let step = line["step"].as_u64().unwrap();
        let (first, part) = (step - (step - 1) % 2, (step - 1) as usize % 2);
        let batch = rollouts(&dir.0, first);
        let ids = |row: &serde_json::Value| row["completion_ids"].as_array().unwrap().len();
        let divisor = batch.iter().map(ids).sum::<usize>() as f64 / 2.0;
        let of_row = |row: &serde_json::Value| {
            let advantage = row["advantage"].as_f64().unwrap();
            (0..ids(row)).fold(0.0, |sum, _| sum - advantage) / divisor
        };
        let rows = &batch[part * batch.len() / 2..(part + 1) * batch.len() / 2];
        let want = rows.iter().map(of_row).fold(0.0, |sum, loss| sum + loss);
        let found = line["loss"].as_f64().unwrap();
        if found.to_bits() != want.to_bits() {
            return Err(format!(
                "gate parts, seed 0: step {step}, part {part} of the batch of step {first}: expected the loss {want} \
                 ({:016x}), found {found} ({:016x})",
                want.to_bits(),
                found.to_bits()
            ));
        }
        steps += 1;
    }
    Ok(steps)
}

#[test]
fn each_step_of_a_batch_trains_its_own_part() {
    assert_eq!(over().unwrap_or_else(|e| panic!("{e}")), 6);
}
