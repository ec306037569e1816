//! `xtrain bench cache-kinds`.
use serde::Serialize;

use super::bench_model::{self, BenchModel};
use super::cache_columns::{Column, columns};
use super::cache_kinds_args::CacheKindsArgs;
use super::cache_text::{self, DEFAULT_LEN, Text};
use super::workload::Workload;
use crate::cli::{CliError, out};
use crate::decode::{CacheShape, EngineOptions, KvKind};
use crate::model::Model;
use crate::report::{Spread, Table, Timings, units};
use crate::tensor::Dtype;

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    model: BenchModel,
    workload: Workload,
    budget_bytes: usize,
    /// Tokens whose probability was measured.
    text_tokens: usize,
    kinds: Vec<Kind>,
    /// Bytes per token in bf16, by the formula.
    bf16_bytes_per_token: usize,
    /// Share of the KV slots that completions of one prompt save in pages.
    prefix_sharing_saves: f64,
}

/// One kind of cache. Times are medians over the samples.
#[derive(Debug, Serialize)]
struct Kind {
    kv: String,
    /// Two layers are in the memory of the device, the others in a file, with a GPU in host memory.
    layers_offloaded: bool,
    exact: bool,
    /// By the formula: 2 x layers x kv heads x bytes of a head.
    bytes_per_token: usize,
    /// Bytes of the tensors in the memory of the device, divided by their slots.
    allocated_bytes_per_token: f64,
    /// Positions in the budget, in whole pages. `None`: any number, in the slots of the sinks and of the window.
    positions_in_budget: Option<usize>,
    /// Share of the slots in use that hold no position, with prompts of ragged lengths.
    waste: f64,
    perplexity: f64,
    time_to_first_token_ms: f64,
    decode_tokens_per_second: f64,
    samples: Vec<Timings>,
}

pub(super) fn run(args: &CacheKindsArgs) -> Result<(), CliError> {
    let (model, description, text) = cache_text::open(args)?;
    let [prompt_len, max_new] = args.lengths(DEFAULT_LEN.min(model.config().max_positions / 2).max(1));
    let (batch, temperature, top_p) = (args.batch.get(), 0.0, 1.0);
    let workload = Workload { batch, one_prompt: false, prompt_len, max_new, temperature, top_p };
    workload.check(KvKind::default(), &model, "reduce --prompt-len or --max-new")?;
    let budget = args.budget_mib << 20;
    let columns = columns(args.sizes.page_size, prompt_len + max_new);
    for column in columns {
        column.check(workload, column.slots(&model, budget), args.budget_mib)?;
    }
    let options = |column: Column| {
        let kv_capacity = Some(column.slots(&model, budget));
        EngineOptions { kv_capacity, ..args.sizes.engine(column.kv) }
    };
    let mut samples = columns.map(|_| Vec::new());
    for round in 0..=args.repeats.get() {
        // Alternate the direction, so that drift affects all kinds equally.
        for at in 0..columns.len() {
            let at = if round % 2 == 0 { at } else { columns.len() - 1 - at };
            let options = options(columns[at]);
            let memory = columns[at].memory(&model, &workload.engine(options))?;
            let measured = bench_model::measure_in(memory, &model, workload, options, None)?;
            if round > 0 {
                samples[at].push(measured.timings);
            }
        }
    }
    let mut measured = Vec::new();
    for (column, samples) in columns.into_iter().zip(samples) {
        measured.push(kind(&model, column, &text, options(column), samples)?);
    }
    let report = Report {
        prefix_sharing_saves: cache_text::shared_slots(&model, workload, options(columns[2]))?,
        bf16_bytes_per_token: CacheShape { dtype: Dtype::BF16, ..CacheShape::of(&model) }.bytes_per_token(),
        model: description,
        workload,
        budget_bytes: budget,
        text_tokens: text.predicted(),
        kinds: measured,
    };
    if args.shared.json { out::print_json(&report) } else { out::print(report.text()) }
}

