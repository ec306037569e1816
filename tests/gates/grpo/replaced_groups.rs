//! Groups without spread that others replace.
use std::collections::BTreeSet;

use serde_json::Value;

use super::token_counts::{lines, rollouts};
use super::{Scratch, Setup, config, run};

/// Each completion has its own reward, which is a function of its tokens, and its own `sample_id`, which selects its
/// random numbers. The lines of a batch have the groups of the update first, then the discarded ones, whose number is a
/// metric of the step. Returns the number of discarded completions.
pub(crate) fn over() -> Result<usize, String> {
    let keys =
        ["grpo.num_generations=2", "grpo.max_completion_length=1", "grpo.top_k=2", "grpo.resample_groups=2"];
    let dir = Scratch::new("replaced");
    run(&config(&keys), &Setup::threads(1), &dir.0)
        .map_err(|error| format!("gate replaced groups, seed 0: {error}"))?;
    let (mut ids, mut discarded) = (BTreeSet::new(), 0);
    let metrics = lines(&dir.0.join("metrics.jsonl"));
    for step in 1..=4 {
        let batch = rollouts(&dir.0, step);
        let counted = metrics.iter().find(|line| line["step"] == step).map(|line| &line["discarded_groups"]);
        let want = (batch.len() - 8) as f64 / 2.0;
        if counted.and_then(Value::as_f64).unwrap_or(0.0) != want {
            return Err(format!(
                "gate replaced groups, seed 0: step {step}: expected {want} discarded groups, found {counted:?}"
            ));
        }
        for (i, line) in batch.iter().enumerate() {
            let differ = |what: &str, want: &dyn std::fmt::Display, found: &Value| {
                Err(format!(
                    "gate replaced groups, seed 0: {what}, step {step}, line {i}: expected {want}, found {found}"
                ))
            };
            let sum: u64 =
                line["completion_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).sum();
            let reward = (sum % 7) as f64 / 7.0;
            if line["reward"].as_f64() != Some(reward) {
                return differ("reward", &reward, &line["reward"]);
            }
            let place = [&line["group"], &line["sample"]].map(|number| number.as_u64().unwrap() as usize);
            if place != [i / 2, i % 2] {
                return differ("group", &(i / 2), &line["group"]);
            }
            // 4 prompts, 2 completions each
            if line["trained"].as_bool() != Some(i < 8) {
                return differ("trained", &(i < 8), &line["trained"]);
            }
            if !ids.insert(line["sample_id"].as_u64().unwrap()) {
                return differ("sample_id", &"a new one", &line["sample_id"]);
            }
            discarded += usize::from(i >= 8);
        }
    }
    Ok(discarded)
}

#[test]
fn replaced_groups_have_their_own_rewards_and_numbers() {
    assert!(over().unwrap_or_else(|e| panic!("{e}")) > 8, "groups are replaced more than once");
}
