//! The gate of completions with several turns: sampled tokens have the trainer's bits, appended tokens have no loss,
//! and no file of a run depends on threads, micro-batches, engines or interruptions.
use std::cell::RefCell;

use serde_json::Value;
use xtrain::decode::{EngineOptions, KvKind};
use xtrain::grpo::Error;
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{LogitsProcessing, TrainingExample, objective, store};
use xtrain::rewards::{Reward, RewardError, RewardInput, RewardReply, RewardRow};
use xtrain::tensor::ops::Target;
use xtrain::tensor::{Device, Dtype};

use crate::cli::Scratch;
use crate::grpo::{Compared, Setup, assert_equal, config, files, run};

/// How a reward continues completions.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Appends {
    /// Some completions, with different texts.
    Some,
    /// Every completion that can be continued.
    Always,
    /// Every completion.
    Forever,
    /// Every completion that can be continued, with no text.
    Nothing,
}

/// Continues completions; the reward depends on the tokens.
struct Tool {
    appends: Appends,
    names: [String; 1],
}

impl Tool {
    fn boxed(appends: Appends) -> Box<dyn Reward> {
        Box::new(Tool { appends, names: ["sum".to_string()] })
    }
}

/// A reward that continues some completions.
pub(crate) fn tool() -> Box<dyn Reward> {
    Tool::boxed(Appends::Some)
}

impl Reward for Tool {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
        let reply = |input: &RewardInput<'_>| {
            let sum: u32 = input.completion_ids.iter().sum();
            let appends = match self.appends {
                Appends::Some => input.can_append() && !sum.is_multiple_of(4),
                Appends::Always | Appends::Nothing => input.can_append(),
                Appends::Forever => true,
            };
            let reply = match appends {
                true if self.appends == Appends::Nothing => RewardReply::Append(String::new()),
                true => RewardReply::Append("=".repeat(1 + sum as usize % 3)),
                false => RewardReply::Rewards(vec![Some(f64::from(sum % 7) / 7.0)]),
            };
            RewardRow { at: input.location(), reply }
        };
        Ok(batch.iter().map(reply).collect())
    }
}

thread_local! {
    /// The completions that a [`Recorder`] of this thread was asked to score.
    static ASKED: RefCell<Vec<Asked>> = const { RefCell::new(Vec::new()) };
}

/// What a reward reads of a completion of several turns.
#[derive(Debug, Clone, Copy)]
struct Asked {
    tokens: usize,
    turn: usize,
    truncated: bool,
    can_append: bool,
}

/// Continues every completion that can be continued, and records what it reads.
struct Recorder(Box<dyn Reward>);

impl Reward for Recorder {
    fn names(&self) -> &[String] {
        self.0.names()
    }

    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
        let asked = |input: &RewardInput<'_>| Asked {
            tokens: input.completion_ids.len(),
            turn: input.turn.map_or(0, |turn| turn.number),
            truncated: input.truncated,
            can_append: input.can_append(),
        };
        ASKED.with_borrow_mut(|all| all.extend(batch.iter().map(asked)));
        self.0.score(batch)
    }
}

/// A quarter of the byte tokens end a turn, so that random weights end turns.
fn setup(threads: usize) -> Setup {
    let eos: Vec<u32> = (0..64).collect();
    Setup {
        tokenizer: Tokenizer::byte().with_eos_ids(&eos),
        reward: || Tool::boxed(Appends::Some),
        ..Setup::threads(threads)
    }
}

const KEYS: [&str; 2] = ["grpo.max_turns=3", "grpo.max_completion_length=16"];

/// Names and bytes of the files of a run.
type Files = Vec<(String, Vec<u8>)>;

/// Runs the configuration with `keys`; returns its files and the comparison.
fn outcome(name: &str, keys: &[&str], setup: &Setup) -> Result<(Files, Compared), Error> {
    let dir = Scratch::new(&format!("turns-{name}"));
    let compared = run(&config(&[&KEYS[..], keys].concat()), setup, &dir.0)?;
    Ok((files(&dir.0), compared))
}

