//! `xtrain bench decode`.
use serde::Serialize;

use super::args::DecodeArgs;
use super::bench_model::{self, BenchModel, DEFAULT_LEN};
use super::estimate;
use super::gpu_counters::PerUnit;
use super::ideal::Ideal;
use super::workload::Workload;
use crate::cli::speculation::SpeculationReport;
use crate::cli::{CliError, out};
use crate::decode::{CacheShape, EngineOptions};
use crate::model::Model;
use crate::report::{Pass, Spread, Table, Timings, units};

/// The output of `--json`. Scalars are medians over the samples.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    model: BenchModel,
    kv: String,
    #[serde(flatten)]
    workload: Workload,
    time_to_first_token_ms: f64,
    decode_tokens_per_second: Option<f64>,
    slope_us_per_token: Option<f64>,
    per_forward_ms: PerForward,
    cache_bytes: usize,
    cache_bytes_per_token: usize,
    ideal_step: Ideal,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_token: Option<PerUnit>,
    /// Bytes of keys and values that the attention of new tokens read, divided by the lower bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_read_over_needed: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<SpeculationReport>,
    /// Time of the rollout without speculation, divided by the time with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    speedup: Option<f64>,
    samples: Vec<Timings>,
}

#[derive(Debug, Serialize)]
struct PerForward {
    prefill: Option<Spread>,
    decode: Option<Spread>,
}

pub(super) fn run(args: &DecodeArgs) -> Result<(), CliError> {
    if let Some(gpu) = args.estimate {
        return estimate::decode(args, gpu);
    }
    let context = args.lengths(DEFAULT_LEN).into_iter().fold(0, usize::saturating_add);
    let (model, description) = bench_model::open(args.model.as_deref(), &args.shared, context)?;
    let [prompt_len, max_new] = args.lengths(DEFAULT_LEN.min(model.config().max_positions / 2).max(1));
    let workload = Workload {
        batch: args.batch.get(),
        one_prompt: args.one_prompt,
        prompt_len,
        max_new,
        temperature: args.temperature,
        top_p: args.top_p,
    };
    workload.check(args.cache.engine().kv, &model, "reduce --prompt-len or --max-new")?;
    let plain = EngineOptions { steps_per_sync: args.sync_every.get(), ..args.cache.engine() };
    let options = args.speculation.apply(plain)?;
    let (tokenizer, common) = (description.tokenizer.as_ref(), &args.shared.common);
    let draft = args.speculation.open_draft(&model, tokenizer, common)?;
    let draft = draft.as_ref().map(|draft| &draft.model);
    bench_model::measure(&model, workload, options, draft)?;
    let (mut samples, mut cache_bytes, mut kv) = (Vec::new(), 0, None);
    let (mut speculation, mut plain_ms) = (None, Vec::new());
    let start = model.device().gpu_counters();
    for _ in 0..args.repeats.get() {
        let measured = bench_model::measure(&model, workload, options, draft)?;
        samples.push(measured.timings);
        (cache_bytes, kv) = (measured.cache_bytes, measured.kv);
        speculation = args.speculation.report(measured.counters);
    }
    let tokens = args.repeats.get() * workload.batch * workload.max_new;
    let per_token = PerUnit::since(start, model.device(), tokens);
    if speculation.is_some() {
        plain_ms = without_drafts(&model, workload, plain, args.repeats.get())?;
    }
    let median = |of: &dyn Fn(&Timings) -> Option<f64>| Some(Spread::of(samples.iter().filter_map(of))?.p50);
    let total_ms = median(&|t| Some(t.total_ms()));
    let speedup = Spread::of(plain_ms).zip(total_ms).map(|(plain, ms)| plain.p50 / ms);
    let all = |of: fn(&Timings) -> &[Pass]| Spread::of(samples.iter().flat_map(of).map(|pass| pass.ms));
    let per_forward_ms = PerForward { prefill: all(|t| &t.prefill), decode: all(|t| &t.decode) };
    // The mean, because on a GPU one pass waits for several.
    let step = per_forward_ms.decode.as_ref().map(|passes| passes.mean);
    let ideal_step = Ideal::decode(&model, options.kv, &workload, step);
    let report = Report {
        model: description,
        kv: options.kv.to_string(),
        workload,
        time_to_first_token_ms: median(&|t| Some(t.time_to_first_token_ms())).unwrap_or(0.0),
        decode_tokens_per_second: median(&Timings::decode_tokens_per_second),
        slope_us_per_token: median(&Timings::slope_us),
        per_forward_ms,
        cache_bytes,
        cache_bytes_per_token: CacheShape::of(&model).stored_as(plain.kv.dtype()).bytes_per_token(),
        ideal_step,
        per_token,
        speculation,
        speedup,
        kv_read_over_needed: kv.map(|[read, needed]| read as f64 / needed as f64),
        samples,
    };
    if args.shared.json { out::print_json(&report) } else { out::print(report.text()) }
}

