//! Reinforcement learning outside the model: the order of prompts, turns of completions, replies of rewards, scores,
//! lengths, warnings.
use std::sync::{Arc, Mutex};

use serde_json::Map;
use xtrain::decode::{Completion, FinishReason};
use xtrain::grpo::Warnings;
use xtrain::grpo::batch::{Group, Sample};
use xtrain::grpo::metrics::{StepMetrics, lengths};
use xtrain::grpo::prompts::{PromptSource, text_prompt};
use xtrain::grpo::score::Scorer;
use xtrain::grpo::scores::Scores;
use xtrain::model::comm::SingleProcess;
use xtrain::model::tasks::by_name;
use xtrain::model::tokenizer::Tokenizer;
use xtrain::rewards::{
    CompletionIndex, DistinctReward, Reward, RewardError, RewardInput, RewardReply, RewardRow, Turn,
};

use crate::{Record, list, row};

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    prompts(&mut out);
    samples(&mut out);
    replies(&mut out);
    equal_completions(&mut out);
    scores(&mut out);
    warnings(&mut out);
    out
}

fn prompts(out: &mut Record) {
    let tokenizer = Tokenizer::byte();
    let prompt = |text: &str| Arc::new(text_prompt(text.into(), &tokenizer).unwrap());
    for n in [1, 2, 7] {
        out.section(format!(
            "the order of {n} prompts, and replacements of rounds 0 to 2 in slots 0 to 2 of 3 batches"
        ));
        let texts = &["aa", "b", "ccc", "dd", "eee", "f", ""][..n];
        for seed in [0, 1, u64::MAX] {
            let source = PromptSource::list(texts.iter().map(|text| prompt(text)).collect(), seed);
            let order: Vec<u64> = (0..16).map(|number| source.at(number).unwrap().0).collect();
            let replaced: Vec<u64> =
                (0..27).map(|at| source.replacement(at / 9, at / 3 % 3, at % 3).unwrap().0).collect();
            out.line(row(format!("seed {seed}"), 26, format!("{} | {}", list(order), list(replaced))));
            assert_eq!(source.longest().unwrap().text, texts[if n == 7 { 2 } else { 0 }]);
        }
    }
    let task = by_name("countdown").unwrap();
    let source = PromptSource::task(&*task, &tokenizer, 4);
    for found in [source.at(0), source.at(1), source.replacement(0, 0, 1), source.replacement(2, 1, 0)] {
        let (number, prompt) = found.unwrap();
        out.line(row(number.to_string(), 26, format!("{:?} {}", prompt.text, prompt.ids.len())));
    }
}

fn completion(text: &[u8], finish_reason: FinishReason) -> Completion {
    let tokens: Vec<u32> = text.iter().copied().map(u32::from).collect();
    let tokens = [tokens, if finish_reason == FinishReason::Eos { vec![256] } else { vec![] }].concat();
    let processed_logprobs: Vec<f32> = (1u8..).zip(&tokens).map(|(n, _)| -f32::from(n) / 8.0).collect();
    let logprobs = vec![-9.0; tokens.len()];
    Completion {
        index: 0,
        id: 6,
        prompt_len: 2,
        tokens,
        logprobs,
        processed_logprobs,
        top_logprobs: Vec::new(),
        finish_reason,
    }
}

/// Turns, with the tokens that are appended after each; then the reason of the last end and whether it was cut.
fn sample(turns: &[(&[u8], FinishReason, &[u8])], cut: bool) -> Sample {
    let tokenizer = Tokenizer::byte();
    let [(text, reason, appended), rest @ ..] = turns else { panic!("no turn") };
    let ids = |text: &[u8]| text.iter().copied().map(u32::from).collect::<Vec<_>>();
    let mut sample = Sample::new(completion(text, *reason), &[], &tokenizer);
    sample.append(&ids(appended));
    for (text, reason, appended) in rest {
        sample.push_turn(completion(text, *reason), &[], &tokenizer);
        sample.append(&ids(appended));
    }
    sample.cut = cut;
    sample
}

fn all_samples() -> Vec<Sample> {
    use FinishReason::{Context, Eos, Length, Stop};
    vec![
        sample(&[(b"abc", Eos, b"")], false),
        sample(&[(b"abcde", Length, b"")], false),
        sample(&[(b"", Eos, b"")], false),
        sample(&[(b"ab", Stop, b"")], true),
        sample(&[(b"ab", Stop, b"<x>"), (b"cd", Eos, b"")], false),
        sample(&[(b"ab", Eos, b"yz"), (b"c\xc3", Length, b""), (b"\xa9", Context, b"")], false),
    ]
}

