//! `xtrain bench decode`.
use std::num::NonZeroUsize;

use serde::Serialize;

use super::DecodeArgs;
use super::ideal::Ideal;
use super::subject::{self, BenchModel, Load};
use super::traffic::{Meter, PerUnit};
use crate::cli::{CliError, out};
use crate::decode::{CacheShape, EngineOptions};
use crate::report::{Column, Pass, Spread, Table, Timings, units};

/// Tokens of a prompt, and new ones, unless told otherwise.
const USUAL: usize = 128;

/// What `--json` prints; numbers without a plural are medians over the samples.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    subject: BenchModel,
    kv: String,
    batch: usize,
    one_prompt: bool,
    prompt_len: usize,
    max_new: usize,
    time_to_first_token_ms: f64,
    decode_tokens_per_second: Option<f64>,
    slope_us_per_token: Option<f64>,
    per_forward_ms: PerForward,
    cache_bytes: usize,
    cache_bytes_per_token: usize,
    ideal_step: Ideal,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_token: Option<PerUnit>,
    /// Bytes of keys and values read by the attention of new tokens, over those that they need.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_read_over_needed: Option<f64>,
    samples: Vec<Timings>,
}

#[derive(Debug, Serialize)]
struct PerForward {
    prefill: Option<Spread>,
    decode: Option<Spread>,
}

pub(super) fn run(args: &DecodeArgs) -> Result<(), CliError> {
    let given = |n: Option<NonZeroUsize>| n.map(NonZeroUsize::get);
    let (prompt_len, max_new) = (given(args.prompt_len), given(args.max_new));
    let positions = prompt_len.unwrap_or(USUAL) + max_new.unwrap_or(USUAL);
    let (model, subject) = subject::open(args.model.as_deref(), &args.shared, positions)?;
    let usual = USUAL.min(model.config().max_positions / 2).max(1);
    let load = Load {
        batch: args.batch.get(),
        one_prompt: args.one_prompt,
        prompt_len: prompt_len.unwrap_or(usual),
        max_new: max_new.unwrap_or(usual),
    };
    load.check(&model, "lower --prompt-len or --max-new")?;
    let options = EngineOptions { steps_per_sync: args.look.get(), ..args.cache.engine() };
    subject::measure(&model, load, options)?;
    let (mut samples, mut cache_bytes, mut kv) = (Vec::new(), 0, None);
    let meter = Meter::start(model.device());
    for _ in 0..args.repeats.get() {
        let measured = subject::measure(&model, load, options)?;
        samples.push(measured.timings);
        (cache_bytes, kv) = (measured.cache_bytes, measured.kv);
    }
    let per_token = meter.stop(model.device(), args.repeats.get() * load.batch * load.max_new);
    let median = |of: &dyn Fn(&Timings) -> Option<f64>| Spread::of(samples.iter().filter_map(of));
    let all = |of: fn(&Timings) -> &[Pass]| Spread::of(samples.iter().flat_map(of).map(|pass| pass.ms));
    let per_forward_ms = PerForward { prefill: all(|t| &t.prefill), decode: all(|t| &t.decode) };
    // a mean: on a GPU one pass waits for several
    let step = per_forward_ms.decode.as_ref().map(|passes| passes.mean);
    let ideal_step = Ideal::decode(&model, &load, step);
    let report = Report {
        subject,
        kv: options.kv.to_string(),
        batch: load.batch,
        one_prompt: load.one_prompt,
        prompt_len: load.prompt_len,
        max_new: load.max_new,
        time_to_first_token_ms: median(&|t| Some(t.time_to_first_token_ms())).map_or(0.0, |s| s.p50),
        decode_tokens_per_second: median(&Timings::decode_tokens_per_second).map(|s| s.p50),
        slope_us_per_token: median(&Timings::slope_us).map(|s| s.p50),
        per_forward_ms,
        cache_bytes,
        cache_bytes_per_token: CacheShape::of(&model).bytes_per_token(),
        ideal_step,
        per_token,
        kv_read_over_needed: kv.map(|[read, needed]| read as f64 / needed as f64),
        samples,
    };
    if args.shared.json { out::print_json(&report) } else { out::print(report.text()) }
}

impl Report {
    fn text(&self) -> String {
        let what = match (self.one_prompt, self.batch) {
            (true, batch) => format!("{batch} of one prompt"),
            (false, batch) => units::many(batch as u64, "prompt"),
        };
        let mut text = self.subject.title();
        text.push_str(&format!(
            "{} of {} tokens, {} new, cache {}\n\n",
            what, self.prompt_len, self.max_new, self.kv
        ));
        let mut table = Table::new([Column::words("median"), Column::numbers("")]);
        table.row(["time to first token", &format!("{:.2} ms", self.time_to_first_token_ms)]);
        let rate = self.decode_tokens_per_second.map_or("-".into(), |rate| format!("{rate:.0} tok/s"));
        table.row(["decode", &rate]);
        let slope = self.slope_us_per_token.map_or("-".into(), |slope| format!("{slope:.3} us/token"));
        table.row(["slope over position", &slope]);
        let cache = units::bytes(self.cache_bytes as u64);
        table.row(["cache", &format!("{cache} ({} B/token)", self.cache_bytes_per_token)]);
        text.push_str(&table.render());
        let heads = ["min", "p50", "mean", "p95", "max", "n"].map(Column::numbers);
        let mut table = Table::new([Column::words("ms per forward")].into_iter().chain(heads));
        for (what, spread) in
            [("prefill", &self.per_forward_ms.prefill), ("decode", &self.per_forward_ms.decode)]
        {
            if let Some(s) = spread {
                let numbers = [s.min, s.p50, s.mean, s.p95, s.max].map(|ms| format!("{ms:.3}"));
                table.row([what.to_string()].into_iter().chain(numbers).chain([s.n.to_string()]));
            }
        }
        let mut traffic = self.per_token.map_or(String::new(), |t| format!("\n{}", t.table("new token")));
        if let Some(times) = self.kv_read_over_needed {
            traffic
                .push_str(&format!("keys and values are read {times:.3} times as much as they have to be\n"));
        }
        format!("{text}\n{}\n{}{traffic}", table.render(), self.ideal_step.table())
    }
}
