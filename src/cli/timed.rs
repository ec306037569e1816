//! Rollouts with timing.
use std::time::Instant;

use super::exit::CliError;
use crate::decode::{Engine, Event};
use crate::report::{Pass, Timings};

/// Receives the tokens of a step. Returns the indices of the sequences to stop.
pub(super) type OnEvents<'a> = &'a mut dyn FnMut(&[Event]) -> Result<Vec<usize>, CliError>;

/// Runs `engine` until it is idle and times every forward pass. The time of `on_events` does not count, and its error
/// ends the rollout. Also returns the largest number of bytes of the KV cache between two steps.
pub(super) fn run(engine: &mut Engine<'_>, on_events: OnEvents<'_>) -> Result<(Timings, usize), CliError> {
    let (mut timings, mut cache_bytes) = (Timings::default(), 0);
    let mut waiting = engine.waiting() + engine.live();
    let mut has_token = vec![false; waiting];
    while !engine.is_idle() {
        let clock = Instant::now();
        let step = engine.step()?;
        let (ms, tokens, n) = (clock.elapsed().as_secs_f64() * 1e3, step.events.len(), step.passes.max(1));
        for at in 0..n {
            // Passes without a synchronization between them share their time equally.
            let pass = Pass { ms: ms / n as f64, tokens: tokens * (at + 1) / n - tokens * at / n };
            let first = waiting > 0 && at == 0;
            if first { &mut timings.prefill } else { &mut timings.decode }.push(pass);
        }
        for event in step.events {
            if let Some(first) = has_token.get_mut(event.index).filter(|has_token| !**has_token) {
                *first = true;
                waiting -= 1;
            }
        }
        for index in on_events(step.events)? {
            engine.stop(index);
        }
        cache_bytes = cache_bytes.max(engine.cache().map_or(0, |cache| cache.bytes()));
    }
    Ok((timings, cache_bytes))
}
