//! `xtrain bench trace`.
use std::time::Instant;

use serde::Serialize;

use super::arrivals::{Arrival, TraceSpec};
use super::bench_model::{self, BenchModel, random_tokens};
use super::latency::Latency;
use super::trace_args::TraceArgs;
use crate::cli::memory_check::{Models, require_cache_in};
use crate::cli::speculation::SpeculateArg;
use crate::cli::{CliError, Exit, out};
use crate::decode::{Counters, Engine, EngineOptions, Event, KvMemory, Request};
use crate::report::{Table, units};

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    model: BenchModel,
    trace: TraceSpec,
    kv: String,
    /// The directory or file of the draft model. `None`: there is none.
    draft: Option<String>,
    speculate: SpeculateArg,
    max_batch_size: usize,
    max_batched_tokens: Option<usize>,
    kv_capacity: Option<usize>,
    watermark: Option<usize>,
    ageing: usize,
    /// The time of all steps and of the waits for the next request.
    total_ms: f64,
    tokens_per_second: f64,
    requests_per_second: f64,
    limits: Limits,
    /// Requests per second that met both limits.
    goodput: f64,
    ttft_ms: Option<Latency>,
    /// Of the requests with priority 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft_ms_high_priority: Option<Latency>,
    inter_token_ms: Option<Latency>,
    preemptions: u64,
    /// Tokens of preempted requests that moved to the offload store, and that returned.
    offloaded_tokens: u64,
    restored_tokens: u64,
    drafted_tokens: u64,
    accepted_tokens: u64,
}

/// What counts for the goodput.
#[derive(Debug, Clone, Copy, Serialize)]
struct Limits {
    ttft_ms: f64,
    inter_token_ms: f64,
}

/// The times of one request, in milliseconds.
#[derive(Debug, Clone, Default)]
struct Times {
    /// From its arrival to its first token.
    first: Option<f64>,
    /// The time of its last token.
    last: f64,
    gaps: Vec<f64>,
}

impl Times {
    /// Takes a token at the time `now`.
    fn token(&mut self, arrival: &Arrival, now: f64) {
        match self.first {
            None => self.first = Some(now - arrival.at_ms),
            Some(_) => self.gaps.push(now - self.last),
        }
        self.last = now;
    }

    fn meets(&self, limits: Limits) -> bool {
        let worst = self.gaps.iter().copied().fold(0.0, f64::max);
        self.first.is_some_and(|first| first <= limits.ttft_ms) && worst <= limits.inter_token_ms
    }
}

pub(super) fn run(args: &TraceArgs) -> Result<(), CliError> {
    args.check()?;
    // random weights get the context that the trace needs
    let needed = args.spec(usize::MAX).longest();
    let (model, description) = bench_model::open(args.model.as_deref(), &args.shared, needed)?;
    let context = args.kv().max_positions(model.config());
    let spec = args.spec(context);
    let longest = spec.longest();
    if longest > context {
        let message =
            format!("a request can have {longest} tokens, expected at most {context}, the model's context");
        return Err(CliError::new(Exit::Usage, message).hint("reduce --prompt-len or --max-new"));
    }
    let options = args.options(longest)?;
    let (tokenizer, common) = (description.tokenizer.as_ref(), &args.shared.common);
    let draft = args.speculation.open_draft(&model, tokenizer, common)?;
    let draft = draft.as_ref().map(|draft| &draft.model);
    let hint = "reduce --max-batch-size, --prompt-len or --max-new, or use --kv-capacity";
    let memory = args.scheduler.offload.memory(model.device())?;
    let models = Models { model: &model, draft };
    require_cache_in(&memory, models, &options, hint)?;
    warm_up(models, options)?;
    let (times, total_ms, counters) = replay(models, (options, memory), args, spec)?;
    let report = report(args, (description, spec), (&times, total_ms, counters), options);
    if args.shared.json { out::print_json(&report) } else { out::print(report.text()) }
}

/// Runs one request before the clock starts: the first pass of a model packs its weights.
fn warm_up(Models { model, draft }: Models<'_>, options: EngineOptions) -> Result<(), CliError> {
    let max_new = options.room(model.config()).positions.min(5) - 1;
    let short = EngineOptions { max_batch: 1, max_seq_len: Some(max_new + 1), kv_capacity: None, ..options };
    let mut engine = Engine::new(model, short)?;
    draft.map_or(Ok(()), |draft| engine.draft_with(draft))?;
    engine.submit(Request::greedy(&[0], max_new))?;
    engine.run()?;
    Ok(())
}

