//! Gate: the filters of the loss keep the tokens that the sampler keeps. Values and gradients have the bits of the
//! reference, and the log-probability of a sampled token has the bits that the sampler returned.
use super::case::tensor;
use super::values::CaseRng;
use super::{Comparison, Counts, Difference, name};
use crate::math::exp;
use crate::ops::{self, LogProb, LossRows, SampleRow, Samples, Target, Weight};
use crate::testing::arbitrary;
use crate::{Device, Dtype, Result, Tensor};

const GATE: &str = "filters";

/// One random case: a column of logits, which the input of each row scales, and the filters.
struct Filtered {
    seed: u64,
    /// `[V, 1]`
    head: Vec<f32>,
    /// `[N, 1]`: powers of 2, so that equal logits stay equal.
    x: Vec<f32>,
    targets: Vec<Option<Target>>,
    temperature: f32,
    top_k: Option<usize>,
    top_p: f32,
    min_p: f32,
}

/// The logits of a head: without ties, with many, with removed tokens, or all equal.
fn head(v: usize, seed: u64, rng: &mut CaseRng) -> Vec<f32> {
    let plain = arbitrary(v, seed);
    let scale = rng.choose(&[1.0, 8.0, 40.0]);
    let mut z: Vec<f32> = match rng.below(4) {
        0 => plain.iter().map(|z| z * scale).collect(),
        1 => plain.iter().map(|z| (z * 4.0).round() * rng.choose(&[1.0, 0.5])).collect(),
        2 => plain.iter().map(|z| (z * scale * 4.0).round() / 4.0).collect(),
        _ => vec![-0.0; v],
    };
    if rng.below(3) == 0 {
        let last = rng.below(v);
        (0..v).filter(|i| i % 7 == 3 && *i != last).for_each(|i| z[i] = f32::NEG_INFINITY);
    }
    z
}

impl Filtered {
    fn new(number: u64) -> Filtered {
        let seed = number + 2601;
        let mut rng = CaseRng::new(seed);
        let v = rng.choose(&[1, 2, 10, 37, 127, 128, 129, 256, 300, 515, 1030]);
        let head = head(v, seed, &mut rng);
        let x: Vec<f32> =
            (0..5).map(|n| if n == 0 { 1.0 } else { rng.choose(&[1.0, 0.5, 2.0, 0.125]) }).collect();
        let finite: Vec<u32> = (0..v as u32).filter(|&i| head[i as usize].is_finite()).collect();
        let target = |_| {
            let id = rng.choose(&finite);
            let (weight, bonus) = (rng.choose(&[1.0, -0.75, 0.3]), rng.choose(&[0.0, 0.01]));
            (rng.below(6) > 0).then_some(Target { id, weight, bonus })
        };
        let targets = (0..5).map(target).collect();
        let temperature = rng.choose(&[1.0, 0.7, 1.3]);
        let max = head.iter().fold(f32::NEG_INFINITY, |m, &z| m.max(z)) / temperature;
        // the probability of some token of row 0, exactly
        let of_token = exp(head[rng.choose(&finite) as usize] / temperature - max);
        let top_k = (rng.below(2) == 0).then(|| 1 + rng.below(v));
        let top_p = rng.choose(&[1.0, 0.1, 0.5, 0.5, 0.9, 0.99, 1e-30]);
        let min_p = rng.choose(&[0.0, 0.0, 0.01, 0.1, 0.5, 1.0, of_token, of_token]);
        Filtered { seed, head, x, targets, temperature, top_k, top_p, min_p }
    }

    fn rows<'a>(&self, targets: &'a [Option<Target>], samples: &'a Samples) -> LossRows<'a> {
        let &Filtered { temperature, top_k, top_p, min_p, .. } = self;
        LossRows { temperature, top_k, top_p, min_p, ..LossRows::new(targets, samples) }
    }

