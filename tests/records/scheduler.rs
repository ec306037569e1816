//! The steps of an engine over fixed scripts of requests: rows, running and waiting sequences, slots of the cache, new
//! tokens; and the counters at the end. Completions of an exact cache equal those of the naive recompute.
use xtrain::decode::{
    Completion, Engine, EngineOptions, FinishReason, OffloadStore, Request, SampleOptions, SnapshotId,
    StopConditions, generate_naive,
};
use xtrain::model::{Config, Model};
use xtrain::tensor::{Device, Dtype};

use crate::{Record, list, row};

mod scripts;

use scripts::{Action, Script, scenarios};

const VOCAB: u32 = 13;

fn config() -> Config {
    Config {
        vocab: VOCAB as usize,
        dim: 16,
        ffn_dim: 16,
        n_layers: 2,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 8,
        max_positions: 40,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        ..Config::default()
    }
}

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    let model = Model::init(&config(), Dtype::F32, &Device::cpu(), 5).unwrap();
    out.line("step  passes prefill+decode/head  running waiting  slots in use/all, positions, evicted  index:token");
    for (name, options, script) in scenarios() {
        out.section(name);
        Trace::new(&model, options).run(&mut out, script);
    }
    out
}

struct Trace<'m> {
    model: &'m Model,
    engine: Engine<'m>,
    exact: bool,
    /// The requests by index. `None`: a continuation.
    requests: Vec<Option<Request>>,
    snapshot: Option<SnapshotId>,
}

impl<'m> Trace<'m> {
    fn new(model: &'m Model, options: EngineOptions) -> Trace<'m> {
        let mut engine = Engine::new(model, options).unwrap();
        engine.offload_to(OffloadStore::in_memory(3000)).unwrap();
        Trace { model, engine, exact: options.kv.is_exact(), requests: Vec::new(), snapshot: None }
    }

    fn run(mut self, out: &mut Record, script: Script) {
        let last = script.iter().map(|(step, _)| *step).max().unwrap_or(0);
        let mut completions = Vec::new();
        for step in 0..60 {
            for (_, action) in script.iter().filter(|(at, _)| *at == step) {
                if let Some(text) = self.apply(*action) {
                    out.line(format!("      {action:?}: {text}"));
                }
            }
            if !self.engine.is_idle() {
                out.line(self.step(step));
            } else if step >= last {
                break;
            }
            completions.extend(self.engine.take_finished());
        }
        for completion in &completions {
            out.line(self.finished(completion));
        }
        out.line(format!("{:?}", self.engine.counters()));
        out.line(format!(
            "{:?}, {} bytes in the store",
            self.engine.cache().map(|c| c.usage()),
            self.engine.offload_store().used()
        ));
    }

    /// The answer of the engine, unless it is the next index.
    fn apply(&mut self, action: Action) -> Option<String> {
        let id = self.requests.len() as u64;
        match action {
            Action::Submit { len, common, new, g, priority } => {
                let token =
                    |at: u32| if at < common { 7 * at % VOCAB } else { (5 * at + id as u32 + 1) % VOCAB };
                let prompt: Vec<u32> = (0..len).map(token).collect();
                let ends = if new > 7 { vec![12] } else { Vec::new() };
                let stop = StopConditions { eos: ends, tokens: vec![11; usize::from(len == 7)] };
                let options = SampleOptions { top_k: Some(9), ..SampleOptions::default() };
                self.submit(
                    Request { id, options, stop, ..Request::sampled(&prompt, new, 1.0, 9) },
                    g,
                    priority,
                )
            }
            Action::Repeat { len, new, g } => {
                let prompt: Vec<u32> = (0..len).map(|at| at % 3 + 1).collect();
                self.submit(Request { id, ..Request::greedy(&prompt, new) }, g, 0)
            }
            Action::Stop(index) => Some(self.engine.stop(index).to_string()),
            Action::Extend(index, tokens, new) => {
                let found = self.engine.extend(index, tokens, new);
                self.requests.extend(found.is_ok().then_some(None));
                Some(found.map_or_else(|error| error.to_string(), |index| index.to_string()))
            }
            Action::Snapshot(index) => match self.engine.snapshot(index) {
                Ok(snapshot) => {
                    self.snapshot = Some(snapshot);
                    None
                }
                Err(error) => Some(error.to_string()),
            },
            Action::ReleaseSnapshot => Some(self.engine.release_snapshot(self.snapshot?).to_string()),
            Action::ReleaseFinished => {
                self.engine.release_finished();
                None
            }
        }
    }

    fn submit(&mut self, request: Request, g: usize, priority: i32) -> Option<String> {
        let index = self.engine.submit_prioritized(request.clone(), g, priority).unwrap();
        assert_eq!(index, self.requests.len());
        self.requests
            .extend((0..g as u64).map(|at| Some(Request { id: request.id + at, ..request.clone() })));
        None
    }

    fn step(&mut self, number: usize) -> String {
        let step = match self.engine.step() {
            Ok(step) => step,
            Err(error) => return format!("{number:>3}  {error}"),
        };
        let rows = format!("{} {}+{}/{}", step.passes, step.prefill_rows, step.decode_rows, step.head_rows);
        let event = |event: &xtrain::decode::Event| {
            let end = event.finish.map_or(String::new(), |reason| format!(".{reason}"));
            format!("{}:{}{end}", event.index, event.token)
        };
        let events = step.events.iter().map(event).collect::<Vec<_>>().join(" ");
        let slots = self.engine.cache().map_or(String::new(), |cache| {
            let usage = cache.usage();
            format!("{}/{} {} {}", usage.in_use, usage.slots, usage.positions, usage.evicted)
        });
        let sequences = format!("{} {}", self.engine.live(), self.engine.waiting());
        format!("{number:>3}  {rows:<12} {sequences:<5} {slots:<14} {events}")
    }

    /// A completion, which the naive recompute confirms.
    fn finished(&self, completion: &Completion) -> String {
        let Completion { index, tokens, finish_reason, .. } = completion;
        if let (true, Some(request)) = (self.exact, &self.requests[*index]) {
            let want = generate_naive(self.model, request).unwrap();
            let whole = *finish_reason != FinishReason::Stop || want.finish_reason == FinishReason::Stop;
            let len = if whole { want.tokens.len() } else { tokens.len() };
            assert_eq!(tokens[..], want.tokens[..len], "sequence {index}");
            assert_eq!(completion.logprobs[..], want.logprobs[..len], "sequence {index}");
        }
        row(format!("sequence {index}"), 12, format!("{} {finish_reason}", list(tokens)))
    }
}
