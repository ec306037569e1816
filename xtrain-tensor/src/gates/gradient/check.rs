//! One sample of a gradient check, and the two checks.
use crate::gates::Difference;
use crate::gates::values::{CaseRng, Values};
use crate::{Device, Dtype, Result};

/// Values of all operands, or of their gradients.
pub(super) type Many<T> = Vec<Vec<T>>;

/// Computes `(y, gradients of the inputs)` with the public operations, from the inputs and the gradient of `y`.
pub(super) type Shipped = dyn Fn(&Device, Dtype, &[Vec<f32>], &[f32]) -> Result<(Vec<f32>, Many<f32>)>;

/// Computes `y` from the inputs with the reference.
pub(super) type Forward = dyn Fn(&[Vec<f64>]) -> Vec<f64>;

/// Computes the gradients of the inputs from the inputs and the gradient of `y`, with the reference.
pub(super) type Backward = dyn Fn(&[Vec<f64>], &[f64]) -> Many<f64>;

/// A name and a function that creates a sample from a seed.
pub(super) type Maker = (&'static str, fn(u64) -> Sample);

/// An operation on operands of random shapes.
pub(crate) struct Sample {
    pub(super) name: String,
    pub(super) inputs: Many<f64>,
    pub(super) forward: Box<Forward>,
    pub(super) backward: Box<Backward>,
    /// The public operations. `None`: a composition of operations.
    pub(super) shipped: Option<Box<Shipped>>,
}

/// `n` values with magnitudes in [0.2, 1), where no operation curves too sharply for a finite difference.
pub(super) fn operand(n: usize, seed: u64) -> Vec<f64> {
    let away = |x: f32| f64::from(0.2f32.copysign(x) + 0.8 * x);
    Values::Plain.fill(n, seed).into_iter().map(away).collect()
}

/// Compares the gradient with finite differences of `sum y dy`, along single coordinates and along one direction of
/// all inputs. Returns the number of compared derivatives.
pub(super) fn finite_differences(sample: &Sample, seed: u64) -> Result<usize, Difference> {
    const EPS: f64 = 1e-6;
    const COORDINATES: usize = 24;
    let inputs = &sample.inputs;
    let dy = operand((sample.forward)(inputs).len(), seed + 1);
    let gradient = (sample.backward)(inputs, &dy);
    let value = |x: &[Vec<f64>]| (sample.forward)(x).iter().zip(&dy).map(|(y, dy)| y * dy).sum::<f64>();
    let close = |at: (usize, usize), got: f64, want: f64| {
        if (got - want).abs() <= 1e-5 + 1e-3 * want.abs() {
            return Ok(());
        }
        let case = format!("{} input {}", sample.name, at.0);
        let (got, want) = (format!("{got:e}"), format!("{want:e}"));
        Err(Difference { gate: "finite differences", case, seed, row: at.1, got, want })
    };
    let mut compared = 0;
    for (i, input) in inputs.iter().enumerate() {
        let along = CaseRng::new(seed + i as u64).shuffled(input.len());
        for at in along.into_iter().take(COORDINATES) {
            let moved = |by: f64| {
                let mut x = inputs.clone();
                x[i][at] += by;
                value(&x)
            };
            close((i, at), gradient[i][at], (moved(EPS) - moved(-EPS)) / (2.0 * EPS))?;
            compared += 1;
        }
    }
    let direction: Many<f64> = inputs.iter().zip(seed..).map(|(x, s)| operand(x.len(), s + 50)).collect();
    let norm = direction.iter().flatten().map(|u| u * u).sum::<f64>().sqrt();
    let moved = |by: f64| {
        let step = |(x, u): (&Vec<f64>, &Vec<f64>)| x.iter().zip(u).map(|(x, u)| x + by * u / norm).collect();
        value(&inputs.iter().zip(&direction).map(step).collect::<Many<f64>>())
    };
    let along = gradient.iter().flatten().zip(direction.iter().flatten()).map(|(g, u)| g * u / norm).sum();
    close((inputs.len(), 0), along, (moved(EPS) - moved(-EPS)) / (2.0 * EPS))?;
    Ok(compared + 1)
}

/// Compares the operation in f32 and bf16 with f64: every output and gradient, relative to its largest value or to
/// 0.1, whichever is larger. Inputs are exact in the dtype. Returns the number of compared values.
///
/// The tolerances are in units of the dtype's rounding u, half an ulp of 1 (2^-24; bf16: 2^-8). A value is the result
/// of at most a few dozen dependent roundings, and cancellation may leave their errors in a result that is a few
/// times smaller than its terms. 1e-5 is 168 u and 2e-2 is 5 u (bf16 rounds only the operands of products; their sums
/// are f32). The largest error over all samples was 2.3e-6 = 39 u and 9.3e-3 = 2.4 u. A wrong term would be off by
/// 0.2 or more, because operands have at least that size.
pub(super) fn against_f64(sample: &Sample, device: &Device, seed: u64) -> Result<usize, Difference> {
    let Some(shipped) = &sample.shipped else { return Ok(0) };
    let mut compared = 0;
    for (dtype, tolerance) in [(Dtype::F32, 1e-5), (Dtype::BF16, 2e-2)] {
        let exact = |x: &[f64]| -> Vec<f32> {
            let round = |&x: &f64| match dtype {
                Dtype::BF16 => crate::round_bf16(x as f32),
                _ => x as f32,
            };
            x.iter().map(round).collect()
        };
        let inputs: Many<f32> = sample.inputs.iter().map(|x| exact(x)).collect();
        let wide: Many<f64> = inputs.iter().map(|x| x.iter().map(|&x| x.into()).collect()).collect();
        let want = (sample.forward)(&wide);
        let dy = exact(&operand(want.len(), seed + 1));
        let dy_wide: Vec<f64> = dy.iter().map(|&x| x.into()).collect();
        let case = format!("{} {dtype}", sample.name);
        let differ = |row, got, want| Difference { gate: "f64", case: case.clone(), seed, row, got, want };
        let (y, gradients) = shipped(device, dtype, &inputs, &dy)
            .map_err(|error| differ(0, error.to_string(), "a result".into()))?;
        let wanted = std::iter::once(want).chain((sample.backward)(&wide, &dy_wide));
        for (i, (got, want)) in std::iter::once(y).chain(gradients).zip(wanted).enumerate() {
            let largest = want.iter().fold(0.1, |m: f64, x| m.max(x.abs()));
            let far = |(got, want): (&f32, &f64)| (f64::from(*got) - want).abs() > tolerance * largest;
            if got.len() != want.len() {
                return Err(differ(i, format!("{} values", got.len()), format!("{} values", want.len())));
            }
            if let Some(at) = got.iter().zip(&want).position(far) {
                return Err(differ(i, format!("{:e} at {at}", got[at]), format!("{:e}", want[at])));
            }
            compared += got.len();
        }
    }
    Ok(compared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::gradient::graph;
    use crate::gates::table::{Gradient, TABLE};

    const SAMPLES: u64 = 28;

    fn makers() -> Vec<Maker> {
        let of_table = TABLE.iter().filter_map(|entry| match entry.gradient {
            Gradient::Checked(make) => Some((entry.name, make)),
            _ => None,
        });
        of_table.chain(graph::ALL).collect()
    }

    #[test]
    fn every_gradient_matches_finite_differences_alone_and_in_compositions() {
        let (mut samples, mut compared) = (0, 0);
        for (name, make) in makers() {
            let start = std::time::Instant::now();
            for seed in (0..SAMPLES).map(|i| 10_000 + i * 100) {
                compared += finite_differences(&make(seed), seed).unwrap_or_else(|d| panic!("{d}"));
                samples += 1;
            }
            println!("{name:24} {:?}", start.elapsed());
        }
        println!("gate finite differences: {samples} samples, {compared} derivatives");
        assert!(samples >= 300 && compared >= 10_000, "{samples} samples, {compared} derivatives");
    }

    #[test]
    fn f32_and_bf16_operations_are_close_to_the_reference_in_f64() {
        let (mut samples, mut compared) = (0, 0);
        for (_, make) in makers() {
            for seed in (0..SAMPLES).map(|i| 20_000 + i * 100) {
                let sample = make(seed);
                let n = against_f64(&sample, &Device::cpu(), seed).unwrap_or_else(|d| panic!("{d}"));
                samples += usize::from(n > 0);
                compared += n;
            }
        }
        println!("gate f64: {samples} samples, {compared} values");
        assert!(samples >= 250, "{samples} samples");
    }

    #[test]
    fn a_wrong_gradient_is_found() {
        for (name, make) in makers() {
            let mut sample = make(10_100);
            let backward = sample.backward;
            sample.backward = Box::new(move |x, dy| {
                let mut gradient = backward(x, dy);
                let last =
                    gradient.last_mut().and_then(|g| g.iter_mut().max_by(|a, b| a.abs().total_cmp(&b.abs())));
                *last.expect("a gradient") *= 1.5;
                gradient
            });
            let seen = finite_differences(&sample, 10_100);
            assert!(seen.is_err(), "{name}: {seen:?}");
        }
    }

    #[cfg(feature = "faults")]
    #[test]
    fn a_key_without_the_gradient_of_its_last_row_is_found() {
        use crate::faults::{Fault, with};
        let (_, make) =
            makers().into_iter().find(|(name, _)| *name == "attention").expect("it is in the table");
        let over_all = || (0..SAMPLES).try_for_each(|i| finite_differences(&make(i), i).map(drop));
        with(Fault::LastRowOfWindowWithoutGradient, over_all).expect_err("a fault");
        over_all().expect("the fault is off");
    }
}
