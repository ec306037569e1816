//! `grpo.stop`: a turn ends with the token that completes a stop text, as one ends with an end-of-text token.
use serde_json::Value;
use xtrain::decode::{EngineOptions, Speculation};
use xtrain::model::tokenizer::Tokenizer;

use super::{Compared, Files, Scratch, Setup, compare, config, files, run};
use crate::turns;

/// The tokens that end a turn: bytes of one character.
const ENDS: std::ops::Range<u32> = 64..127;

const KEYS: [&str; 4] =
    ["grpo.max_turns=8", "grpo.max_completion_length=48", "grpo.temperature=0.3", "grpo.top_p=0.9"];

/// The weights and optimizer states of a run, the lines of its completions, and what it compared.
fn outcome(name: &str, keys: &[&str], setup: &Setup) -> Result<(Files, Vec<Value>, Compared), String> {
    let dir = Scratch::new(&format!("stop-{name}"));
    let failed = |error| format!("gate grpo, seed 0: {name}: {error}");
    let compared = run(&config(&[&KEYS[..], keys].concat()), setup, &dir.0).map_err(failed)?;
    let (rollouts, others): (Files, Files) =
        files(&dir.0).into_iter().partition(|(name, _)| name.ends_with(".jsonl"));
    let mut lines = Vec::new();
    for (_, bytes) in rollouts.iter().filter(|(name, _)| name.starts_with("rollouts")) {
        lines.extend(bytes.split_inclusive(|&byte| byte == b'\n').map(|line| {
            let line: Value = serde_json::from_slice(line).expect("a line of JSON");
            line
        }));
    }
    Ok((others, lines, compared))
}

/// A run in which the tokens [`ENDS`] are end-of-text tokens, too.
fn with_end_tokens() -> Setup {
    let ends: Vec<u32> = ENDS.chain(Tokenizer::byte().eos_ids().iter().copied()).collect();
    let tokenizer = Tokenizer::byte().with_eos_ids(&ends);
    Setup { tokenizer, reward: turns::tool, ..Setup::threads(1) }
}

/// The key with the texts of [`ENDS`].
pub(super) fn stop_texts() -> String {
    let texts: Vec<String> = ENDS.filter_map(char::from_u32).map(String::from).collect();
    format!("grpo.stop={}", serde_json::to_string(&texts).expect("texts"))
}

/// Compares the number of values that are verified with stop texts with that of a run with end-of-text tokens, which it
/// may exceed by a factor of two: the verification preempts more sequences, and computes their rows again, if the
/// longest possible sequences are shorter.
pub(crate) fn verified() -> Result<usize, String> {
    let keys = ["grpo.verify_every=1", "grpo.steps=2", "grpo.max_turns=1", "grpo.temperature=1"];
    let (_, _, want) = outcome("verified-eos", &keys, &with_end_tokens())?;
    let key = stop_texts();
    let setup = Setup { reward: turns::tool, ..Setup::threads(1) };
    let (_, _, got) = outcome("verified-stop", &[&keys[..], &[&key]].concat(), &setup)?;
    if want.verified == 0 || got.verified < want.verified || got.verified > 2 * want.verified {
        let (got, want) = (got.verified, want.verified);
        return Err(format!("gate grpo, seed 0: verified values: expected about {want}, found {got}"));
    }
    Ok(got.verified as usize)
}

/// Compares a run whose turns end with stop texts with one whose turns end with the tokens of these texts, as
/// end-of-text tokens. Returns the number of compared bytes.
pub(crate) fn over() -> Result<usize, String> {
    let own = Tokenizer::byte().eos_ids().to_vec();
    let (want, want_lines, _) = outcome("eos", &[], &with_end_tokens())?;
    let (key, mut compared) = (stop_texts(), 0);
    // With drafts, the engine also samples tokens after a stop text. No turn is continued with them.
    for (name, speculation) in [("stop", Speculation::Off), ("drafts", Speculation::PromptLookup)] {
        let engine = EngineOptions { speculation, ..EngineOptions::default() };
        let setup = Setup { engine, reward: turns::tool, ..Setup::threads(2) };
        let (got, lines, _) = outcome(name, &[&key], &setup)?;
        for (number, (got, want)) in lines.iter().zip(&want_lines).enumerate() {
            for field in ["completion", "completion_ids", "mask", "processed_logprobs", "reward", "truncated"]
            {
                if got[field] != want[field] {
                    let (got, want) = (&got[field], &want[field]);
                    return Err(format!(
                        "gate grpo, seed 0: {name}: completion {number}: {field}: expected {want}, found {got}"
                    ));
                }
            }
            let last = want["completion_ids"].as_array().and_then(|ids| ids.last());
            let is_own = last.and_then(Value::as_u64).is_some_and(|id| own.contains(&(id as u32)));
            let end = if is_own { "eos" } else { "stop" };
            if want["finish_reason"] == "eos" && got["finish_reason"] != end {
                return Err(format!("gate grpo, seed 0: {name}: completion {number}: {got}"));
            }
        }
        if lines.len() != want_lines.len() {
            return Err(format!("gate grpo, seed 0: {name}: {} completions", lines.len()));
        }
        compared += compare(name, &want, &got)?;
    }
    let with = |what: fn(&Value) -> bool| want_lines.iter().filter(|line| what(line)).count();
    let (ended, continued) =
        (with(|line| line["finish_reason"] == "eos"), with(|line| line["mask"].is_array()));
    if ended < 20 || continued < 20 {
        return Err(format!("gate grpo, seed 0: {ended} completions have an end, {continued} several turns"));
    }
    Ok(compared)
}

#[test]
fn turns_with_stop_texts_are_those_with_end_of_text_tokens() {
    let bytes = over().unwrap_or_else(|difference| panic!("{difference}"));
    println!("grpo: {bytes} bytes of runs with stop texts are those of runs with end-of-text tokens");
}

#[test]
fn a_turn_is_verified_up_to_its_stop_text() {
    let values = verified().unwrap_or_else(|difference| panic!("{difference}"));
    println!("grpo: {values} values are verified with stop texts and with end-of-text tokens");
}
