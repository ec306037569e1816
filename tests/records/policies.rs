//! Policy losses over completions of several lengths, with tokens outside the loss mask: the loss, every weight and bonus,
//! and the metrics.
use xtrain::model::rl::{
    ImportanceSamplingLevel, LossType, PolicyLoss, PolicyRow, SamplerCorrection, SamplerCorrectionMode,
};

use crate::{Record, list, row};

const LOGP: [&[f64]; 5] = [&[-0.5, -1.25, -0.1, -3.0], &[-2.0, -0.75], &[-0.3], &[-0.9, -0.4, -0.2], &[]];
const OLD: [&[f64]; 5] = [&[-0.7, -1.0, -0.1, -2.0], &[-1.5, -0.9], &[-1.3], &[-0.9, -0.4, -0.2], &[]];
const REFERENCE: [&[f64]; 5] = [&[-0.6, -1.5, -0.3, -2.5], &[-1.75, -0.5], &[-0.9], &[-1.0, -0.5, -0.1], &[]];
const SAMPLER: [&[f64]; 5] = [&[-0.8, -1.0, -0.3, -2.0], &[-1.0, -0.9], &[-1.2], &[-0.9, -0.4, -0.3], &[]];
const ENTROPY: [&[f64]; 5] = [&[0.5, 1.5, 0.25, 3.0], &[1.0, 0.75], &[2.0], &[0.1, 0.0, 0.6], &[]];
const MASKS: [&[bool]; 5] = [&[true, true, false, true], &[true; 2], &[true], &[false, true, false], &[]];
const ADVANTAGES: [f64; 5] = [0.7, -1.3, 0.6, -0.2, 1.0];

fn completions() -> Vec<PolicyRow<'static>> {
    let of = |at: usize| PolicyRow {
        logp: LOGP[at],
        old: OLD[at],
        reference: Some(REFERENCE[at]),
        sampler: Some(SAMPLER[at]),
        entropy: Some(ENTROPY[at]),
        mask: MASKS[at],
        advantage: ADVANTAGES[at],
        truncated: at == 1,
    };
    (0..5).map(of).collect()
}

/// Options beside the type of the loss and the level of the ratio.
fn variants() -> Vec<(&'static str, PolicyLoss)> {
    let base = PolicyLoss { max_completion_length: Some(8), ..PolicyLoss::default() };
    let correction = |mode, min, max| Some(SamplerCorrection { mode, min, max });
    vec![
        ("plain", base),
        ("epsilon_high 0.05", PolicyLoss { epsilon_high: Some(0.05), ..base }),
        ("beta 0.1", PolicyLoss { beta: 0.1, ..base }),
        ("beta 0.1, plain KL", PolicyLoss { beta: 0.1, bias_corrected_kl: false, ..base }),
        ("entropy 0.02", PolicyLoss { entropy_coef: 0.02, ..base }),
        ("top entropy 0.4", PolicyLoss { entropy_coef: 0.02, top_entropy_quantile: 0.4, ..base }),
        ("off-policy mask 0.1", PolicyLoss { off_policy_mask_threshold: Some(0.1), ..base }),
        ("truncated excluded", PolicyLoss { mask_truncated_completions: true, ..base }),
        (
            "token_truncate 0.9 1.1",
            PolicyLoss {
                sampler_correction: correction(SamplerCorrectionMode::TokenTruncate, Some(0.9), Some(1.1)),
                ..base
            },
        ),
        (
            "sequence_mask 0.9",
            PolicyLoss {
                sampler_correction: correction(SamplerCorrectionMode::SequenceMask, Some(0.9), None),
                ..base
            },
        ),
    ]
}

fn losses() -> impl Iterator<Item = (LossType, ImportanceSamplingLevel)> {
    LossType::ALL.iter().flat_map(|&of| ImportanceSamplingLevel::ALL.iter().map(move |&level| (of, level)))
}

pub(crate) fn record() -> Record {
    let (mut out, all) = (Record::default(), completions());
    for (loss_type, level) in losses() {
        out.section(format!("{loss_type}, {level}: loss | weights | bonus"));
        for (name, variant) in variants() {
            let found = PolicyLoss { loss_type, level, ..variant }.evaluate(&all).unwrap();
            let weights = found.weights.iter().map(list).collect::<Vec<_>>().join(", ");
            let bonus = found.bonus.iter().any(|of| of.iter().any(|bonus| *bonus != 0.0));
            let bonus = if bonus { format!(" | {}", list(&found.bonus)) } else { String::new() };
            out.line(row(name, 22, format!("{:?} | {weights}{bonus}", found.loss)));
        }
    }
    metrics(&mut out, &all);
    parts(&mut out, &all);
    out
}

/// The metrics of every loss; of a completion of one token, and of none, those of three losses.
fn metrics(out: &mut Record, all: &[PolicyRow<'_>]) {
    let of = |out: &mut Record, name: &str, rows: &[PolicyRow<'_>], loss_type, level| {
        out.section(format!("metrics of {loss_type}, {level}: {name}"));
        let loss = PolicyLoss { loss_type, level, beta: 0.1, ..variants()[0].1 };
        for (name, value) in loss.evaluate(rows).unwrap().metrics.named() {
            out.line(row(name, 44, format!("{value:?}")));
        }
    };
    losses().for_each(|(loss_type, level)| of(out, "all completions", all, loss_type, level));
    // ratios of 1, which are at both ends of a clip of width 0
    let equal: Vec<PolicyRow<'_>> = all.iter().map(|row| PolicyRow { old: row.logp, ..*row }).collect();
    for (name, variant) in variants() {
        out.section(format!(
            "metrics of dapo, token, {name}: all completions; on policy with a clip of width 0"
        ));
        let narrow = PolicyLoss { epsilon: 0.0, epsilon_high: Some(0.0), ..variant };
        for (name, loss, rows) in [("all", variant, all), ("on policy", narrow, &equal)] {
            let named = loss.evaluate(rows).unwrap().metrics.named().into_iter();
            out.line(row(name, 14, list(named.map(|(_, value)| value))));
        }
    }
    for loss_type in [LossType::Grpo, LossType::Cispo, LossType::Vespo] {
        of(out, "one token", &all[2..3], loss_type, ImportanceSamplingLevel::Token);
        of(out, "no token", &all[4..], loss_type, ImportanceSamplingLevel::Token);
    }
}

/// The sizes of a step, the weights of some of its completions, and which completions have none.
fn parts(out: &mut Record, all: &[PolicyRow<'_>]) {
    out.section("a part of a step: sizes, completions without a weight, weights of completions 1 and 2");
    let mut all = all.to_vec();
    all[3].advantage = 0.0;
    let all = &all;
    for (name, variant) in variants() {
        let sizes = variant.sizes(all, 20.0);
        let ignored: Vec<bool> = all.iter().map(|row| variant.ignores(row)).collect();
        let weights = match variant.weights(&all[1..3], &sizes) {
            Ok(found) => list(found.weights),
            Err(error) => error.to_string(),
        };
        out.line(row(name, 22, format!("{} {} | {} | {weights}", sizes.rows, sizes.tokens, list(ignored))));
    }
}
