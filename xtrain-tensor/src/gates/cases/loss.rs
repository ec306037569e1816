//! Cases of log-probabilities and of the loss.
use super::{DTYPES, SAMPLES, part_of};
use crate::gates::case::{Case, join, pick, split, tensor};
use crate::gates::values::{CaseRng, Values, label};
use crate::ops::{self, KeptSet, LogProb, LossRows, LossValues, Samples, Target, Weight};
use crate::{Dtype, Tensor};

const VOCABULARIES: [usize; 12] = [1, 2, 31, 33, 127, 128, 129, 255, 257, 384, 513, 1000];

fn components(values: LogProb) -> [f32; 3] {
    [values.lse, values.log_prob, values.entropy]
}

pub(crate) fn log_prob() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, v) in VOCABULARIES.into_iter().enumerate() {
        for values in [Values::Ugly, Values::Plain, Values::Tiny] {
            let (seed, n) = (i as u64 + 301, 7);
            let mut z = values.fill(n * v, seed);
            let target = CaseRng::new(seed).ids(n, v);
            // removed tokens: every third in row 1, all except the target in row 2
            for (j, z) in z.iter_mut().enumerate() {
                let (row, token) = (j / v, j % v);
                let removed = row == 1 && token % 3 == 0 || row == 2;
                if removed && token != target[row] as usize {
                    *z = f32::NEG_INFINITY;
                }
            }
            let name = format!("{n}x{v}-{}", label(Dtype::F32, values));
            cases.push(Case::rows("log_prob", name, seed, n, move |dev, rows| {
                let z = tensor(dev, &[rows.len(), v], &pick(&z, v, rows), Dtype::F32)?;
                let values = ops::log_prob(&z, &pick(&target, 1, rows))?;
                Ok(values.into_iter().map(|v| components(v).to_vec()).collect())
            }));
        }
    }
    cases
}

/// A head, its input rows, and their targets.
struct Operands {
    c: usize,
    v: usize,
    dtype: Dtype,
    temperature: f32,
    filters: Filters,
    x: Vec<f32>,
    head: Vec<f32>,
    targets: Vec<Option<Target>>,
}

/// Top-k, top-p and min-p.
type Filters = (Option<usize>, f32, f32);

/// The filters of every case without a filter, and of the cases of some vocabularies with filters.
const NO_FILTER: Filters = (None, 1.0, 0.0);
const FILTERS: [(usize, Filters); 7] = [
    (33, (Some(7), 1.0, 0.0)),
    (129, (None, 0.9, 0.0)),
    (257, (None, 1.0, 0.1)),
    (384, (Some(90), 0.5, 0.0)),
    (513, (Some(500), 0.99, 0.01)),
    (1000, (None, 0.1, 0.5)),
    (1000, (Some(1), 0.9, 1.0)),
];

impl Operands {
    fn rows<'a>(&self, targets: &'a [Option<Target>], samples: &'a Samples) -> LossRows<'a> {
        let (top_k, top_p, min_p) = self.filters;
        LossRows { temperature: self.temperature, top_k, top_p, min_p, ..LossRows::new(targets, samples) }
    }
}

/// A row whose second token top-k keeps. Its logit times the reciprocal of the temperature is one unit in the last place
/// below the quotient. So the token is missing from the sum of top-p if only one of the two filters divides.
fn divided() -> Operands {
    Operands {
        c: 1,
        v: 3,
        dtype: Dtype::F32,
        temperature: 0.7,
        filters: (Some(2), 0.9, 0.0),
        x: vec![1.0],
        head: vec![0.0, -1.543, -9.0],
        targets: vec![Some(Target { id: 0, weight: 1.0, bonus: 0.0 })],
    }
}

/// The operands of all cases: without filters, then with filters.
fn all_operands() -> Vec<(String, u64, &'static [usize], Operands)> {
    let mut all = operands();
    all.push(("divided-logits".to_string(), 1, &[1], divided()));
    for (i, (v, filters)) in FILTERS.into_iter().enumerate() {
        let of_vocabulary = operands().into_iter().filter(|(.., o)| o.v == v && o.dtype == DTYPES[i % 2]);
        all.extend(of_vocabulary.map(|(name, seed, lengths, o)| {
            let (top_k, top_p, min_p) = filters;
            let name = format!("{name}-k{}-p{top_p}-m{min_p}", top_k.unwrap_or(0));
            (name, seed, lengths, Operands { filters, ..o })
        }));
    }
    all
}