    fn operands(&self, device: &Device) -> Result<(Tensor, Weight)> {
        let x = tensor(device, &[self.x.len(), 1], &self.x, Dtype::F32)?;
        let head = tensor(device, &[self.head.len(), 1], &self.head, Dtype::F32)?;
        Ok((x, Weight::new(&head, Dtype::F32)?))
    }

    /// Values, `dx` and `dhead`. A head of -inf has no finite `dx`; any NaN equals any NaN.
    fn computed(&self, device: &Device) -> Result<Vec<Vec<f32>>> {
        let (x, head) = self.operands(device)?;
        let samples = Samples::of_lengths([2, 3]);
        let rows = self.rows(&self.targets, &samples);
        let alone = ops::cross_entropy(&x, &head, &rows, &mut 0.0)?;
        let (mut loss, mut dhead) = (0.0, Tensor::zeros(device, &[self.head.len(), 1], Dtype::F32)?);
        let (values, dx) = ops::cross_entropy_backward(&x, &head, &rows, &mut loss, &mut dhead)?;
        let list = |values: Vec<Option<LogProb>>| -> Vec<f32> {
            let components = |v: LogProb| [v.lse, v.log_prob, v.entropy, f32::from(u8::from(v.kept))];
            values.into_iter().flatten().flat_map(components).collect()
        };
        Ok(vec![list(alone), list(values), vec![loss], dx.to_vec()?, dhead.to_vec()?])
    }

    /// The sampler's log-probabilities of the tokens it samples for each row, and those of the loss. The last value
    /// is the number of tokens that the loss removes.
    fn sampled(&self, device: &Device) -> Result<[Vec<f32>; 2]> {
        let (x, head) = self.operands(device)?;
        let logits = ops::linear(&x, &head, None, Dtype::F32)?;
        let row = |n: usize| SampleRow {
            seed: self.seed,
            id: n as u64,
            position: 0,
            temperature: self.temperature,
            top_k: self.top_k.unwrap_or(0) as u32,
            top_p: self.top_p,
            min_p: self.min_p,
            penalty: 1.0,
            seen: &[],
        };
        let rows: Vec<SampleRow<'_>> = (0..self.x.len()).map(row).collect();
        let (mut want, mut targets) = (Vec::new(), Vec::new());
        for sampled in ops::sample_rows(&logits, &rows)? {
            let sampled = sampled.expect("each row has a finite maximum");
            want.push(sampled.processed);
            targets.push(Some(Target { id: sampled.token, weight: 1.0, bonus: 0.0 }));
        }
        want.push(0.0);
        let samples = Samples::of_lengths([targets.len()]);
        let values = ops::cross_entropy(&x, &head, &self.rows(&targets, &samples), &mut 0.0)?;
        let values: Vec<LogProb> = values.into_iter().flatten().collect();
        let removed = values.iter().filter(|v| !v.kept).count() as f32;
        Ok([values.iter().map(|v| v.log_prob).chain([removed]).collect(), want])
    }
}