/// Runs the requests. The clock is the time of the steps; where nothing runs, it moves on to the next arrival.
fn replay(
    Models { model, draft }: Models<'_>,
    (options, memory): (EngineOptions, KvMemory),
    args: &TraceArgs,
    spec: TraceSpec,
) -> Result<(Vec<Times>, f64, Counters), CliError> {
    let arrivals = spec.arrivals();
    let mut engine = Engine::with_memory(model, options, memory)?;
    args.scheduler.offload.set_store(&mut engine)?;
    draft.map_or(Ok(()), |draft| engine.draft_with(draft))?;
    let (mut times, mut now, mut next) = (vec![Times::default(); arrivals.len()], 0.0, 0);
    while next < arrivals.len() || !engine.is_idle() {
        if engine.is_idle() {
            now = f64::max(now, arrivals[next].at_ms);
        }
        while let Some(arrival) = arrivals.get(next).filter(|arrival| arrival.at_ms <= now) {
            let prompt = random_tokens(spec.seed, next as u64, arrival.prompt_len, model.config().vocab);
            let request = Request::sampled(&prompt, arrival.max_new, 1.0, spec.seed);
            engine.submit_prioritized(Request { id: next as u64, ..request }, 1, arrival.priority)?;
            next += 1;
        }
        let clock = Instant::now();
        let events: Vec<Event> = engine.step()?.events.to_vec();
        now += clock.elapsed().as_secs_f64() * 1e3;
        events.iter().for_each(|event| times[event.index].token(&arrivals[event.index], now));
        engine.take_finished();
    }
    args.scheduler.offload.warn(&engine);
    Ok((times, now, engine.counters()))
}

fn report(
    args: &TraceArgs,
    (model, spec): (BenchModel, TraceSpec),
    (times, total_ms, counters): (&[Times], f64, Counters),
    options: EngineOptions,
) -> Report {
    let limits = Limits { ttft_ms: args.limit_ttft, inter_token_ms: args.limit_gap };
    let per_second = |n: usize| n as f64 / total_ms * 1e3;
    let arrivals = spec.arrivals();
    let first = |high: bool| {
        let of = times.iter().zip(&arrivals).filter(move |(_, a)| !high || a.priority > 0);
        Latency::of(of.filter_map(|(t, _)| t.first))
    };
    Report {
        model,
        trace: spec,
        kv: options.kv.to_string(),
        draft: args.speculation.draft.as_ref().map(|path| path.display().to_string()),
        speculate: args.speculation.speculate,
        max_batch_size: options.max_batch,
        max_batched_tokens: options.max_batched_tokens,
        kv_capacity: options.kv_capacity,
        watermark: options.watermark,
        ageing: options.ageing,
        total_ms,
        tokens_per_second: per_second(
            times.iter().map(|t| t.gaps.len() + usize::from(t.first.is_some())).sum(),
        ),
        requests_per_second: per_second(times.len()),
        limits,
        goodput: per_second(times.iter().filter(|t| t.meets(limits)).count()),
        ttft_ms: first(false),
        ttft_ms_high_priority: if spec.high_priority > 0.0 { first(true) } else { None },
        inter_token_ms: Latency::of(times.iter().flat_map(|t| t.gaps.iter().copied())),
        preemptions: counters.preemptions,
        offloaded_tokens: counters.offloaded_rows,
        restored_tokens: counters.restored_rows,
        drafted_tokens: counters.drafted,
        accepted_tokens: counters.accepted,
    }
}

impl Report {
    fn text(&self) -> String {
        let mut table = Table::new(&["ms"], &["p50", "p95", "p99", "max", "n"]);
        let rows = [
            ("time to first token", &self.ttft_ms),
            ("time to first token, priority 1", &self.ttft_ms_high_priority),
            ("time between tokens", &self.inter_token_ms),
        ];
        for (name, latency) in rows.into_iter().filter_map(|(name, l)| Some((name, l.as_ref()?))) {
            let times = [latency.p50, latency.p95, latency.p99, latency.max].map(|ms| format!("{ms:.2}"));
            table.row([name.to_string()].into_iter().chain(times).chain([latency.n.to_string()]));
        }
        let requests = units::many(self.trace.requests as u64, "request");
        let Limits { ttft_ms, inter_token_ms } = self.limits;
        let drafts = match (&self.draft, self.speculate) {
            (Some(draft), _) => format!(", drafts of {draft}"),
            (None, SpeculateArg::Lookup) => ", drafts by prompt lookup".into(),
            (None, SpeculateArg::Off) => String::new(),
        };
        format!(
            "{}cache {}{drafts}\n{requests} in {:.1} s: {:.1} requests/s, {}, {}\ngoodput: {:.1} requests/s with a \
             first token within {ttft_ms} ms and at most {inter_token_ms} ms between tokens\n\n{}",
            self.model.title(),
            self.kv,
            self.total_ms / 1e3,
            self.requests_per_second,
            units::rate(self.tokens_per_second, "tok"),
            units::many(self.preemptions, "preemption"),
            self.goodput,
            table.render()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_token_counts_from_the_arrival_and_the_others_from_the_one_before() {
        let arrival = Arrival { at_ms: 10.0, prompt_len: 1, max_new: 3, priority: 0 };
        let mut times = Times::default();
        [14.0, 14.0, 17.5].iter().for_each(|&now| times.token(&arrival, now));
        assert_eq!((times.first, &times.gaps[..]), (Some(4.0), &[0.0, 3.5][..]));
        let meets = |ttft_ms, inter_token_ms| times.meets(Limits { ttft_ms, inter_token_ms });
        assert_eq!([meets(4.0, 3.5), meets(3.9, 3.5), meets(4.0, 3.4)], [true, false, false]);
        assert!(!Times::default().meets(Limits { ttft_ms: 1e9, inter_token_ms: 1e9 }));
    }
}