fn operands() -> Vec<(String, u64, &'static [usize], Operands)> {
    let mut all = Vec::new();
    for (i, v) in VOCABULARIES.into_iter().enumerate() {
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            let (seed, values) = ((i * 2 + d) as u64 + 401, Values::of(i + d));
            let lengths = SAMPLES[if v > 200 { 4 } else { i % SAMPLES.len() }];
            let (n, c) = (lengths.iter().sum::<usize>(), [1, 5, 33, 8][i % 4]);
            let temperature = [1.0, 0.7, 1.3, 0.05][(i / 2) % 4];
            let mut rng = CaseRng::new(seed);
            let target = |_| {
                let (id, skip) = (rng.below(v) as u32, rng.below(4) == 0);
                let weight = rng.choose(&[1.0 / 29.0, -0.75, 0.25, 0.0, 3e-3]);
                let bonus = if i % 2 == 0 { 0.0 } else { rng.choose(&[0.01, 0.003, 0.0]) };
                (!skip).then_some(Target { id, weight, bonus })
            };
            let targets = (0..n).map(target).collect();
            let (x, head) = (values.fill(n * c, seed), values.fill(v * c, seed + 1000));
            let name =
                format!("{lengths:?}x{c}x{v}-t{temperature}-{}", label(dtype, values)).replace(' ', "");
            all.push((
                name,
                seed,
                lengths,
                Operands { c, v, dtype, temperature, filters: NO_FILTER, x, head, targets },
            ));
        }
    }
    all
}

pub(crate) fn cross_entropy() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, seed, lengths, o) in all_operands() {
        cases.push(Case::sums("cross_entropy", name, seed, lengths.len(), move |dev, parts| {
            let head = Weight::new(&tensor(dev, &[o.v, o.c], &o.head, Dtype::F32)?, o.dtype)?;
            let mut loss = 0.0;
            for part in parts {
                let (rows, samples) = part_of(lengths, part);
                let x = tensor(dev, &[rows.len(), o.c], &o.x[rows.start * o.c..rows.end * o.c], o.dtype)?;
                let targets = &o.targets[rows];
                let rows = o.rows(targets, &samples);
                ops::cross_entropy(&x, &head, &rows, &mut loss)?;
            }
            Ok(vec![vec![loss]])
        }));
    }
    for (name, seed, lengths, o) in all_operands() {
        let n = lengths.iter().sum();
        cases.push(Case::rows("cross_entropy", format!("values-{name}"), seed, n, move |dev, rows| {
            let head = Weight::new(&tensor(dev, &[o.v, o.c], &o.head, Dtype::F32)?, o.dtype)?;
            let x = tensor(dev, &[rows.len(), o.c], &pick(&o.x, o.c, rows), o.dtype)?;
            let (targets, samples) = (pick(&o.targets, 1, rows), Samples::of_lengths([rows.len()]));
            let rows = o.rows(&targets, &samples);
            let values = ops::cross_entropy(&x, &head, &rows, &mut 0.0)?;
            Ok(values.into_iter().map(|v| v.map_or(Vec::new(), |v| components(v).to_vec())).collect())
        }));
    }
    cases
}

