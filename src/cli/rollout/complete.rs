//! The loop over the steps of an engine.
use std::path::Path;
use std::time::Instant;

use super::args::RolloutArgs;
use super::requests::{Prioritized, submit};
use crate::cli::CliError;
use crate::cli::completion_writer::{Completed, CompletionWriter};
use crate::cli::interrupt::Interrupt;
use crate::cli::kept_completions::KeptCompletions;
use crate::cli::loaded::Loaded;
use crate::cli::memory_check::{Models, require_cache_in};
use crate::decode::{Engine, TextStops};
use crate::report::{Progress, units};
use crate::tensor::faults::{self, Fault};

/// What an engine has to complete.
pub(super) struct Work<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) requests: Vec<Prioritized>,
    /// The texts of the completions. `None`: the model has no tokenizer.
    pub(super) stops: Option<TextStops<'a>>,
    /// The completions of an interrupted command. They are written after the comparison of those of the first prompt, so
    /// that the completions of two models are never in one file.
    pub(super) kept: &'a mut KeptCompletions,
}

/// Runs the engine until all completions are written or a signal arrives.
pub(super) fn complete(
    args: &RolloutArgs,
    work: Work<'_>,
    interrupt: &Interrupt,
    writer: &mut CompletionWriter<'_>,
) -> Result<(), CliError> {
    let Work { loaded, mut requests, mut stops, kept } = work;
    let (cfg, g) = (&args.generation.cache.engine().kv.limits(loaded.model.config()), args.n.get());
    let total = requests.len() * g;
    if faults::on(Fault::StopTextsInOrderOfFile) {
        set_stops(&mut stops, &requests, g);
    }
    requests.retain(|of| kept.is_due(of.group));
    requests.sort_by_key(|of| !kept.is_compared(of.group));
    if !faults::on(Fault::StopTextsInOrderOfFile) {
        set_stops(&mut stops, &requests, g);
    }
    let groups: Vec<usize> = requests.iter().map(|of| of.group).collect();
    let longest = requests.iter().map(|of| of.request.required_len(cfg)).max();
    let options = args.engine(longest.unwrap_or(0), requests.len() * g)?;
    options.check(loaded.model.config())?;
    let draft = args.generation.open_draft(loaded)?;
    let memory = args.scheduler.offload.memory(loaded.model.device())?;
    require_cache_in(
        &memory,
        Models { model: &loaded.model, draft: draft.as_ref().map(|draft| &draft.model) },
        &options,
        "reduce --max-batch-size, --max-new or the length of the prompts",
    )?;
    let mut engine = Engine::with_memory(&loaded.model, options, memory)?;
    draft.as_ref().map_or(Ok(()), |draft| engine.draft_with(&draft.model))?;
    args.scheduler.offload.set_store(&mut engine)?;
    let prefix = args.generation.prefix.load(loaded, &mut engine)?;
    let prints = args.out == Path::new("-");
    let new_progress = if prints { Progress::beside_results } else { Progress::new };
    let mut progress = new_progress("rollout", "completion", total as u64, kept.len() as u64);
    if kept.len() > 0 {
        progress.line(&format!("kept {} of {total} completions", kept.len()));
    }
    if let Some(prefix) = prefix {
        progress.line(&prefix.of_prompts(requests.iter().map(|of| &*of.request.prompt)));
    }
    let compared = requests.iter().take_while(|of| kept.is_compared(of.group)).count();
    let mut others = Some(requests.split_off(compared));
    submit(&mut engine, requests, g)?;
    let (clock, mut tokens, mut done) = (Instant::now(), 0, kept.len() as u64);
    loop {
        if engine.is_idle() {
            let Some(others) = others.take() else { break };
            writer.keep(kept.take())?;
            submit(&mut engine, others, g)?;
            continue;
        }
        if let Some(exit) = interrupt.requested() {
            let message = format_args!("stopped by a signal after {done} of {total} completions");
            return Err(CliError::new(exit, message));
        }
        let stepped = engine.step().map(drop);
        tokens += engine.events().len();
        if let Some(stops) = &mut stops {
            engine.stop_at(stops);
        }
        let lost = stepped.is_err() && faults::on(Fault::CompletionsOfFailedStepLost);
        for mut completion in engine.take_finished().into_iter().filter(|_| !lost) {
            let text = stops.as_mut().map(|stops| stops.finish(&mut completion));
            let (group, sample) = (groups[completion.index / g], completion.index % g);
            if !faults::on(Fault::ResumedIndexNotMapped) {
                completion.index = group * g + sample;
            }
            let completed = Completed { completion, text };
            if kept.is_compared(group) {
                kept.compare((group, sample), &writer.line(&completed))?;
                continue;
            }
            done += 1;
            writer.push(completed)?;
        }
        // after the completions that ended in the same step
        stepped?;
        let rate = tokens as f64 / clock.elapsed().as_secs_f64();
        progress.at(done, &units::rate(rate, "tok"));
    }
    let (cached, computed) = (engine.counters().prefix_cache_hits, engine.counters().prefill_rows);
    if cached > 0 {
        progress.line(&format!("prefix cache: {cached} tokens reused, {computed} prompt tokens computed"));
    }
    if let Some(preemptions) = args.scheduler.offload.report(&engine) {
        progress.line(&preemptions);
    }
    if let Some(speculation) = args.generation.speculation.report(engine.counters()) {
        progress.line(&speculation.text());
    }
    progress.finish();
    args.scheduler.offload.warn(&engine);
    Ok(())
}

/// Sets the stop texts of the prompts that have their own. The engine numbers the `g` completions of each request in the
/// order of `requests`.
fn set_stops(stops: &mut Option<TextStops<'_>>, requests: &[Prioritized], g: usize) {
    let Some(stops) = stops else { return };
    for (at, of) in requests.iter().enumerate() {
        if let Some(texts) = &of.stop {
            stops.set_stops(at * g..(at + 1) * g, texts.clone());
        }
    }
}
