//! Policy losses of unusual steps.
use crate::rl::SamplerCorrectionMode::{SequenceMask, SequenceTruncate, TokenMask, TokenTruncate};
use crate::rl::{
    ImportanceSamplingLevel, LossType, PolicyLoss, PolicyOutput, PolicyRow, RlError, SamplerCorrection,
    SamplerCorrectionMode,
};

const LOGP: [&[f64]; 3] = [&[-0.5, -1.25, -0.1], &[-2.0, -0.75], &[-0.3]];
const OLD: [&[f64]; 3] = [&[-0.7, -1.0, -0.1], &[-1.5, -0.9], &[-1.3]];
const REFERENCE: [&[f64]; 3] = [&[-0.6, -1.5, -0.3], &[-1.75, -0.5], &[-0.9]];
const ENTROPY: [&[f64]; 3] = [&[0.5, 1.5, 0.25], &[1.0, 0.75], &[2.0]];
const ADVANTAGES: [f64; 3] = [0.7, -1.3, 0.6];
const MASKS: [&[bool]; 3] = [&[true; 3], &[true; 2], &[true]];

/// The completions after several updates.
fn rows() -> Vec<PolicyRow<'static>> {
    let row = |b: usize| PolicyRow {
        logp: LOGP[b],
        old: OLD[b],
        reference: Some(REFERENCE[b]),
        sampler: Some(OLD[b]),
        entropy: Some(ENTROPY[b]),
        mask: MASKS[b],
        advantage: ADVANTAGES[b],
        truncated: false,
    };
    (0..3).map(row).collect()
}

/// Every loss type at both levels.
fn losses() -> Vec<PolicyLoss> {
    let of = |&loss_type: &LossType| {
        ImportanceSamplingLevel::ALL.iter().map(move |&level| PolicyLoss {
            loss_type,
            level,
            max_completion_length: Some(8),
            epsilon_high: (loss_type == LossType::Cispo).then_some(5.0),
            ..PolicyLoss::default()
        })
    };
    LossType::ALL.iter().flat_map(of).collect()
}

