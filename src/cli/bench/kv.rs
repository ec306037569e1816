//! `xtrain bench kv`.
use serde::Serialize;

use super::KvArgs;
use super::subject::{self, BenchModel, Load, Measured};
use crate::cli::{CliError, out};
use crate::decode::KvKind;
use crate::report::{Column, Spread, Table, Timings, units};

/// New tokens of the rollouts; the last with `--long` alone.
const LENGTHS: [usize; 4] = [32, 128, 256, 1024];

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    subject: BenchModel,
    prompt_len: usize,
    cells: Vec<Cell>,
}

/// One cache at one length; numbers are medians over the samples.
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
    let longest = lengths.iter().max().expect("there are lengths");
    let prompt_len = args.prompt_len.get();
    let (model, subject) = subject::open(args.model.as_deref(), &args.shared, prompt_len + longest)?;
    let fits = |n: &&usize| prompt_len + **n <= model.config().max_positions;
    let lengths: Vec<usize> = lengths.iter().filter(fits).copied().collect();
    if lengths.is_empty() {
        Load { batch: 1, one_prompt: false, prompt_len, max_new: LENGTHS[0] }.check(
            &model,
            "the shortest cell has 32 new tokens: lower --prompt-len, or take a longer model",
        )?;
    }
    let page = args.sizes.page_size;
    let kinds = [KvKind::Off, KvKind::Growing, KvKind::Contiguous, KvKind::Paged { page }];
    let mut cells = Vec::new();
    for n in lengths {
        let load = Load { batch: 1, one_prompt: false, prompt_len, max_new: n };
        let mut row = kinds.map(|kv| (kv, 0, Vec::new()));
        for round in 0..=args.repeats.get() {
            // there and back: what drifts, drifts for all
            for at in 0..kinds.len() {
                let at = if round % 2 == 0 { at } else { kinds.len() - 1 - at };
                let (kv, bytes, samples) = &mut row[at];
                let Measured { timings, cache_bytes: held, .. } =
                    subject::measure(&model, load, args.sizes.engine(*kv))?;
                *bytes = held;
                if round > 0 {
                    samples.push(timings);
                }
            }
        }
        cells.extend(row.map(|(kv, bytes, samples)| Cell::of((kv, n), bytes, samples)));
    }
    let report = Report { subject, prompt_len, cells };
    if args.shared.json { out::print_json(&report) } else { out::print(report.text()) }
}

impl Cell {
    fn of((kv, n): (KvKind, usize), cache_bytes: usize, samples: Vec<Timings>) -> Cell {
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
    }
}

impl Report {
    fn text(&self) -> String {
        let heads = ["n", "first token ms", "tok/s", "total ms", "x off", "cache"];
        let columns = [Column::words("cache")].into_iter().chain(heads.map(Column::numbers));
        let mut table = Table::new(columns);
        for cell in &self.cells {
            let off = self.cells.iter().find(|c| c.n == cell.n && c.kv == KvKind::Off.to_string());
            let times = off.map_or(1.0, |off| off.total_ms / cell.total_ms);
            table.row([
                cell.kv.clone(),
                cell.n.to_string(),
                format!("{:.2}", cell.time_to_first_token_ms),
                format!("{:.0}", cell.decode_tokens_per_second),
                format!("{:.1}", cell.total_ms),
                format!("{times:.1}"),
                units::bytes(cell.cache_bytes as u64),
            ]);
        }
        format!("{}a prompt of {} tokens, n new\n\n{}", self.subject.title(), self.prompt_len, table.render())
    }
}