pub(crate) fn cross_entropy_backward() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, seed, lengths, o) in all_operands() {
        cases.push(Case::sums("cross_entropy_backward", name, seed, lengths.len(), move |dev, parts| {
            let head = Weight::new(&tensor(dev, &[o.v, o.c], &o.head, Dtype::F32)?, o.dtype)?;
            let (mut loss, mut dhead) = (0.0, Tensor::zeros(dev, &[o.v, o.c], Dtype::F32)?);
            for part in parts {
                let (rows, samples) = part_of(lengths, part);
                let x = tensor(dev, &[rows.len(), o.c], &o.x[rows.start * o.c..rows.end * o.c], o.dtype)?;
                let targets = &o.targets[rows];
                let rows = o.rows(targets, &samples);
                ops::cross_entropy_backward(&x, &head, &rows, &mut loss, &mut dhead)?;
            }
            let mut out = split(&dhead, o.v)?;
            out.push(vec![loss]);
            Ok(out)
        }));
    }
    for (name, seed, lengths, o) in all_operands() {
        let n = lengths.iter().sum();
        let name = format!("rows-{name}");
        cases.push(Case::rows("cross_entropy_backward", name, seed, n, move |dev, rows| {
            let head = Weight::new(&tensor(dev, &[o.v, o.c], &o.head, Dtype::F32)?, o.dtype)?;
            let x = tensor(dev, &[rows.len(), o.c], &pick(&o.x, o.c, rows), o.dtype)?;
            let (targets, samples) = (pick(&o.targets, 1, rows), Samples::of_lengths([rows.len()]));
            let lines = o.rows(&targets, &samples);
            let mut dhead = Tensor::zeros(dev, &[o.v, o.c], Dtype::F32)?;
            let (values, dx) = ops::cross_entropy_backward(&x, &head, &lines, &mut 0.0, &mut dhead)?;
            let values = values.into_iter().map(|v| v.map_or(Vec::new(), |v| components(v).to_vec()));
            Ok(join(split(&dx, rows.len())?, values.collect()))
        }));
    }
    cases
}

pub(crate) fn cross_entropy_kept() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, seed, lengths, o) in all_operands().into_iter().filter(|(.., o)| o.filters != NO_FILTER) {
        let n = lengths.iter().sum();
        cases.push(Case::rows("cross_entropy_kept", name, seed, n, move |dev, rows| {
            let head = Weight::new(&tensor(dev, &[o.v, o.c], &o.head, Dtype::F32)?, o.dtype)?;
            let x = tensor(dev, &[rows.len(), o.c], &pick(&o.x, o.c, rows), o.dtype)?;
            let (targets, samples) = (pick(&o.targets, 1, rows), Samples::of_lengths([rows.len()]));
            let lines = o.rows(&targets, &samples);
            let (mut losses, mut lines_loss) = ([0.0; 2], 0.0);
            ops::cross_entropy(&x, &head, &lines, &mut lines_loss)?;
            let LossValues { log_probs: values, kept } =
                ops::cross_entropy_kept(&x, &head, &lines, &mut losses[0])?;
            // with the sets of every second row given, and other inputs, temperature and filters
            let given: Vec<Option<KeptSet>> =
                kept.iter().enumerate().map(|(i, set)| set.clone().filter(|_| rows[i] % 2 == 0)).collect();
            let x = tensor(dev, &[rows.len(), o.c], &negated(&pick(&o.x, o.c, rows)), o.dtype)?;
            let later = LossRows { kept: &given, temperature: 0.9, ..lines };
            let LossValues { log_probs: later_values, kept: later_kept } =
                ops::cross_entropy_kept(&x, &head, &later, &mut losses[1])?;
            let mut dhead = Tensor::zeros(dev, &[o.v, o.c], Dtype::F32)?;
            let mut again_loss = 0.0;
            let (again, dx) = ops::cross_entropy_backward(&x, &head, &later, &mut again_loss, &mut dhead)?;
            let bits = |v: &LogProb| components(*v).map(f32::to_bits);
            let same_losses = losses.map(f32::to_bits) == [lines_loss, again_loss].map(f32::to_bits);
            let same =
                same_losses && again.iter().flatten().map(bits).eq(later_values.iter().flatten().map(bits));
            let line = |i: usize| {
                let values = [values[i], later_values[i]].into_iter().flatten();
                let values = values.flat_map(|v| [v.lse, v.log_prob, v.entropy, f32::from(u8::from(v.kept))]);
                let sets = [&kept[i], &later_kept[i]].into_iter().flatten();
                let ids = sets.flat_map(|set| [vec![set.ids().len() as u32], set.ids()].concat());
                values.chain(ids.map(|id| id as f32)).chain([f32::from(u8::from(same))]).collect()
            };
            Ok(join(split(&dx, rows.len())?, (0..rows.len()).map(line).collect()))
        }));
    }
    cases
}

fn negated(x: &[f32]) -> Vec<f32> {
    x.iter().map(|x| -x).collect()
}