/// The times of `n` rollouts without drafts, in milliseconds, after one warmup rollout.
fn without_drafts(
    model: &Model,
    workload: Workload,
    options: EngineOptions,
    n: usize,
) -> Result<Vec<f64>, CliError> {
    let rollout = |_| Ok(bench_model::measure(model, workload, options, None)?.timings.total_ms());
    let times = (0..=n).map(rollout).collect::<Result<Vec<f64>, CliError>>()?;
    Ok(times[1..].to_vec())
}

impl Report {
    fn text(&self) -> String {
        let Workload { batch, one_prompt, prompt_len, max_new, temperature, top_p } = self.workload;
        let sampling = match temperature {
            0.0 if one_prompt => "greedy (equal sequences are computed once; see --temperature)".to_string(),
            0.0 => "greedy".to_string(),
            _ => format!("temperature {temperature}, top-p {top_p}"),
        };
        let prompts = match one_prompt {
            true => format!("{batch} sequences of one prompt"),
            false => units::many(batch as u64, "prompt"),
        };
        let (title, kv) = (self.model.title(), &self.kv);
        let head = format!(
            "{title}{prompts} of {prompt_len} tokens, {max_new} new tokens each, {sampling}, cache {kv}\n\n"
        );
        let mut table = Table::new(&["median"], &[""]);
        table.row(["time to first token", &format!("{:.2} ms", self.time_to_first_token_ms)]);
        let rate = self.decode_tokens_per_second.map_or("-".into(), |rate| format!("{rate:.0} tok/s"));
        table.row(["decode", &rate]);
        let slope = self.slope_us_per_token.map_or("-".into(), |slope| format!("{slope:.3} us/token"));
        table.row(["slope over position", &slope]);
        if let (Some(speculation), Some(speedup)) = (self.speculation, self.speedup) {
            table.row(["speculation", &format!("{speedup:.2} x, {}", speculation.text())]);
        }
        let cache = units::bytes(self.cache_bytes as u64);
        table.row(["cache", &format!("{cache} ({} B/token)", self.cache_bytes_per_token)]);
        let PerForward { prefill, decode } = &self.per_forward_ms;
        let spreads = [("prefill", prefill), ("decode", decode)];
        let spreads = spreads.into_iter().filter_map(|(name, spread)| Some((name, spread.as_ref()?)));
        let times = Table::of_spreads("ms per forward", 3, spreads);
        let mut counters = self.per_token.map_or(String::new(), |t| format!("\n{}", t.table("new token")));
        if let Some(times) = self.kv_read_over_needed {
            counters.push_str(&format!("keys and values read / lower bound: {times:.3}\n"));
        }
        let (medians, times) = (table.render(), times.render());
        format!("{head}{medians}\n{times}\n{}{counters}", self.ideal_step.table())
    }
}
