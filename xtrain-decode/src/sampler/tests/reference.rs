//! The distributions are checked against a reference, against a direct implementation of docs/numerics.md, and with a
//! million samples.
use super::*;
use serde_json::Value;
use xtrain_tensor::rng::{Purpose, uniform_u64};
use xtrain_tensor::testing::ugly;

pub(super) struct Case {
    pub(super) id: String,
    pub(super) options: SampleOptions,
    pub(super) history: Vec<u32>,
    pub(super) row: Vec<f32>,
    pub(super) probs: Vec<f64>,
}

/// The reference cases that use supported filters only.
pub(super) fn cases() -> Vec<Case> {
    let tensors = include_bytes!("../../../../tests/data/sampling/tensors.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(tensors).expect("tensors");
    let json = include_str!("../../../../tests/data/sampling/cases.json");
    let json: Value = serde_json::from_str(json).expect("cases");
    let floats = |name: &str| tensors.tensor(name).expect("a tensor").data().to_vec();
    let supported = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"];
    let mut cases = Vec::new();
    for case in json["cases"].as_array().expect("a list") {
        let params = case["params"].as_object().expect("parameters");
        if params.keys().any(|key| !supported.contains(&key.as_str())) {
            continue;
        }
        let number = |key: &str| params.get(key).and_then(Value::as_f64).map(|v| v as f32);
        let id = case["id"].as_str().expect("an id").to_owned();
        let row = floats(&format!("{}.logits", case["row"].as_str().expect("a row")));
        let probs = floats(&format!("{id}.probs"));
        let row = row.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        let probs = probs.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect();
        let history = case["prior_ids"].as_array().expect("ids").iter();
        cases.push(Case {
            options: SampleOptions {
                temperature: number("temperature").unwrap_or(1.0),
                top_k: params.get("top_k").and_then(Value::as_u64).map(|k| k as usize),
                top_p: number("top_p"),
                min_p: number("min_p"),
                repetition_penalty: number("repetition_penalty"),
            },
            history: history.map(|v| v.as_u64().expect("an id") as u32).collect(),
            id,
            row,
            probs,
        });
    }
    cases
}

/// z under penalty and temperature, before any filter.
fn unfiltered(case: &Case) -> Vec<f32> {
    let options = SampleOptions { top_k: None, top_p: None, min_p: None, ..case.options };
    let mut sampler = sampler(options);
    sampler.distribution(&case.row, &case.history).expect("a distribution").logits().to_vec()
}

/// Equal logits are on both sides of the top-k cut. We keep k tokens, the reference keeps all of the equal ones.
fn tie_at_top_k(case: &Case) -> bool {
    let Some(k) = case.options.top_k.filter(|&k| k < case.row.len()) else { return false };
    let mut z = unfiltered(case);
    z.sort_by(|a, b| b.total_cmp(a));
    z[k - 1] == z[k]
}

/// The reference kept some tokens of a value and removed others. (The fixture's own flag `tie_at_cut` uses the logits
/// before the repetition penalty and misses three cases.)
fn tie_at_cut(case: &Case) -> bool {
    let z = unfiltered(case);
    let kept = |i: &usize| case.probs[*i] > 0.0;
    let lowest = (0..z.len()).filter(kept).map(|i| z[i]).fold(f32::INFINITY, f32::min);
    (0..z.len()).any(|i| !kept(&i) && z[i] == lowest)
}

#[test]
fn every_case_has_the_support_and_the_probabilities_of_the_reference() {
    let (mut exact, mut sorted, mut ties) = (0, 0, 0);
    for case in cases() {
        let mut sampler = sampler(case.options);
        let distribution = sampler.distribution(&case.row, &case.history).expect("a distribution");
        if tie_at_top_k(&case) {
            ties += 1;
            let kept = distribution.weights().iter().filter(|&&w| w > 0).count();
            assert!(kept <= case.options.top_k.expect("a top-k case"), "{}", case.id);
            continue;
        }
        let total = distribution.total() as f64;
        let mut got: Vec<f64> = distribution.weights().iter().map(|&w| w as f64 / total).collect();
        let mut want = case.probs.clone();
        if tie_at_cut(&case) {
            sorted += 1;
            got.sort_by(f64::total_cmp);
            want.sort_by(f64::total_cmp);
        } else {
            exact += 1;
        }
        // A weight is off by its exp, 1.013 * 2^-23 of it, and by the rounding of its d = z - max, 2^-24 |d| of
        // it. Of a probability p the second is at most 2^-24 / e, since |d| exp(d) <= 1 / e; the total is off by
        // the first and by 2^-24 of the mean |d|, which is at most ln V. A weight is cut to a multiple of 2^-44.
        let vocab = want.len() as f64;
        let rounding = 2f64.powi(-24) * ((-1f64).exp() + vocab.ln());
        let absolute = 2.0 * 1.013 * 2f64.powi(-23) + rounding + vocab * 2f64.powi(-44);
        let largest = want.iter().copied().fold(0.0, f64::max);
        // Each f32 division moves z by 2^-23 of it, its operand's rounding included.
        let divisions = case.options.temperature != 1.0 || case.options.repetition_penalty.is_some();
        let size = distribution.logits().iter().filter(|z| z.is_finite()).fold(0f32, |a, z| a.max(z.abs()));
        let relative = if divisions { f64::from(size) * 2f64.powi(-21) } else { 0.0 };
        for (token, (&got, &want)) in got.iter().zip(&want).enumerate() {
            // exp gives 0 below e^-87 of the largest probability
            let same_support = (got > 0.0) == (want > 0.0) || got == 0.0 && want < largest * 1.7e-38;
            assert!(same_support, "{}: token {token} has {got:e}, want {want:e}", case.id);
            let close = (got - want).abs() < absolute + relative * want;
            assert!(close, "{}: token {token} has {got:e}, want {want:e}", case.id);
        }
    }
    println!("{exact} cases token by token, {sorted} sorted, {ties} with ties at top-k's cut");
    assert!(exact >= 150 && exact + sorted + ties == 176);
}

/// Pearson's statistic over its degrees of freedom; cells that expect less than 5 are pooled.
fn chi_square(counts: &[u64], probs: &[f64]) -> (f64, f64) {
    let draws = counts.iter().sum::<u64>() as f64;
    let (mut statistic, mut cells, mut pooled) = (0.0, 0.0, (0.0, 0.0));
    for (&count, p) in counts.iter().zip(probs) {
        let (count, expected) = (count as f64, draws * p);
        if expected < 5.0 {
            pooled = (pooled.0 + count, pooled.1 + expected);
        } else {
            statistic += (count - expected).powi(2) / expected;
            cells += 1.0;
        }
    }
    if pooled.1 >= 5.0 {
        statistic += (pooled.0 - pooled.1).powi(2) / pooled.1;
        cells += 1.0;
    }
    (statistic, f64::max(cells - 1.0, 0.0))
}

/// The normal deviate of a chi-square statistic (Wilson and Hilferty).
fn deviate(statistic: f64, freedom: f64) -> f64 {
    let variance = 2.0 / (9.0 * freedom);
    ((statistic / freedom).cbrt() - (1.0 - variance)) / variance.sqrt()
}

#[test]
fn a_million_samples_follow_the_reference() {
    /// p = 1e-3, one-sided.
    const LIMIT: f64 = 3.0902;
    let cases: Vec<Case> =
        cases().into_iter().filter(|case| !tie_at_cut(case) && !tie_at_top_k(case)).step_by(4).collect();
    let per_case = 1_000_000u32.div_ceil(cases.len() as u32);
    let mut sum = (0.0, 0.0);
    for (id, case) in cases.iter().enumerate() {
        let mut sampler = sampler(case.options);
        let distribution = sampler.distribution(&case.row, &case.history).expect("a distribution");
        let mut counts = vec![0; case.row.len()];
        for position in 0..per_case {
            counts[distribution.token(uniform_u64(17, id as u64, position, Purpose::Sample)) as usize] += 1;
        }
        for (token, &count) in counts.iter().enumerate() {
            assert!(count == 0 || case.probs[token] > 0.0, "{}: removed token {token} drawn", case.id);
        }
        let (statistic, freedom) = chi_square(&counts, &case.probs);
        sum = (sum.0 + statistic, sum.1 + freedom);
    }
    println!(
        "{} draws of {} cases: {sum:?}, {:.2} sigma",
        per_case * cases.len() as u32,
        cases.len(),
        deviate(sum.0, sum.1)
    );
    assert!(deviate(sum.0, sum.1).abs() < LIMIT, "chi-square {sum:?}");
}

/// The filters as docs/numerics.md states them: a full sort, then one pass.
fn kept_by_definition(options: SampleOptions, z: &[f32], weights: &[u64]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..z.len()).collect();
    order.sort_by(|&a, &b| z[b].partial_cmp(&z[a]).expect("no NaN").then(a.cmp(&b)));
    order.truncate(options.top_k.unwrap_or(usize::MAX));
    if let Some(p) = options.top_p {
        let total: u64 = order.iter().map(|&i| weights[i]).sum();
        let limit = ((1.0 - f64::from(p)) * total as f64).trunc() as u64;
        let mut sum = 0;
        while order.len() > 1 {
            sum += weights[*order.last().expect("two left")];
            if sum > limit {
                break;
            }
            order.pop();
        }
    }
    let largest = z[order[0]];
    let likely = |i: usize| options.min_p.is_none_or(|p| xtrain_tensor::math::exp(z[i] - largest) >= p);
    let mut kept = vec![false; z.len()];
    order.into_iter().filter(|&i| likely(i)).for_each(|i| kept[i] = true);
    kept
}

