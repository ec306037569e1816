//! Rollouts with a clock beside them.
use std::time::Instant;

use super::CliError;
use crate::decode::{Engine, Event};
use crate::report::{Pass, Timings};

/// Runs `engine` until nothing is left to do. `each` sees the tokens of every pass; what it returns as an
/// error ends the rollout. The time that `each` takes does not count.
///
/// # Errors
/// Those of the engine and of `each`.
pub(super) fn run(
    engine: &mut Engine<'_>,
    each: &mut dyn FnMut(&[Event]) -> Result<(), CliError>,
) -> Result<Timings, CliError> {
    let mut timings = Timings::default();
    let mut waiting = engine.waiting() + engine.live();
    let mut begun = vec![false; waiting];
    while !engine.is_idle() {
        let clock = Instant::now();
        let step = engine.step()?;
        let (ms, tokens, n) = (clock.elapsed().as_secs_f64() * 1e3, step.events.len(), step.passes.max(1));
        for at in 0..n {
            // passes that the host did not look between share their time
            let pass = Pass { ms: ms / n as f64, tokens: tokens * (at + 1) / n - tokens * at / n };
            let first = waiting > 0 && at == 0;
            if first { &mut timings.prefill } else { &mut timings.decode }.push(pass);
        }
        for event in step.events {
            if let Some(first) = begun.get_mut(event.index).filter(|begun| !**begun) {
                *first = true;
                waiting -= 1;
            }
        }
        each(step.events)?;
    }
    Ok(timings)
}
