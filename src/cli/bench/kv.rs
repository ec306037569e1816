//! `xtrain bench kv`.
use serde::Serialize;

use super::args::KvArgs;
use super::bench_model::{self, BenchModel};
use super::workload::Workload;
use crate::cli::{CliError, out};
use crate::decode::KvKind;
use crate::report::{Spread, Table, Timings, units};

/// Numbers of new tokens; the last one only with `--long`.
const LENGTHS: [usize; 4] = [32, 128, 256, 1024];

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    model: BenchModel,
    prompt_len: usize,
    cells: Vec<Cell>,
}

/// One cache at one length. The numbers are medians over the samples.
#[derive(Debug, Serialize)]
struct Cell {
    kv: String,
    n: usize,
    time_to_first_token_ms: f64,
    decode_tokens_per_second: f64,
    total_ms: f64,
    cache_bytes: usize,
    samples: Vec<Timings>,
}

pub(super) fn run(args: &KvArgs) -> Result<(), CliError> {
    let lengths = if args.long { &LENGTHS[..] } else { &LENGTHS[..3] };
    let longest = lengths.iter().max().expect("the list is not empty");
    let prompt_len = args.prompt_len.get();
    let context = prompt_len.saturating_add(*longest);
    let (model, description) = bench_model::open(args.model.as_deref(), &args.shared, context)?;
    let fits = |n: &&usize| prompt_len.saturating_add(**n) <= model.config().max_positions;
    let lengths: Vec<usize> = lengths.iter().filter(fits).copied().collect();
    let workload =
        |max_new| Workload { batch: 1, one_prompt: false, prompt_len, max_new, temperature: 0.0, top_p: 1.0 };
    let hint =
        "reduce --prompt-len (the shortest rollout has 32 new tokens), or use a model with a longer context";
    workload(LENGTHS[0]).check(KvKind::default(), &model, hint)?;
    let page = args.sizes.page_size;
    let kinds = [KvKind::Off, KvKind::Growing, KvKind::Contiguous, KvKind::Paged { page }];
    let mut cells = Vec::new();
    for n in lengths {
        let mut row = kinds.map(|kv| (kv, 0, Vec::new()));
        for round in 0..=args.repeats.get() {
            // Alternate the direction, so that drift affects all caches equally.
            for at in 0..kinds.len() {
                let at = if round % 2 == 0 { at } else { kinds.len() - 1 - at };
                let (kv, bytes, samples) = &mut row[at];
                let measured = bench_model::measure(&model, workload(n), args.sizes.engine(*kv), None)?;
                *bytes = measured.cache_bytes;
                if round > 0 {
                    samples.push(measured.timings);
                }
            }
        }
        cells.extend(row.map(|(kv, cache_bytes, samples)| {
            let median = |of: &dyn Fn(&Timings) -> Option<f64>| {
                Spread::of(samples.iter().filter_map(of)).map_or(0.0, |spread| spread.p50)
            };
            Cell {
                kv: kv.to_string(),
                n,
                time_to_first_token_ms: median(&|t| Some(t.time_to_first_token_ms())),
                decode_tokens_per_second: median(&Timings::decode_tokens_per_second),
                total_ms: median(&|t| Some(t.total_ms())),
                cache_bytes,
                samples,
            }
        }));
    }
    let report = Report { model: description, prompt_len, cells };
    if args.shared.json { out::print_json(&report) } else { out::print(report.text()) }
}

impl Report {
    fn text(&self) -> String {
        let numbers = ["n", "first token ms", "tok/s", "total ms", "speedup", "cache size"];
        let mut table = Table::new(&["cache"], &numbers);
        for cell in &self.cells {
            let off = self.cells.iter().find(|c| c.n == cell.n && c.kv == KvKind::Off.to_string());
            let speedup = off.map_or(1.0, |off| off.total_ms / cell.total_ms);
            table.row([
                cell.kv.clone(),
                cell.n.to_string(),
                format!("{:.2}", cell.time_to_first_token_ms),
                format!("{:.0}", cell.decode_tokens_per_second),
                format!("{:.1}", cell.total_ms),
                format!("{speedup:.1}"),
                units::bytes(cell.cache_bytes as u64),
            ]);
        }
        let (title, prompt_len) = (self.model.title(), self.prompt_len);
        format!("{title}prompt of {prompt_len} tokens, n new tokens\n\n{}", table.render())
    }
}