/// The completions in the files of a run.
fn rollouts(files: &[(String, Vec<u8>)]) -> Vec<Value> {
    let rollouts = files.iter().filter(|(name, _)| name.starts_with("rollouts"));
    let lines = rollouts.flat_map(|(_, bytes)| std::str::from_utf8(bytes).unwrap().lines());
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whether each token of a line was sampled.
fn mask(line: &Value) -> Vec<bool> {
    match line["mask"].as_array() {
        Some(mask) => mask.iter().map(|value| value == 1).collect(),
        None => vec![true; line["completion_ids"].as_array().unwrap().len()],
    }
}

fn turns(line: &Value) -> usize {
    mask(line).chunk_by(|a, b| a == b).filter(|run| run[0]).count()
}

#[test]
fn sampled_tokens_of_all_turns_are_compared_and_appended_tokens_have_no_loss() {
    let options = [
        ["train.dtype=f32", "grpo.top_k=0", "grpo.verify_every=1"],
        ["train.dtype=bf16", "grpo.top_p=0.9", "grpo.prompt_sharing=1"],
        ["train.dtype=f32", "grpo.min_p=0.02", "grpo.entropy_coef=0.01"],
    ];
    for keys in options {
        let (files, compared) = outcome(&keys.concat(), &keys, &setup(2)).unwrap();
        let lines = rollouts(&files);
        assert!((2..=3).all(|n| lines.iter().filter(|line| turns(line) == n).count() > 5), "{keys:?}");
        // Without the entropy bonus, training examples whose advantages are all 0 are not part of the update.
        let all = keys[2].contains("entropy");
        let shared = if keys[2].contains("sharing") { 1 } else { 4 };
        let groups =
            lines.chunks(shared).filter(|group| all || group.iter().any(|line| line["advantage"] != 0.0));
        let trained = groups.flatten();
        let sampled: usize = trained.flat_map(mask).map(usize::from).sum();
        assert_eq!(compared.tokens as usize, sampled, "{keys:?}");
        for line in &lines {
            let (mask, logprobs) = (mask(line), line["processed_logprobs"].as_array().unwrap());
            assert_eq!(mask.len(), logprobs.len());
            assert!(mask.iter().zip(logprobs).all(|(sampled, logprob)| *sampled || *logprob == 0.0));
            let ids = line["completion_ids"].as_array().unwrap();
            assert!(mask.iter().zip(ids).all(|(sampled, id)| *sampled || *id == u32::from(b'=')));
            assert!(mask.len() <= 16 && mask[mask.len() - 1]);
        }
    }
}

#[test]
fn the_files_of_a_run_with_turns_do_not_depend_on_how_it_is_computed() {
    let keys = [
        "grpo.num_iterations=2",
        "grpo.steps=8",
        "grpo.beta=0.05",
        "grpo.top_p=0.9",
        "grpo.prompt_sharing=3",
    ];
    let (want, _) = outcome("base", &keys, &setup(1)).unwrap();
    let (got, _) = outcome("threads", &keys, &setup(3)).unwrap();
    assert_equal("3 threads", &want, &got);
    for micro_batch in ["grpo.micro_batch=1", "grpo.micro_batch=100"] {
        let (got, _) = outcome("micro", &[&keys[..], &[micro_batch]].concat(), &setup(2)).unwrap();
        assert_equal(micro_batch, &want, &got);
    }
    let paged = KvKind::Paged { page: 4 };
    for (kv, kv_capacity, prefill_chunk) in [(paged, Some(64), Some(2)), (KvKind::Off, None, None)] {
        let engine = EngineOptions { kv, kv_capacity, prefill_chunk, ..EngineOptions::default() };
        let setup = Setup { engine, stops: vec![4], ..setup(2) };
        let (got, _) = outcome("engine", &keys, &setup).unwrap();
        assert_equal(&format!("{kv}, interrupted"), &want, &got);
    }
}

#[test]
fn groups_with_several_turns_are_replaced_if_their_rewards_are_equal() {
    let keys = ["grpo.resample_groups=2", "grpo.num_generations=2", "grpo.top_k=3", "grpo.eval_every=0"];
    let (want, compared) = outcome("resample", &keys, &setup(1)).unwrap();
    let lines = rollouts(&want);
    let (trained, replaced): (Vec<&Value>, Vec<&Value>) =
        lines.iter().partition(|line| line["trained"] == true);
    assert_eq!(trained.len(), 4 * 4 * 2);
    assert!(replaced.iter().any(|line| turns(line) > 1) && trained.iter().any(|line| turns(line) > 1));
    assert!(replaced.chunks(2).all(|group| group[0]["reward"] == group[1]["reward"]));
    let groups = trained.chunks(2).filter(|group| group[0]["advantage"] != 0.0);
    let sampled: usize = groups.flatten().flat_map(|line| mask(line)).map(usize::from).sum();
    assert_eq!(compared.tokens as usize, sampled);
    let kv = KvKind::Paged { page: 4 };
    let engine =
        EngineOptions { kv, kv_capacity: Some(64), prefill_chunk: Some(2), ..EngineOptions::default() };
    let (got, _) = outcome("resample-engine", &keys, &Setup { engine, stops: vec![2], ..setup(3) }).unwrap();
    assert_equal("engine, interrupted", &want, &got);
}

#[test]
fn the_limits_end_a_completion_that_a_reward_always_continues() {
    let keys = ["grpo.steps=1", "grpo.eval_every=0"];
    let always = Setup { reward: || Tool::boxed(Appends::Always), ..setup(1) };
    let (files, _) = outcome("always", &keys, &always).unwrap();
    let lines = rollouts(&files);
    let truncated = |line: &Value| line["truncated"] == true;
    assert!(lines.iter().all(|line| turns(line) == 3 || truncated(line) || mask(line).len() >= 15));
    assert!(lines.iter().any(|line| turns(line) == 3) && lines.iter().any(truncated));
    // Text that did not fit truncates a completion whose last turn ended with an end-of-text token.
    let long = ["grpo.steps=1", "grpo.eval_every=0", "grpo.max_completion_length=5", "grpo.max_turns=9"];
    let lines = rollouts(&outcome("long", &long, &always).unwrap().0);
    assert!(lines.iter().any(|line| truncated(line) && line["finish_reason"] == "eos"));
    let forever = Setup { reward: || Tool::boxed(Appends::Forever), ..setup(1) };
    let error = outcome("forever", &keys, &forever).unwrap_err();
    assert!(matches!(&error, Error::Append { want: "rewards", .. }), "{error}");
    let error = outcome("one-turn", &["grpo.max_turns=1"], &forever).unwrap_err();
    assert!(matches!(&error, Error::Append { want: "rewards", .. }), "{error}");
}

/// A reward may continue the completions that have a turn left and room for one token to append and one to sample: it
/// is told so of these completions, and of no others. Returns the number of completions.
pub(crate) fn room() -> Result<usize, String> {
    ASKED.take();
    let setup = Setup { reward: || Box::new(Recorder(Tool::boxed(Appends::Always))), ..setup(1) };
    let keys = ["grpo.steps=2", "grpo.eval_every=0", "grpo.max_turns=4"];
    outcome("room", &keys, &setup).map_err(|error| format!("gate turns, seed 0: {error}"))?;
    let all = ASKED.take();
    for &Asked { tokens, turn, truncated, can_append } in &all {
        let want = turn < 4 && !truncated && tokens + 2 <= 16;
        if can_append != want {
            return Err(format!(
                "gate turns, seed 0: {tokens} of 16 tokens, turn {turn} of 4, truncated: {truncated}: expected \
                 can_append {want}, found {can_append}"
            ));
        }
    }
    for exact in [14, 15] {
        let met = |asked: &&Asked| asked.tokens == exact && asked.turn < 4 && !asked.truncated;
        assert!(all.iter().any(|asked| met(&asked)), "no completion ends a turn with {exact} of 16 tokens");
    }
    Ok(all.len())
}

#[test]
fn a_completion_can_be_continued_with_room_for_two_tokens() {
    let n = room().unwrap_or_else(|e| panic!("{e}"));
    println!("turns: {n} completions can be continued if they have room for two tokens");
}

/// Compares the mean entropy of a step with that of its sampled tokens, from a forward pass over each trained
/// completion. Returns the number of tokens.
pub(crate) fn entropy() -> Result<usize, String> {
    let dir = Scratch::new("turns-entropy");
    let keys = ["grpo.steps=1", "grpo.eval_every=0", "train.dtype=f32"];
    run(&config(&[&KEYS[..], &keys].concat()), &setup(2), &dir.0).map_err(|error| error.to_string())?;
    let all = files(&dir.0);
    let metrics = std::str::from_utf8(&all[0].1).unwrap().lines().last().unwrap();
    let got = serde_json::from_str::<Value>(metrics).unwrap()["entropy"].as_f64().unwrap();
    let checkpoint = dir.0.join("checkpoints/step_000000");
    let model =
        store::open(&checkpoint, Dtype::F32, &Device::cpu()).map_err(|error| error.to_string())?.model;
    let lines = rollouts(&all);
    let trained = lines.chunks(4).filter(|group| group.iter().any(|line| line["advantage"] != 0.0)).flatten();
    let (mut sum, mut tokens, mut appended) = (0.0, 0, 0);
    for line in trained {
        let ids = |key: &str| -> Vec<u32> { serde_json::from_value(line[key].clone()).unwrap() };
        let (prompt, completion, mask) = (ids("prompt_ids"), ids("completion_ids"), mask(line));
        let target = |(&id, sampled): (&u32, bool)| sampled.then_some(Target { id, weight: 0.0, bonus: 0.0 });
        let targets = completion.iter().zip(mask.iter().copied()).map(target);
        let example = TrainingExample {
            inputs: [&prompt[..], &completion[..completion.len() - 1]].concat(),
            targets: vec![None; prompt.len() - 1].into_iter().chain(targets).collect(),
            ..TrainingExample::default()
        };
        let temperature = line["temperature"].as_f64().unwrap() as f32;
        let processing = LogitsProcessing { temperature, ..LogitsProcessing::default() };
        let values = objective::values(&model, &[example], processing).map_err(|error| error.to_string())?;
        let entropies = values.into_iter().flatten().map(|value| f64::from(value.entropy));
        sum += entropies.sum::<f64>();
        tokens += mask.iter().filter(|sampled| **sampled).count();
        appended += mask.iter().filter(|sampled| !**sampled).count();
    }
    assert!(appended > 20, "{appended} appended tokens");
    let want = sum / tokens as f64;
    if (got - want).abs() > 1e-12 * want {
        return Err(format!(
            "gate turns, seed 0: expected the mean entropy {want} of {tokens} tokens, found {got}"
        ));
    }
    Ok(tokens)
}

#[test]
fn text_without_tokens_is_not_appended() {
    let setup = Setup { reward: || Tool::boxed(Appends::Nothing), ..setup(1) };
    let error = outcome("nothing", &["grpo.steps=1", "grpo.eval_every=0"], &setup).map(drop).unwrap_err();
    assert!(error.to_string().contains("text of at least one token"), "{error}");
}

#[test]
fn the_mean_entropy_is_that_of_the_sampled_tokens() {
    let tokens = entropy().unwrap_or_else(|difference| panic!("{difference}"));
    println!("turns: the mean entropy of {tokens} tokens");
}

/// Two steps with several turns, each compared over the whole vocabulary. Returns the number of compared tokens.
#[cfg(feature = "faults")]
pub(crate) fn steps() -> Result<usize, String> {
    let keys = ["grpo.steps=2", "grpo.eval_every=0", "grpo.verify_every=1"];
    let outcome = outcome("steps", &keys, &setup(2));
    outcome
        .map(|(_, compared)| compared.tokens as usize)
        .map_err(|error| format!("gate turns, seed 0: {error}"))
}

#[cfg(feature = "faults")]
#[test]
fn each_fault_of_a_turn_stops_the_run_with_its_own_error() {
    use xtrain::tensor::faults::{self, Fault};

    assert!(steps().unwrap() > 100);
    let keys = ["grpo.steps=2", "grpo.eval_every=0", "grpo.verify_every=1"];
    let error =
        |fault: Fault| faults::with(fault, || outcome("fault", &keys, &setup(2)).map(drop)).unwrap_err();
    let trained = error(Fault::AppendedTokensTrained);
    assert!(matches!(trained, Error::Mismatch { .. }), "{trained}");
    let repeated = error(Fault::RandomNumbersCountFromPrompt);
    assert!(matches!(repeated, Error::Verify { step: 1, .. }), "{repeated}");
}
