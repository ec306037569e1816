//! The gate of learning rate schedules: after the warm-up, every schedule starts at its peak, does not rise, and ends
//! at its minimum, also if the decay is longer than the steps after the warm-up.
use xtrain::model::{Decay, Schedule};

/// The peak. It and the minima are powers of two, so that the rates at both ends are exact.
const PEAK: f64 = 1.0;

/// Checks one schedule. Returns the number of its steps after the warm-up.
fn check(s: &Schedule) -> Result<usize, String> {
    let rates: Vec<f64> = (s.warmup_steps..=s.steps).map(|step| s.rate(step)).collect();
    let wrong = |what: String| Err(format!("gate schedules, seed 0: {s:?}: {what}"));
    if rates[0] != PEAK {
        return wrong(format!("expected the rate {PEAK} after the warm-up, found {}", rates[0]));
    }
    if let Some(at) = rates.windows(2).position(|pair| pair[1] > pair[0]) {
        return wrong(format!("the rate rises after step {}", s.warmup_steps + at as u64));
    }
    let (end, last) = (if s.decay == Decay::Constant { PEAK } else { s.min_lr }, rates[rates.len() - 1]);
    if last != end {
        return wrong(format!("expected the rate {end} after the last step, found {last}"));
    }
    Ok(rates.len())
}

/// Checks every decay with warm-ups and decays of several lengths. Returns the number of rates.
pub(crate) fn over() -> Result<usize, String> {
    let mut checked = 0;
    for decay in [Decay::Constant, Decay::Linear, Decay::Cosine, Decay::Wsd, Decay::WsdCosine, Decay::WsdSqrt]
    {
        for (warmup_steps, decay_steps, min_lr) in [0, 1, 7, 19]
            .into_iter()
            .flat_map(|w| [1, 6, 13, 20, 30].map(|d| (w, d, 0.25)))
            .chain([(7, 15, 0.0)])
        {
            let s = Schedule {
                decay,
                warmup_start_lr: 0.125,
                lr: PEAK,
                min_lr,
                warmup_steps,
                steps: 20,
                decay_steps,
            };
            checked += check(&s)?;
        }
    }
    Ok(checked)
}

#[test]
fn every_schedule_starts_at_its_peak_does_not_rise_and_ends_at_its_minimum() {
    let checked = over().unwrap_or_else(|error| panic!("{error}"));
    println!("schedules: {checked} rates");
}