fn samples(out: &mut Record) {
    out.section("completions: text | turns, text of the last | sampled tokens, truncated | log-probabilities | per token");
    let tokenizer = Tokenizer::byte();
    let all = all_samples();
    for sample in &all {
        assert!(sample.is_unchanged());
        let sampled: Vec<f64> = (1..=sample.sampled()).map(|n| n as f64).collect();
        out.line(format!(
            "{:?} | {} {:?} | {} {} | {} | {}",
            sample.text,
            list(sample.turns()),
            sample.turn_text(&tokenizer),
            sample.sampled(),
            sample.truncated(),
            list(&sample.logprobs),
            list(sample.per_token(&sampled))
        ));
        let mut changed = sample.clone();
        changed.mask[0] = !changed.mask[0];
        assert!(!changed.is_unchanged());
    }
    for part in [&all[..], &all[1..2], &all[..1], &[]] {
        let prompt = Arc::new(text_prompt("p".into(), &tokenizer).unwrap());
        let group = Group { prompt_id: 0, prompt, samples: part.to_vec() };
        out.line(row(
            format!("lengths of {}", part.len()),
            26,
            list(lengths(&[group]).map(|(_, value)| value)),
        ));
    }
    out.line(row("names", 26, list(lengths(&[]).map(|(name, _)| name))));
}

/// Replies with the lengths of completions, or as `reply` says. Keeps what it was asked.
struct Scripted {
    names: Vec<String>,
    reply: fn(&RewardInput<'_>) -> RewardReply,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Reward for Scripted {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn announce(&mut self, places: &[usize], inputs: &[RewardInput<'_>]) -> Result<(), RewardError> {
        let text: Vec<&str> = inputs.iter().map(|input| input.completion).collect();
        self.asked.lock().unwrap().push(format!("announced {places:?} {text:?}"));
        Ok(())
    }

    fn discard_announced(&mut self) {
        self.asked.lock().unwrap().push("discarded".into());
    }

    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
        let text: Vec<&str> = batch.iter().map(|input| input.completion).collect();
        self.asked.lock().unwrap().push(format!("scored {text:?}"));
        let all = batch.iter().map(|input| RewardRow { at: input.location(), reply: (self.reply)(input) });
        Ok(all.filter(|row| row.at.completion < 9).collect())
    }
}

fn scripted(
    names: &[&str],
    asked: &Arc<Mutex<Vec<String>>>,
    reply: fn(&RewardInput<'_>) -> RewardReply,
) -> Box<dyn Reward> {
    let names = names.iter().map(ToString::to_string).collect();
    Box::new(Scripted { names, reply, asked: Arc::clone(asked) })
}

fn length(input: &RewardInput<'_>) -> RewardReply {
    RewardReply::Rewards(vec![Some(input.completion.len() as f64)])
}

/// The inputs of completions of two prompts; `can_append`: they may have several turns.
fn inputs<'a>(
    texts: &'a [(usize, usize, &'a str)],
    ids: &'a [Vec<u32>],
    columns: &'a Map<String, serde_json::Value>,
    can_append: bool,
) -> Vec<RewardInput<'a>> {
    let input =
        |(&(prompt_index, completion_index, completion), ids): (&(usize, usize, &'a str), &'a Vec<u32>)| {
            RewardInput {
                prompt: "p",
                completion,
                prompt_ids: &[1],
                completion_ids: ids,
                columns,
                prompt_index,
                completion_index,
                finish_reason: FinishReason::Eos,
                truncated: false,
                turn: can_append.then_some(Turn { number: 1, text: completion, mask: &[true], can_append }),
            }
        };
    texts.iter().zip(ids).map(input).collect()
}

fn ids_of(texts: &[(usize, usize, &str)]) -> Vec<Vec<u32>> {
    texts.iter().map(|(.., text)| text.bytes().map(u32::from).collect()).collect()
}

