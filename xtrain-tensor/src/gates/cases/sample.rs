//! Cases of the sampler: every option alone and combined, ties at the cut-offs, removed tokens, and rows that cannot
//! be sampled.
use crate::Dtype;
use crate::gates::case::{Case, pick, tensor};
use crate::gates::values::{CaseRng, Values, label};
use crate::ops::{self, SampleFailure, SampleRow, Sampled};

const VOCABULARIES: [usize; 8] = [1, 2, 33, 127, 129, 300, 1000, 5000];

/// Temperature, top-k, top-p, min-p, penalty.
const OPTIONS: [(f32, u32, f32, f32, f32); 12] = [
    (1.0, 0, 1.0, 0.0, 1.0),
    (0.0, 0, 1.0, 0.0, 1.0),
    (0.7, 0, 1.0, 0.0, 1.0),
    (1.0, 5, 1.0, 0.0, 1.0),
    (1.0, 0, 0.9, 0.0, 1.0),
    (1.3, 0, 1.0, 0.05, 1.0),
    (1.0, 0, 1.0, 0.0, 1.7),
    (0.9, 40, 0.8, 0.02, 1.2),
    (0.0, 3, 0.5, 0.5, 0.6),
    (2.5, 1, 0.3, 0.0, 1.0),
    (0.05, 200, 0.999, 1e-4, 1.1),
    (1e-40, 2, 1e-30, 1.0, 3.0),
];

/// Rows that are all greedy: a GPU needs no weights for them.
const GREEDY: [(f32, u32, f32, f32, f32); 9] = [(0.0, 3, 0.5, 0.5, 1.0); 9];

pub(crate) fn sample_rows() -> Vec<Case> {
    let of = |(i, v)| {
        [Values::Plain, Values::Ugly, Values::Tiny]
            .into_iter()
            .flat_map(move |values| [case(i, v, values, None, &OPTIONS), case(i, v, values, None, &GREEDY)])
    };
    let mut cases: Vec<Case> = VOCABULARIES.into_iter().enumerate().flat_map(of).collect();
    // a logit of +inf is the first or the last of its row
    cases.push(case(5, 300, Values::Plain, Some(0), &OPTIONS));
    cases.push(case(6, 1000, Values::Ugly, Some(999), &OPTIONS));
    cases.push(case(6, 1000, Values::Ugly, Some(999), &GREEDY));
    cases.push(tied(5000));
    cases
}

/// The options over logits of vocabulary `v`. `infinite`: the token whose logit is +inf in every fourth row.
fn case(
    i: usize,
    v: usize,
    values: Values,
    infinite: Option<usize>,
    options: &'static [(f32, u32, f32, f32, f32)],
) -> Case {
    let (seed, n) = (i as u64 + 1501, options.len());
    let mut rng = CaseRng::new(seed);
    let mut x = values.fill(n * v, seed);
    for (at, x) in x.iter_mut().enumerate() {
        // logits of three scales, and in every third row many ties
        let size = [1.0, 8.0, 30.0][at / v % 3];
        *x = if at / v % 3 == 2 && values == Values::Plain { (*x * 4.0).round() } else { *x * size };
        if rng.below(7) == 0 {
            *x = f32::NEG_INFINITY;
        }
    }
    x[v * 5..v * 6].fill(if values == Values::Tiny { f32::NEG_INFINITY } else { -0.0 });
    x[v * 6 - 1] = if values == Values::Ugly { f32::NAN } else { x[v * 6 - 1] };
    if let Some(token) = infinite {
        x.iter_mut().skip(token).step_by(4 * v).for_each(|x| *x = f32::INFINITY);
    }
    let seen = rng.ids(n * 9, v);
    let end = infinite.map_or(String::new(), |token| format!("-inf{token}"));
    let name = format!("{n}x{v}-{}{end}", label(Dtype::F32, values));
    Case::rows("sample_rows", name, seed, n, move |device, rows| {
        let x = tensor(device, &[rows.len(), v], &pick(&x, v, rows), Dtype::F32)?;
        let row = |&r: &usize| {
            let (temperature, top_k, top_p, min_p, penalty) = options[r];
            let (id, seen) = (r as u64 + (1 << 40), &seen[9 * r..9 * r + 9]);
            let position = seed as u32 * 3 + r as u32;
            SampleRow { seed, id, position, temperature, top_k, top_p, min_p, penalty, seen }
        };
        let got = ops::sample_rows(&x, &rows.iter().map(row).collect::<Vec<_>>())?;
        Ok(got.into_iter().map(values_of).collect())
    })
}

/// Rows of vocabulary `v` with many equal logits, and the last one with equal logits only: the filters end within a tie
/// whose tokens are read by several blocks.
fn tied(v: usize) -> Case {
    let (seed, n) = (1601, OPTIONS.len());
    let mut x = Values::Plain.fill(n * v, seed);
    x.iter_mut().for_each(|x| *x = (*x * 4.0).round());
    x[(n - 1) * v..].fill(0.5);
    let options = move |r: usize| if r + 1 == n { (1.0, 0, 0.9, 0.0, 1.0) } else { OPTIONS[r] };
    Case::rows("sample_rows", format!("{n}x{v}-tied"), seed, n, move |device, rows| {
        let x = tensor(device, &[rows.len(), v], &pick(&x, v, rows), Dtype::F32)?;
        let row = |&r: &usize| {
            let (temperature, top_k, top_p, min_p, _) = options(r);
            let (id, position) = (r as u64, r as u32);
            SampleRow { seed, id, position, temperature, top_k, top_p, min_p, penalty: 1.0, seen: &[] }
        };
        let got = ops::sample_rows(&x, &rows.iter().map(row).collect::<Vec<_>>())?;
        Ok(got.into_iter().map(values_of).collect())
    })
}

/// A sampled token, or a number for the reason of the failure.
fn values_of(choice: Result<Sampled, SampleFailure>) -> Vec<f32> {
    match choice {
        Ok(Sampled { token, log_prob, processed }) => vec![token as f32, log_prob, processed],
        Err(why) => vec![-1.0 - why as u8 as f32],
    }
}