/// Compares a device with the reference and with its own sampler over `cases` random cases.
pub(crate) fn gate(device: &Device, cases: u64) -> Result<Counts, Difference> {
    let mut counts = Counts::default();
    for number in 0..cases {
        let case = Filtered::new(number);
        let Filtered { temperature: t, top_k, top_p, min_p, .. } = case;
        let text = format!("V {}, T {t}, {top_k:?}, {top_p}, {min_p} on {}", case.head.len(), name(device));
        let check = Comparison { gate: GATE, case: text, seed: case.seed };
        let want = case.computed(&super::reference()).map_err(|error| check.failed(&error))?;
        counts.values += check.same(case.computed(device), &want)?;
        let [got, want] = case.sampled(device).map_err(|error| check.failed(&error))?;
        counts.values += check.same(Ok(vec![got]), &[want])?;
        counts.cases += 1;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::KeptSet;
    use crate::testing::{available_gpus, emulated};
    use crate::{Error, ThreadSchedule};

    #[test]
    fn the_loss_keeps_the_tokens_that_the_sampler_keeps() {
        for device in super::super::devices(&[1, 2]) {
            let counts = gate(&device, 400).unwrap_or_else(|difference| panic!("{difference}"));
            println!("gate {GATE} on {device}: {counts}");
        }
    }

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn the_loss_of_a_gpu_keeps_the_tokens_that_its_sampler_keeps() {
        let device = emulated(ThreadSchedule::Random(5));
        let counts = gate(&device, 120).unwrap_or_else(|difference| panic!("{difference}"));
        println!("gate {GATE} on {device}: {counts}");
    }

    const TARGETS: [Option<Target>; 1] = [Some(Target { id: 0, weight: 1.0, bonus: 0.0 })];

    /// The error of a loss of one row over these logits.
    fn error_of(device: &Device, logits: &[f32], rows: &LossRows<'_>) -> Error {
        let x = tensor(device, &[1, 1], &[1.0], Dtype::F32).unwrap();
        let head = tensor(device, &[logits.len(), 1], logits, Dtype::F32).unwrap();
        let head = Weight::new(&head, Dtype::F32).unwrap();
        ops::cross_entropy(&x, &head, rows, &mut 0.0).expect_err("a wrong row or argument")
    }

    #[test]
    fn a_row_without_a_finite_maximum_or_with_a_nan_is_an_error_under_every_filter() {
        let (inf, set, samples) = (f32::INFINITY, [KeptSet::from_ids(3, &[0, 1])], Samples::of_lengths([1]));
        let rows = LossRows::new(&TARGETS, &samples);
        for device in
            super::super::devices(&[1]).into_iter().chain(available_gpus(&[ThreadSchedule::Forward]))
        {
            for logits in [[f32::NAN, 1.0, 2.0], [1.0, 2.0, f32::NAN], [1.0, 0.5, inf], [-inf, -inf, -inf]] {
                for rows in [
                    LossRows { top_k: Some(2), ..rows },
                    LossRows { top_p: 0.5, ..rows },
                    LossRows { min_p: 0.5, ..rows },
                    LossRows { kept: &set, ..rows },
                ] {
                    let error = error_of(&device, &logits, &rows);
                    assert!(
                        matches!(error, Error::NotFinite { row: 0, .. }),
                        "{logits:?} on {device}: {error}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_filter_outside_its_range_is_an_error_that_names_it() {
        let (short, other, samples) = ([None, None], [KeptSet::from_ids(3, &[0])], Samples::of_lengths([1]));
        let rows = LossRows::new(&TARGETS, &samples);
        for (rows, expected) in [
            (LossRows { top_k: Some(0), ..rows }, "a top-k of at least 1, found 0"),
            (LossRows { top_p: 0.0, ..rows }, "a top-p in (0, 1], found 0"),
            (LossRows { top_p: f32::NAN, ..rows }, "a top-p in (0, 1], found NaN"),
            (LossRows { min_p: 1.5, ..rows }, "a min-p in [0, 1], found 1.5"),
            (LossRows { kept: &short, ..rows }, "no kept sets or one entry per row, found 2 for 1 rows"),
            (
                LossRows { kept: &other, ..rows },
                "kept sets of the vocabulary of the head, found 3 for 2 logits",
            ),
        ] {
            let error = error_of(&Device::cpu(), &[1.0, 2.0], &rows).to_string();
            assert_eq!(error, format!("cross_entropy: expected {expected}"));
        }
    }

    #[cfg(feature = "faults")]
    #[test]
    fn other_comparisons_or_fewer_filters_than_the_sampler_has_are_detected() {
        use crate::faults::{Fault, with};
        for fault in [Fault::LossTopPStopsEarly, Fault::LossMinPIsStrict, Fault::LossForgetsMinP] {
            let seen = with(fault, || gate(&Device::cpu(), 400)).expect_err(&fault.to_string());
            println!("{fault}: {seen}");
        }
    }
}