fn replies(out: &mut Record) {
    out.section("replies of several rewards to four completions");
    let texts = [(0, 0, "a"), (0, 1, "bb"), (1, 0, ""), (1, 1, "dd")];
    let (ids, columns) = (ids_of(&texts), Map::new());
    type Reply = fn(&RewardInput<'_>) -> RewardReply;
    let two: Reply = |input| RewardReply::Rewards(vec![None, Some(input.completion_index as f64)]);
    let more: Reply = |input| match input.completion.len() {
        2 => RewardReply::Append("more".into()),
        n => RewardReply::Rewards(vec![Some(n as f64)]),
    };
    let late: Reply = |_| RewardReply::Rewards(vec![Some(1.0)]);
    for (name, rewards, can_append) in [
        ("lengths, two values", vec![(&["length"][..], length as Reply), (&["x", "y"], two)], false),
        ("the first appends", vec![(&["more"], more), (&["length"], length)], true),
        ("the second appends", vec![(&["length"], length), (&["more"], more)], true),
        ("text for completions of one turn", vec![(&["more"], more)], false),
        ("two values for one name", vec![(&["x"], two)], false),
        ("one name twice", vec![(&["x"], late), (&["x"], late)], false),
    ] {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let rewards = rewards.into_iter().map(|(names, reply)| scripted(names, &asked, reply)).collect();
        let mut scorer = Scorer::new(rewards, Vec::new());
        let batch = inputs(&texts, &ids, &columns, can_append);
        let text = match scorer.reply(&batch, &SingleProcess) {
            Ok(replies) => {
                format!("{} | {:?}", list(replies), scorer.scores(vec![vec![]]).map_err(|e| e.to_string()))
            }
            Err(error) => error.to_string(),
        };
        out.line(row(name, 34, text));
        out.line(row("", 34, asked.lock().unwrap().join("; ")));
    }
    let texts = [(0, 0, "a"), (0, 9, "lost")];
    let asked = Arc::new(Mutex::new(Vec::new()));
    let mut scorer = Scorer::new(vec![scripted(&["length"], &asked, length)], vec![1.0]);
    let error = scorer.reply(&inputs(&texts, &ids_of(&texts), &columns, false), &SingleProcess).unwrap_err();
    out.line(row("one row is missing", 34, error.to_string()));
}

/// Which of equal completions are scored, announced in parts.
fn equal_completions(out: &mut Record) {
    out.section("equal completions");
    let texts = [(0, 0, "a"), (0, 1, "b"), (0, 2, "a"), (1, 0, "a"), (1, 1, "a"), (1, 2, "b")];
    let (ids, columns) = (ids_of(&texts), Map::new());
    let batch = inputs(&texts, &ids, &columns, false);
    for parts in [&[][..], &[&[2, 0][..], &[1]], &[&[5, 4, 3], &[0, 1, 2]]] {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let mut reward = DistinctReward::new(scripted(&["length"], &asked, length));
        for places in parts {
            let announced: Vec<RewardInput<'_>> = places.iter().map(|&at| batch[at]).collect();
            reward.announce(places, &announced).unwrap();
        }
        let rows = reward.score(&batch).unwrap();
        let at = |CompletionIndex { prompt, completion }| format!("{prompt}.{completion}");
        let rows: Vec<String> = rows.into_iter().map(|row| at(row.at)).collect();
        out.line(row(
            format!("{parts:?}"),
            26,
            format!("{} | {}", rows.join(" "), asked.lock().unwrap().join("; ")),
        ));
    }
}

fn scores(out: &mut Record) {
    out.section("scores");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let each = || vec![vec![Some(1.0), None], vec![None, None], vec![Some(0.5), Some(-2.0)]];
    for weights in [&[][..], &[2.0, 0.5], &[1.0], &[0.0, -1.0]] {
        let scorer = Scorer::new(vec![scripted(&["a", "b"], &asked, length)], weights.to_vec());
        let text = scorer.scores(each()).map_or_else(|e| e.to_string(), |scores| list(scores.total));
        out.line(row(format!("weights {weights:?}"), 26, text));
    }
    let scores = |n: u8| Scores {
        each: (0..n).map(|at| vec![Some(f64::from(at))]).collect(),
        total: (0..n).map(|at| Some(f64::from(at))).collect(),
    };
    let mut all = scores(5);
    let old = all.replace(1, Scores { each: vec![vec![None]; 2], total: vec![None; 2] });
    all.append(scores(1));
    out.line(row(
        "replaced",
        26,
        format!("{} | {} | {}", list(old.total), list(&all.total), list(all.part(2..4).total)),
    ));
}

/// The steps at which a course of metrics gives each warning.
fn warnings(out: &mut Record) {
    out.section("warnings: the step and the text");
    type Course = fn(u64) -> Vec<(&'static str, f64)>;
    let courses: [(&str, Course); 9] = [
        ("70 % without spread", |_| vec![("reward", 1.0), ("frac_reward_zero_std", 0.7)]),
        ("0.5 % more from step 10", |n| {
            vec![("reward", 1.0), ("frac_reward_zero_std", if n < 10 { 0.7 } else { 0.705 })]
        }),
        ("no reward from step 3", |n| {
            if n < 3 { vec![("reward", 1.0)] } else { vec![("frac_reward_zero_std", 1.0)] }
        }),
        ("reward falls to a half", |n| vec![("reward", if n <= 20 { 1.0 } else { 0.5 })]),
        ("reward falls to 0.49", |n| vec![("reward", if n <= 20 { 1.0 } else { 0.49 })]),
        ("reward of 0", |_| vec![("reward", 0.0)]),
        ("greedy falls by 0.03", |n| {
            vec![("eval/reward_sampled", n as f64), ("eval/reward_greedy", if n < 5 { 1.0 } else { 0.97 })]
        }),
        ("greedy falls, sampled stays", |n| {
            vec![("eval/reward_sampled", 0.5), ("eval/reward_greedy", 1.0 / n as f64)]
        }),
        ("all truncated at step 3", |n| vec![("completions/clipped_ratio", if n == 3 { 1.0 } else { 0.99 })]),
    ];
    for (name, course) in courses {
        let mut state = Warnings::default();
        let mut given = Vec::new();
        for step in 1..=60 {
            let mut metrics = StepMetrics::new(step);
            course(step).into_iter().for_each(|(key, value)| metrics.push(key, value));
            given.extend(state.check(&metrics).into_iter().map(|text| format!("{step} {text}")));
        }
        out.line(row(name, 30, given.join(" | ")));
    }
}