fn evaluate(loss: &PolicyLoss, rows: &[PolicyRow<'_>]) -> PolicyOutput {
    loss.evaluate(rows).unwrap_or_else(|e| panic!("{loss:?}: {e}"))
}

/// The divisor of completion `b`.
fn divisor(loss: &PolicyLoss, b: usize) -> f64 {
    match loss.loss_type {
        LossType::Grpo | LossType::Sapo => 3.0 * LOGP[b].len() as f64,
        LossType::Bnpo | LossType::Dapo | LossType::Cispo | LossType::Vespo => 6.0,
        LossType::DrGrpo => 24.0,
        LossType::Luspo => 3.0,
    }
}

#[test]
fn on_policy_every_weight_is_the_advantage_over_the_divisor() {
    for loss in losses() {
        let rows: Vec<_> = (0..3).map(|b| PolicyRow::on_policy(LOGP[b], MASKS[b], ADVANTAGES[b])).collect();
        let output = evaluate(&loss, &rows);
        for b in 0..3 {
            let want = vec![ADVANTAGES[b] / divisor(&loss, b); LOGP[b].len()];
            assert_eq!(output.weights[b], want, "{loss:?}, completion {b}");
        }
        assert_eq!((output.metrics.ratio_min, output.metrics.ratio_max), (Some(1.0), Some(1.0)));
    }
}

#[test]
fn an_advantage_of_zero_leaves_only_the_kl_divergence() {
    for loss in losses() {
        let rows: Vec<_> = rows().into_iter().map(|row| PolicyRow { advantage: 0.0, ..row }).collect();
        let output = evaluate(&loss, &rows);
        assert_eq!(output.loss.to_bits(), 0, "{loss:?}");
        assert!(output.weights.iter().flatten().all(|w| w.to_bits() == 0), "{loss:?}: {:?}", output.weights);

        let with_kl = PolicyLoss { beta: 0.5, bias_corrected_kl: false, ..loss };
        let output = evaluate(&with_kl, &rows);
        for b in 0..3 {
            for t in 0..LOGP[b].len() {
                let x = REFERENCE[b][t] - LOGP[b][t];
                let want = -0.5 * (1.0 - x.exp()) / divisor(&loss, b);
                let got = output.weights[b][t];
                assert!(
                    (got - want).abs() < 1e-15,
                    "{loss:?}, completion {b}, token {t}: {got}, expected {want}"
                );
            }
        }
    }
}

#[test]
fn an_infinite_epsilon_gives_the_plain_gradient() {
    for loss in losses().into_iter().filter(|loss| loss.loss_type.is_clipped()) {
        let level = loss.level;
        let unclipped = PolicyLoss { epsilon: f64::INFINITY, ..loss };
        let output = evaluate(&unclipped, &rows());
        for b in 0..3 {
            let d: Vec<f64> = LOGP[b].iter().zip(OLD[b]).map(|(l, old)| l - old).collect();
            for t in 0..d.len() {
                let ratio = match level {
                    ImportanceSamplingLevel::Token => d[t].exp(),
                    ImportanceSamplingLevel::Sequence => (d.iter().sum::<f64>() / d.len() as f64).exp(),
                };
                let want = ratio * ADVANTAGES[b] / divisor(&unclipped, b);
                let got = output.weights[b][t];
                assert!((got - want).abs() < 1e-15, "{unclipped:?}: {got}, expected {want}");
            }
        }
        let clips = output.metrics.clip_ratio.unwrap();
        assert_eq!((clips.low_mean, clips.high_mean, clips.region_mean), (0.0, 0.0, 0.0));
    }
}

/// The derivative of the loss by finite differences, for every loss with every option that has a gradient. The
/// factors that have no gradient are checked against TRL.
#[test]
fn weights_are_the_negative_derivative_of_the_loss() {
    const STEP: f64 = 1e-6;
    for loss in losses() {
        if matches!(loss.loss_type, LossType::Cispo | LossType::Vespo) {
            continue;
        }
        for bias_corrected_kl in [false, true] {
            let loss = PolicyLoss {
                beta: 0.3,
                bias_corrected_kl,
                delta: loss.loss_type.is_clipped().then_some(1.1),
                top_entropy_quantile: 0.7,
                ..loss
            };
            let weights = evaluate(&loss, &rows()).weights;
            for b in 0..3 {
                for t in 0..LOGP[b].len() {
                    let moved = |by: f64| {
                        let mut logp = LOGP[b].to_vec();
                        logp[t] += by;
                        let mut rows = rows();
                        rows[b].logp = &logp;
                        evaluate(&loss, &rows).loss
                    };
                    let (got, want) = (weights[b][t], -(moved(STEP) - moved(-STEP)) / (2.0 * STEP));
                    assert!(
                        (got - want).abs() < 1e-8,
                        "{loss:?}, completion {b}, token {t}: {got}, want {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn values_outside_the_mask_are_not_read() {
    let nan = [f64::NAN, f64::INFINITY];
    for loss in losses() {
        let loss = PolicyLoss { beta: 0.1, entropy_coef: 0.01, top_entropy_quantile: 0.6, ..loss };
        let want = evaluate(&loss, &rows());
        let longer = |values: &[f64]| [&nan[..1], values, &nan[1..]].concat();
        let lists: Vec<[Vec<f64>; 4]> =
            (0..3).map(|b| [LOGP[b], OLD[b], REFERENCE[b], ENTROPY[b]].map(longer)).collect();
        let masks: Vec<Vec<bool>> = (0..3).map(|b| [&[false], MASKS[b], &[false]].concat()).collect();
        let row = |b: usize| PolicyRow {
            logp: &lists[b][0],
            old: &lists[b][1],
            reference: Some(&lists[b][2]),
            sampler: Some(&lists[b][1]),
            entropy: Some(&lists[b][3]),
            mask: &masks[b],
            ..rows()[b]
        };
        let got = evaluate(&loss, &(0..3).map(row).collect::<Vec<_>>());
        assert_eq!((got.loss, got.metrics), (want.loss, want.metrics), "{loss:?}");
        for (b, logp) in LOGP.iter().enumerate() {
            let inside = 1..=logp.len();
            assert_eq!(got.weights[b][inside.clone()], want.weights[b], "{loss:?}");
            assert_eq!(got.bonus[b][inside], want.bonus[b], "{loss:?}");
            assert_eq!((got.weights[b][0].to_bits(), got.weights[b][logp.len() + 1].to_bits()), (0, 0));
        }
    }
}

#[test]
fn empty_completions_and_masked_steps_add_nothing() {
    for loss in losses() {
        let loss = PolicyLoss { beta: 0.1, entropy_coef: 0.01, top_entropy_quantile: 0.6, ..loss };
        let none = evaluate(&loss, &[]);
        assert_eq!((none.loss, none.weights.len(), none.metrics.tokens), (0.0, 0, 0));

        let masked: Vec<_> =
            rows().into_iter().map(|row| PolicyRow { mask: &[false; 3][..row.mask.len()], ..row }).collect();
        let truncated: Vec<_> = rows().into_iter().map(|row| PolicyRow { truncated: true, ..row }).collect();
        let skips = PolicyLoss { mask_truncated_completions: true, ..loss };
        let empty =
            PolicyRow { reference: Some(&[]), entropy: Some(&[]), ..PolicyRow::on_policy(&[], &[], 1.0) };
        for (loss, rows) in [(&loss, masked), (&skips, truncated), (&loss, vec![empty; 2])] {
            let output = evaluate(loss, &rows);
            assert_eq!(output.loss.to_bits(), 0, "{loss:?}");
            assert!(
                output.weights.iter().chain(&output.bonus).flatten().all(|w| w.to_bits() == 0),
                "{loss:?}"
            );
            assert_eq!((output.metrics.tokens, output.metrics.entropy, output.metrics.kl), (0, None, None));
            assert!(
                output.metrics.named().iter().all(|(_, value)| value.is_finite()),
                "{:?}",
                output.metrics
            );
        }

        // an empty completion counts as a completion only
        let with_empty = evaluate(&loss, &[&rows()[..], &[empty]].concat());
        let without = evaluate(&loss, &rows());
        let scale = with_empty.weights[0][0] / without.weights[0][0];
        let per_token =
            matches!(loss.loss_type, LossType::Bnpo | LossType::Dapo | LossType::Cispo | LossType::Vespo);
        let want = if per_token { 1.0 } else { 0.75 };
        assert!((scale - want).abs() < 1e-12, "{loss:?}: {scale}");
    }
}

#[test]
fn truncated_completions_are_excluded_on_request_only() {
    let mut rows = rows();
    rows[1].truncated = true;
    let kept = evaluate(&PolicyLoss::default(), &rows);
    assert!(kept.weights[1].iter().any(|w| *w != 0.0));
    let excluded = PolicyLoss { mask_truncated_completions: true, ..PolicyLoss::default() };
    let excluded = evaluate(&excluded, &rows);
    assert_eq!((&excluded.weights[1], excluded.metrics.tokens), (&vec![0.0; 2], 4));
}

#[test]
fn the_entropy_bonus_acts_on_the_tokens_of_highest_entropy() {
    // the entropies are 0.25, 0.5, 0.75, 1, 1.5, 2; the threshold at 0.6 * 5 = 3 is 1
    let loss = PolicyLoss { entropy_coef: 0.03, top_entropy_quantile: 0.4, ..PolicyLoss::default() };
    let output = evaluate(&loss, &rows());
    assert_eq!(output.bonus, [vec![0.0, 0.01, 0.0], vec![0.01, 0.0], vec![0.01]]);
    let zeros = |rows: &[Vec<f64>]| -> Vec<bool> { rows.iter().flatten().map(|w| *w == 0.0).collect() };
    assert!(zeros(&output.bonus).iter().zip(zeros(&output.weights)).all(|(dropped, zero)| !dropped || zero));
    let mean = (1.5 + 1.0 + 2.0) / 3.0;
    assert!((output.loss - (output.metrics.policy_loss - 0.03 * mean)).abs() < 1e-15);
}

/// One completion at a time has the weights and the loss of the step, for losses that divide by the tokens of the
/// step.
#[test]
fn completions_one_at_a_time_have_the_weights_of_the_step() {
    for loss in losses() {
        if !matches!(loss.loss_type, LossType::Dapo | LossType::Cispo | LossType::Vespo) {
            continue;
        }
        let loss = PolicyLoss { beta: 0.1, ..loss };
        let whole = evaluate(&loss, &rows());
        let parts: Vec<_> = rows().iter().map(|row| loss.evaluate_part(&[*row], 6.0).unwrap()).collect();
        let weights: Vec<_> = parts.iter().flat_map(|part| part.weights.clone()).collect();
        assert_eq!(
            (whole.weights, whole.loss),
            (weights, parts.iter().map(|part| part.loss).sum()),
            "{loss:?}"
        );
    }
}

/// From the sizes of the step, one completion at a time has the weights and bonuses of the step, for every loss.
#[test]
fn the_sizes_of_the_step_give_the_weights_of_one_completion() {
    for loss in losses() {
        for (beta, entropy_coef, mask_truncated_completions) in [(0.0, 0.0, false), (0.1, 0.03, true)] {
            let loss = PolicyLoss { beta, entropy_coef, mask_truncated_completions, ..loss };
            let mut rows = rows();
            (rows[1].truncated, rows[0].mask, rows[2].advantage) = (true, &[true, false, true], 0.0);
            let (whole, sizes) = (loss.evaluate_part(&rows, 2.5).unwrap(), loss.sizes(&rows, 2.5));
            let parts = rows.iter().map(|row| loss.weights(&[*row], &sizes).unwrap());
            let (weights, bonus): (Vec<_>, Vec<_>) =
                parts.map(|part| (part.weights.concat(), part.bonus.concat())).unzip();
            assert_eq!((&whole.weights, &whole.bonus), (&weights, &bonus), "{loss:?}");
            for (at, row) in rows.iter().enumerate() {
                let zero = weights[at].iter().chain(&bonus[at]).all(|w| w.to_bits() == 0);
                assert_eq!(loss.ignores(row), zero, "{loss:?}, completion {at}");
            }
        }
    }
}

#[test]
fn weights_of_a_part_need_no_entropy_threshold() {
    let loss = PolicyLoss { top_entropy_quantile: 0.5, ..PolicyLoss::default() };
    let error = loss.weights(&rows(), &loss.sizes(&rows(), 6.0)).unwrap_err().to_string();
    assert!(
        error.starts_with("top_entropy_quantile: expected 1 ") && error.ends_with("found 0.5"),
        "{error}"
    );
    let error = RlError::NotFinite { completion: 2, token: None, what: "loss", got: f64::NAN };
    assert!(error.map_completion(|at| at + 5).to_string().starts_with("completion 7: loss"));
}

#[test]
fn a_ratio_that_overflows_is_clipped_or_an_error() {
    let logp = [-0.5];
    let old = [-1000.0];
    let row = |advantage| PolicyRow { old: &old, ..PolicyRow::on_policy(&logp, &[true], advantage) };
    let loss = PolicyLoss::default();
    let output = evaluate(&loss, &[row(1.0)]);
    assert_eq!((output.loss, output.weights), (-1.2, vec![vec![0.0]]));
    assert_eq!(evaluate(&loss, &[row(0.0)]).weights, [[0.0]]);
    let error = loss.evaluate(&[row(-1.0)]).unwrap_err();
    assert_eq!(error, RlError::NotFinite { completion: 0, token: Some(0), what: "loss", got: f64::INFINITY });
    let bounded = PolicyLoss { delta: Some(10.0), ..loss };
    assert_eq!(evaluate(&bounded, &[row(-1.0)]).loss, 10.0);
    // a dropped completion adds 0, not 0 times infinity
    let masked = PolicyLoss { off_policy_mask_threshold: Some(5.0), ..loss };
    let output = evaluate(&masked, &[PolicyRow { sampler: Some(&[5.0]), ..row(-1.0) }]);
    assert_eq!((output.loss, output.weights), (0.0, vec![vec![0.0]]));
}

#[test]
fn ratios_of_the_sampler_are_bounded_on_both_sides() {
    // ratios exp(1), 1, exp(-1), and their product 1
    let (logp, sampler) = ([-1.0; 3], [-2.0, -1.0, 0.0]);
    let row = PolicyRow { sampler: Some(&sampler), ..PolicyRow::on_policy(&logp, &[true; 3], 3.0) };
    let weights = |loss_type, mode, min, max| {
        let sampler_correction = Some(SamplerCorrection { mode, min, max });
        let loss = PolicyLoss { loss_type, sampler_correction, ..PolicyLoss::default() };
        evaluate(&loss, &[row]).weights.concat()
    };
    let (low, high) = (Some(0.5), Some(2.0));
    assert_eq!(weights(LossType::Dapo, TokenTruncate, low, high), [2.0, 1.0, 0.5]);
    assert_eq!(weights(LossType::Dapo, TokenMask, low, high), [0.0, 1.0, 0.0]);
    assert_eq!(weights(LossType::Dapo, SequenceTruncate, Some(1.5), None), [1.5; 3]);
    assert_eq!(weights(LossType::Dapo, SequenceMask, None, Some(0.5)), [0.0; 3]);
    // vespo: v = ln 2 - ln 2, then the smallest v
    assert_eq!(weights(LossType::Vespo, TokenTruncate, low, high), [1.0; 3]);
    assert!(weights(LossType::Vespo, SequenceMask, None, Some(0.5)).iter().all(|w| *w > 0.0 && *w < 1e-14));
    // ratios exp(-5), exp(10), exp(10): the logarithm of a dropped one is ln 1e-8
    let far = [4.0, -11.0, -11.0];
    let sampler_correction = Some(SamplerCorrection { mode: TokenMask, min: low, max: None });
    let loss = PolicyLoss { loss_type: LossType::Vespo, sampler_correction, ..PolicyLoss::default() };
    let got =
        evaluate(&loss, &[PolicyRow { sampler: Some(&far), ..row }]).metrics.vespo_phi_seq_mean.unwrap();
    let v = 1e-8f64.ln() + 20.0;
    assert!((got / (3.0 + 2.0 * v - 3.0 * v.exp()).exp() - 1.0).abs() < 1e-12, "{got}");
}

#[test]
fn the_sampler_of_the_weights_has_no_difference_and_no_correction() {
    for &mode in SamplerCorrectionMode::ALL {
        let sampler_correction = Some(SamplerCorrection { mode, min: Some(0.5), max: Some(2.0) });
        for loss in losses() {
            let corrected = PolicyLoss { sampler_correction, ..loss };
            let (got, want) = (evaluate(&corrected, &rows()), evaluate(&loss, &rows()));
            assert_eq!(got.weights, want.weights);
            let sampling = got.metrics.sampling.unwrap();
            assert_eq!((sampling.logp_difference_max.to_bits(), sampling.mismatch_kl.to_bits()), (0, 0));
            assert_eq!(sampling.importance_sampling_ratio_max, 1.0);
        }
    }
}

#[test]
fn needs_follow_the_options() {
    let needs = |loss: PolicyLoss| (loss.needs_entropy(), loss.needs_sampler(), loss.needs_reference());
    let loss = PolicyLoss::default();
    assert_eq!(needs(loss), (false, false, false));
    assert_eq!(needs(PolicyLoss { entropy_coef: 0.1, ..loss }), (true, false, false));
    assert_eq!(needs(PolicyLoss { top_entropy_quantile: 0.5, ..loss }), (true, false, false));
    assert_eq!(needs(PolicyLoss { beta: 0.1, ..loss }), (false, false, true));
    let mode = SamplerCorrectionMode::TokenMask;
    let sampler_correction = Some(SamplerCorrection { mode, min: None, max: None });
    assert_eq!(needs(PolicyLoss { sampler_correction, ..loss }), (false, true, false));
}

/// The field and the value that `check` names.
#[track_caller]
fn check_option(loss: PolicyLoss, field: &str, found: &str) {
    let text = loss.check().unwrap_err().to_string();
    assert!(
        text.starts_with(&format!("{field}: expected ")) && text.ends_with(&format!("found {found}")),
        "{text}"
    );
    assert_eq!(loss.evaluate(&rows()).unwrap_err().to_string(), text);
}

#[test]
fn invalid_options_are_named() {
    let loss = PolicyLoss::default();
    loss.check().unwrap();
    let nan = f64::NAN;
    check_option(PolicyLoss { epsilon: -0.1, ..loss }, "epsilon", "-0.1");
    check_option(PolicyLoss { epsilon: nan, ..loss }, "epsilon", "NaN");
    check_option(PolicyLoss { epsilon_high: Some(-1.0), ..loss }, "epsilon_high", "-1.0");
    check_option(PolicyLoss { delta: Some(0.0), ..loss }, "delta", "0.0");
    let cispo = PolicyLoss { loss_type: LossType::Cispo, ..loss };
    check_option(PolicyLoss { delta: Some(2.0), ..cispo }, "delta", "2.0");
    check_option(PolicyLoss { beta: f64::INFINITY, ..loss }, "beta", "inf");
    check_option(PolicyLoss { entropy_coef: -1.0, ..loss }, "entropy_coef", "-1.0");
    check_option(PolicyLoss { top_entropy_quantile: 1.5, ..loss }, "top_entropy_quantile", "1.5");
    let threshold = Some(nan);
    check_option(
        PolicyLoss { off_policy_mask_threshold: threshold, ..loss },
        "off_policy_mask_threshold",
        "NaN",
    );
    check_option(PolicyLoss { max_completion_length: Some(0), ..loss }, "max_completion_length", "Some(0)");
    check_option(PolicyLoss { loss_type: LossType::DrGrpo, ..loss }, "max_completion_length", "None");
    let correct = |mode, min, max| Some(SamplerCorrection { mode, min, max });
    let with = |sampler_correction| PolicyLoss { sampler_correction, ..PolicyLoss::default() };
    check_option(with(correct(TokenMask, Some(-1.0), None)), "sampler_correction.min", "Some(-1.0)");
    check_option(with(correct(TokenMask, None, Some(nan))), "sampler_correction.max", "Some(NaN)");
    check_option(with(correct(TokenMask, Some(2.0), Some(1.0))), "sampler_correction.min", "2.0");
    let unbounded = with(correct(TokenTruncate, None, None));
    let found = format!("{:?}", unbounded.sampler_correction.unwrap());
    check_option(unbounded, "sampler_correction", &found);
    let error = loss.evaluate_part(&rows(), 0.0).unwrap_err().to_string();
    assert_eq!(error, "step_tokens: expected a positive number, found 0");
}

#[test]
fn names_parse_back() {
    for t in LossType::ALL {
        assert_eq!(t.to_string().parse(), Ok(*t));
    }
    let error = "gspo".parse::<LossType>().unwrap_err().to_string();
    assert!(error.starts_with("loss_type: expected one of grpo bnpo dr_grpo "), "{error}");
}

#[test]
fn the_shares_of_clipped_ratios_are_those_of_the_completions() {
    // ratios 0.5 and 1, and 0.5, 1 and 1
    let (low, one) = (0.5f64.ln(), 0.0);
    let logp: [&[f64]; 2] = [&[low, one], &[low, one, one]];
    let (old, mask): ([f64; 3], [bool; 3]) = ([0.0; 3], [true; 3]);
    let row = |b: usize| PolicyRow {
        old: &old[..logp[b].len()],
        ..PolicyRow::on_policy(logp[b], &mask[..logp[b].len()], -1.0)
    };
    let loss = PolicyLoss { loss_type: LossType::Grpo, epsilon: 0.2, ..PolicyLoss::default() };
    let ratios = evaluate(&loss, &[row(0), row(1)]).metrics.clip_ratio.unwrap();
    assert_eq!((ratios.low_min, ratios.low_mean), (Some(1.0 / 3.0), 0.4));
    assert_eq!((ratios.high_max, ratios.high_mean), (Some(0.0), 0.0));
    assert_eq!(ratios.region_mean, 0.4);
}