/// The measurements of one kind.
fn kind(
    model: &Model,
    column: Column,
    text: &Text,
    options: EngineOptions,
    samples: Vec<Timings>,
) -> Result<Kind, CliError> {
    let median = |of: &dyn Fn(&Timings) -> Option<f64>| {
        Spread::of(samples.iter().filter_map(of)).map_or(0.0, |spread| spread.p50)
    };
    let (read, kv) = (text.read(model, column, options)?, column.kv);
    Ok(Kind {
        kv: kv.to_string(),
        // the offloaded layers share the memory of two: a model of one or two layers has all of them in memory
        layers_offloaded: column.offloads && model.config().n_layers > 2,
        exact: kv.is_exact(),
        bytes_per_token: CacheShape::of(model).stored_as(kv.dtype()).bytes_per_token(),
        allocated_bytes_per_token: read.bytes as f64 / read.usage.slots.max(1) as f64,
        positions_in_budget: options.kv_capacity.filter(|_| kv.keeps_all()),
        waste: read.waste(),
        perplexity: read.perplexity,
        time_to_first_token_ms: median(&|t| Some(t.time_to_first_token_ms())),
        decode_tokens_per_second: median(&Timings::decode_tokens_per_second),
        samples,
    })
}

impl Report {
    fn text(&self) -> String {
        let Workload { batch, prompt_len, max_new, .. } = self.workload;
        let numbers = [
            "bytes/token",
            "allocated",
            "context",
            "waste",
            "tok/s",
            "first token ms",
            "perplexity",
            "difference",
        ];
        let mut table = Table::new(&["cache", "results"], &numbers);
        let exact = &self.kinds[0];
        for kind in &self.kinds {
            table.row([
                format!("{}{}", kind.kv, if kind.layers_offloaded { ", layers offloaded" } else { "" }),
                if kind.exact { "exact" } else { "lossy" }.to_string(),
                kind.bytes_per_token.to_string(),
                format!("{:.0}", kind.allocated_bytes_per_token),
                kind.positions_in_budget.map_or("any".to_string(), |n| n.to_string()),
                format!("{:.1} %", 100.0 * kind.waste),
                format!("{:.0}", kind.decode_tokens_per_second),
                format!("{:.2}", kind.time_to_first_token_ms),
                format!("{:.4}", kind.perplexity),
                format!("{:+.4} %", 100.0 * (kind.perplexity / exact.perplexity - 1.0)),
            ]);
        }
        format!(
            "{}{} of keys and values; {batch} x ({prompt_len} + {max_new}) tokens; perplexity of {} tokens\n\n{}\n{}",
            self.model.title(),
            units::bytes(self.budget_bytes as u64),
            self.text_tokens,
            table.render(),
            self.claims().render()
        )
    }

    /// Published values next to the measured ones.
    fn claims(&self) -> Table {
        let [.., paged, int8, sinks, offloaded] = &self.kinds[..] else { unreachable!("six were measured") };
        let lost = |kind: &Kind| 1.0 - kind.decode_tokens_per_second / paged.decode_tokens_per_second;
        let times = |[of, to]: [Option<usize>; 2]| of.zip(to).map_or(0.0, |(of, to)| of as f64 / to as f64);
        let longer = times([offloaded, paged].map(|kind| kind.positions_in_budget));
        let percent = |x: f64| format!("{:.1} %", 100.0 * x);
        let mut table = Table::new(&["published"], &["claim", "measured"]);
        for (what, claim, measured) in [
            ("paged: waste", "< 4 %", percent(paged.waste)),
            ("prefix sharing: slots saved", "40 to 60 %", percent(self.prefix_sharing_saves)),
            (
                "int8: bytes of a bf16 cache",
                "50 %",
                percent(int8.bytes_per_token as f64 / self.bf16_bytes_per_token as f64),
            ),
            ("int8: speed lost to paged", "12 %", percent(lost(int8))),
            (
                "int8: perplexity increase",
                "< 0.3 %",
                format!("{:.3} %", 100.0 * (int8.perplexity / paged.perplexity - 1.0)),
            ),
            ("sinks: speed lost to paged", "-", percent(lost(sinks))),
            ("offload: context of paged", "16 x", format!("{longer:.1} x")),
            ("offload: speed lost to paged", "42 %", percent(lost(offloaded))),
        ] {
            table.row([what, claim, &measured]);
        }
        table
    }
}