#[test]
fn the_filters_keep_what_the_definition_keeps() {
    for seed in 0..400u64 {
        let n = 1 + (seed as usize * 13) % 300;
        let mut row = ugly(n, seed);
        row.iter_mut().filter(|x| x.abs() > 30.0).for_each(|x| *x = (*x % 8.0).round());
        let part = |divisor, list: [f32; 3]| Some(list[(seed / divisor % 3) as usize]).filter(|&v| v != 0.0);
        let options = SampleOptions {
            temperature: [1.0, 0.3, 2.5][(seed % 3) as usize],
            top_k: [None, Some(1 + seed as usize % 40), Some(n)][(seed / 3 % 3) as usize],
            top_p: part(9, [0.0, 0.5, 0.93]),
            min_p: part(27, [0.0, 0.02, 0.6]),
            repetition_penalty: None,
        };
        let plain = SampleOptions { temperature: options.temperature, ..SampleOptions::default() };
        let mut plain = sampler(plain);
        let whole = plain.distribution(&row, &[]).expect("a distribution");
        let want = kept_by_definition(options, whole.logits(), whole.weights());
        let mut sampler = sampler(options);
        let got = sampler.distribution(&row, &[]).expect("a distribution");
        for (i, &kept) in want.iter().enumerate() {
            let what = format!("seed {seed}, {options:?}, token {i} of {n}");
            assert_eq!(got.weights()[i], if kept { whole.weights()[i] } else { 0 }, "{what}");
            let z = if kept { whole.logits()[i] } else { f32::NEG_INFINITY };
            assert_eq!(got.logits()[i].to_bits(), z.to_bits(), "{what}");
        }
    }
}
