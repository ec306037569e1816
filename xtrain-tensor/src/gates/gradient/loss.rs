//! Gradient samples of the loss.
use super::check::{Many, Sample, operand};
use super::f64::F64;
use crate::gates::values::CaseRng;
use crate::ops::{self, LossRows, Samples, Target, Weight};
use crate::reference;
use crate::{Dtype, Tensor};

/// The rows of a loss, in f64.
#[derive(Clone)]
pub(super) struct Objective {
    pub(super) c: usize,
    pub(super) targets: Vec<Option<Target>>,
    pub(super) samples: Samples,
    pub(super) temperature: f32,
}

impl Objective {
    /// Random targets below `v` for `n` rows of width `c`. Some rows have no target, some have an entropy bonus.
    pub(super) fn new(seed: u64, [n, v, c]: [usize; 3]) -> Objective {
        let mut rng = CaseRng::new(seed);
        let target = |_| {
            let target = Target {
                id: rng.below(v) as u32,
                weight: rng.choose(&[0.5, -0.75, 1.0]),
                bonus: rng.choose(&[0.0, 0.125, 0.25]),
            };
            (rng.below(4) > 0).then_some(target)
        };
        let targets = (0..n).map(target).collect();
        let first = rng.below(n + 1);
        let samples = Samples::of_lengths([first, n - first]);
        Objective { c, targets, samples, temperature: rng.choose(&[1.0, 0.75, 2.0]) }
    }

    /// The logits of `x`, divided by the temperature.
    fn rows(&self, x: &[f64], head: &[f64]) -> Many<f64> {
        let t = f64::from(self.temperature);
        let logits = reference::linear::<F64>(x, head, self.c);
        logits.chunks_exact(head.len() / self.c).map(|z| z.iter().map(|z| z / t).collect()).collect()
    }

    /// `sum w (lse - z_y) - bonus H`.
    pub(super) fn forward(&self, x: &[f64], head: &[f64]) -> f64 {
        let rows = self.rows(x, head).into_iter().zip(&self.targets);
        let loss = |(z, target): (Vec<f64>, &Option<Target>)| {
            target.map_or(0.0, |t| {
                let row = reference::log_prob(&z, t.id as usize);
                -f64::from(t.weight) * row.log_prob - f64::from(t.bonus) * row.entropy
            })
        };
        rows.map(loss).sum()
    }

    /// `(dx, dhead)` times `dy`.
    pub(super) fn backward(&self, x: &[f64], head: &[f64], dy: f64) -> [Vec<f64>; 2] {
        let v = head.len() / self.c;
        let dz = |(z, target): (Vec<f64>, &Option<Target>)| match target {
            None => vec![0.0; v],
            Some(t) => {
                let [weight, bonus, temperature] = [t.weight, t.bonus, self.temperature].map(f64::from);
                let row = reference::log_prob(&z, t.id as usize);
                reference::dlogits(&z, Some(t.id as usize), row, weight, bonus, temperature)
            }
        };
        let dz: Vec<f64> =
            self.rows(x, head).into_iter().zip(&self.targets).flat_map(dz).map(|d| d * dy).collect();
        let (mut dx, mut dhead) = (vec![0.0; x.len()], vec![0.0; head.len()]);
        reference::linear_dx::<F64>(&mut dx, &dz, head, self.c);
        reference::linear_dw::<F64>(&mut dhead, &dz, x, self.c, &self.samples);
        [dx, dhead]
    }
}

/// Inputs: `x`, head.
pub(crate) fn cross_entropy(seed: u64) -> Sample {
    let mut rng = CaseRng::new(seed);
    let (n, v, c) = (
        rng.choose(&[1, 3, 5, 7]),
        rng.choose(&[2, 31, 33, 63, 65, 127, 129, 257]),
        rng.choose(&[1, 3, 5, 31]),
    );
    let objective = Objective::new(seed, [n, v, c]);
    let (a, b, o) = (objective.clone(), objective.clone(), objective);
    Sample {
        name: format!("cross_entropy/{n}x{c}x{v}"),
        inputs: vec![operand(n * c, seed + 2), operand(v * c, seed + 3)],
        forward: Box::new(move |x| vec![a.forward(&x[0], &x[1])]),
        backward: Box::new(move |x, dy| b.backward(&x[0], &x[1], dy[0]).into()),
        shipped: Some(Box::new(move |device, dtype, x, dy| {
            let xs = Tensor::new(device, &[n, c], x[0].clone())?.cast(dtype)?;
            let head = Weight::new(&Tensor::new(device, &[v, c], x[1].clone())?, dtype)?;
            let rows = LossRows { temperature: o.temperature, ..LossRows::new(&o.targets, &o.samples) };
            let (mut loss, mut again) = (0.0, 0.0);
            let mut dhead = Tensor::zeros(device, &[v, c], Dtype::F32)?;
            let (values, dx) = ops::cross_entropy_backward(&xs, &head, &rows, &mut loss, &mut dhead)?;
            assert_eq!(ops::cross_entropy(&xs, &head, &rows, &mut again)?, values);
            assert_eq!(again.to_bits(), loss.to_bits());
            let bonus = |(t, v): (&Option<Target>, &Option<ops::LogProb>)| match (t, v) {
                (Some(t), Some(v)) => t.bonus * v.entropy,
                _ => 0.0,
            };
            let y = loss - o.targets.iter().zip(&values).map(bonus).sum::<f32>();
            let times = |x: &Tensor| -> crate::Result<Vec<f32>> {
                Ok(x.data::<f32>()?.iter().map(|x| x * dy[0]).collect())
            };
            Ok((vec![y], vec![times(&dx)?, times(&dhead)?]))
        })),
    }
}
