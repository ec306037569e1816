//! The filters of the sampler: the tokens that they keep, with their integer weights, and the tokens that are drawn.
use xtrain::decode::SampleOptions;
use xtrain::decode::sampler::{Address, Sampler, TokenMask};

use crate::{Record, list, row};

const ROWS: [&[f32]; 4] = [
    &[2.0, 1.0, 1.0, 0.5, -0.0, 0.0, -1.0, f32::NEG_INFINITY, 3.0, 3.0, -5.0, -40.0],
    &[0.0; 7],
    &[-3.5],
    &[-1e30, 1e30, 0.25, f32::MIN_POSITIVE, -2.5, 0.25],
];

/// Ids that occur twice, with positive, zero, negative and infinite logits.
const HISTORY: [u32; 7] = [8, 8, 2, 4, 6, 7, 10];

fn options() -> Vec<SampleOptions> {
    let of = |temperature: f32, top_k, top_p, min_p, repetition_penalty| SampleOptions {
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
    };
    let mut all = vec![SampleOptions::default(), SampleOptions::greedy()];
    all.extend([0.5, 2.0, 1e-30].map(|temperature| of(temperature, None, None, None, None)));
    all.extend([1, 2, 3, 4, 6, 12, 100].map(|k| of(1.0, Some(k), None, None, None)));
    all.extend([1e-9, 0.3, 0.5, 0.7, 0.9, 0.999, 1.0].map(|p| of(1.0, None, Some(p), None, None)));
    all.extend([0.0, 0.1, 0.36787945, 0.3678795, 1.0].map(|p| of(1.0, None, None, Some(p), None)));
    all.extend([0.5, 1.0, 1.5].map(|penalty| of(1.0, None, None, None, Some(penalty))));
    all.extend([
        of(0.0, None, None, None, Some(4.0)),
        of(0.7, Some(5), Some(0.8), None, None),
        of(1.3, Some(4), Some(0.9), Some(0.2), Some(1.2)),
        of(1.3, None, Some(0.9), Some(0.2), None),
    ]);
    all
}

fn title(options: &SampleOptions) -> String {
    let SampleOptions { temperature, top_k, top_p, min_p, repetition_penalty } = options;
    let mut parts = vec![format!("t={temperature:?}")];
    parts.extend(top_k.map(|k| format!("top_k={k}")));
    parts.extend(top_p.map(|p| format!("top_p={p:?}")));
    parts.extend(min_p.map(|p| format!("min_p={p:?}")));
    parts.extend(repetition_penalty.map(|p| format!("penalty={p:?}")));
    parts.join(" ")
}

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    for (number, logits) in ROWS.iter().enumerate() {
        out.section(format!("row {number}: {}", list(*logits)));
        for options in options() {
            out.line(row(title(&options), 46, of_row(options, logits)));
        }
    }
    masked(&mut out);
    out
}

/// The kept tokens and their weights; eight tokens of consecutive positions, with the log-probabilities of the first.
fn of_row(options: SampleOptions, logits: &[f32]) -> String {
    let history: Vec<u32> = HISTORY.into_iter().filter(|&id| (id as usize) < logits.len()).collect();
    let mut sampler = Sampler::new(options).unwrap();
    let kept = match sampler.distribution(logits, &history) {
        Err(error) => return error.to_string(),
        Ok(distribution) => {
            let weights = distribution.weights().iter().enumerate().filter(|(_, weight)| **weight > 0);
            weights.map(|(id, weight)| format!("{id}:{weight:x}")).collect::<Vec<_>>().join(" ")
        }
    };
    let choice = |position| sampler.pick(logits, &history, Address { seed: 7, id: 3, position }).unwrap();
    let choices: Vec<_> = (0..8).map(choice).collect();
    let (logprob, processed) = (choices[0].logprob, choices[0].processed_logprob);
    format!("{kept} | {} | {logprob:?} {processed:?}", list(choices.iter().map(|choice| choice.token)))
}

/// Choices among allowed tokens only, and refusals.
fn masked(out: &mut Record) {
    out.section("row 0, of which tokens are allowed");
    for ids in [&[0, 3, 11][..], &[7, 6], &[7], &[], &[8, 9, 12, 40]] {
        let mut mask = TokenMask::new(ROWS[0].len());
        ids.iter().for_each(|&id| mask.allow(id));
        for options in [
            SampleOptions::default(),
            SampleOptions::greedy(),
            SampleOptions { top_k: Some(1), ..SampleOptions::default() },
            SampleOptions { temperature: 2.0, top_p: Some(0.5), ..SampleOptions::default() },
        ] {
            let mut sampler = Sampler::new(options).unwrap();
            let address = |position| Address { seed: 1, id: u64::MAX, position };
            let choices: Result<Vec<_>, _> = (0..6)
                .map(|position| sampler.pick_allowed(ROWS[0], &[], Some(&mask), address(position)))
                .collect();
            let text = match choices {
                Ok(all) => format!("{} | {:?}", list(all.iter().map(|c| c.token)), all[0].processed_logprob),
                Err(error) => error.to_string(),
            };
            out.line(row(format!("{ids:?} {}", title(&options)), 46, text));
        }
    }
    out.section("refusals");
    let bad = [
        SampleOptions { temperature: -1.0, ..SampleOptions::default() },
        SampleOptions { temperature: 1e-31, ..SampleOptions::default() },
        SampleOptions { top_k: Some(0), ..SampleOptions::default() },
        SampleOptions { top_p: Some(0.0), ..SampleOptions::default() },
        SampleOptions { min_p: Some(1.01), ..SampleOptions::default() },
        SampleOptions { repetition_penalty: Some(0.0), ..SampleOptions::default() },
    ];
    for options in bad {
        out.line(row(title(&options), 46, Sampler::new(options).unwrap_err().to_string()));
    }
    let mut sampler = Sampler::new(SampleOptions::default()).unwrap();
    let address = Address { seed: 0, id: 0, position: 0 };
    for (logits, history) in
        [(&[][..], &[][..]), (&[1.0, f32::NAN], &[]), (&[f32::NEG_INFINITY; 2], &[]), (&[1.0, 2.0], &[1, 2])]
    {
        let error = sampler.pick(logits, history, address).unwrap_err();
        out.line(row(format!("{logits:?} after {history:?}"), 46, error.to_string()));
    }
}
