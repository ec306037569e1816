//! `xtrain bench train`.
use std::time::Instant;

use serde::Serialize;

use super::args::BenchTrainArgs;
use super::bench_model::{self, BenchModel};
use super::estimate;
use super::gpu_counters::PerUnit;
use super::ideal::Ideal;
use crate::cli::memory_check::require_training;
use crate::cli::{CliError, out, source};
use crate::report::{Spread, Table, units};
use crate::training;

const WARM_UP: usize = 3;

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    model: BenchModel,
    context: usize,
    batch: usize,
    micro_batch: usize,
    tokens_per_second: f64,
    ms_per_step: Spread,
    ideal_step: Ideal,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_step: Option<PerUnit>,
    samples_ms: Vec<f64>,
}

pub(super) fn run(args: &BenchTrainArgs) -> Result<(), CliError> {
    if let Some(gpu) = args.estimate {
        return estimate::train(args, gpu);
    }
    let config = args.shared.config()?;
    let device = args.shared.common.open()?;
    let vocab = source::tokenizer(&config.data.tokenizer)?.vocab_size();
    require_training(&config, vocab, &device, 1)?;
    let mut trainer = training::new_trainer(&config, vocab, &device)?;
    let (batch, context) = (config.train.batch, config.train.context);
    let vocab = trainer.model.config().vocab;
    let (mut samples_ms, mut start) = (Vec::new(), None);
    for step in 0..WARM_UP + args.steps {
        let samples = bench_model::random_windows(config.train.seed, step * batch, batch, [context, vocab]);
        if step == WARM_UP {
            start = device.gpu_counters();
        }
        let clock = Instant::now();
        trainer.step(samples, config.train.micro_batch)?;
        if step >= WARM_UP {
            samples_ms.push(clock.elapsed().as_secs_f64() * 1e3);
        }
    }
    let ms_per_step = Spread::of(samples_ms.iter().copied()).expect("at least one step was measured");
    let report = Report {
        model: BenchModel::new(bench_model::name(&config), &trainer.model),
        context,
        batch,
        micro_batch: config.train.micro_batch,
        tokens_per_second: (batch * context) as f64 / ms_per_step.p50 * 1e3,
        ideal_step: Ideal::train(&trainer.model, batch, context, Some(ms_per_step.p50)),
        ms_per_step,
        per_step: PerUnit::since(start, &device, args.steps),
        samples_ms,
    };
    if args.shared.json { out::print_json(&report) } else { out::print(report.text()) }
}

impl Report {
    fn text(&self) -> String {
        let times = Table::of_spreads("ms per step", 2, [("", &self.ms_per_step)]);
        let counters = self.per_step.map_or(String::new(), |t| format!("\n{}", t.table("step")));
        let Report { batch, context, .. } = self;
        let (title, rate) = (self.model.title(), units::rate(self.tokens_per_second, "tok"));
        let (times, ideal) = (times.render(), self.ideal_step.table());
        let windows = units::many(*batch as u64, "window");
        format!("{title}{windows} of {context} tokens per step: {rate}\n\n{times}\n{ideal}{counters}")
    }
}
