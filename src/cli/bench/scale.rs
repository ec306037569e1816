//! `xtrain bench scale`: the training step of several processes, measured and estimated.
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::bench_model::{self, BenchModel};
use super::scale_args::ScaleArgs;
use crate::cli::identity::Identity;
use crate::cli::memory_check::require_training;
use crate::cli::{CliError, out, source};
use crate::config::RunConfig;
use crate::model::comm::Communicator;
use crate::model::{self, LogitsProcessing, Trainer, normalize_loss_weights};
use crate::report::{Spread, Table, units};
use crate::tensor::ops;
use crate::training;

const WARM_UP: usize = 2;

/// The largest number of processes of an estimate is 2 to this power.
const LARGEST: u32 = 12;

/// The medians of one process, in ms.
#[derive(Debug, Clone, Copy, Serialize)]
struct Compute {
    /// Forward and backward pass over the windows of the process.
    gradient: f64,
    /// Clipping and AdamW on all parameters.
    update: f64,
    /// Adding two gradients.
    add: f64,
}

/// What connects the processes.
#[derive(Debug, Clone, Copy, Serialize)]
struct Network {
    latency_us: f64,
    /// Bytes per second that a process receives while it sends as many, in units of 10^9.
    gigabytes_per_second: f64,
}

/// The estimate of a step on some number of processes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Row {
    processes: u64,
    tokens_per_second: f64,
    step_ms: f64,
    exchange_ms: f64,
    /// Bytes that a process receives.
    bytes: u64,
    /// The rate divided by that of as many separate processes.
    efficiency: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    model: BenchModel,
    context: usize,
    batch_per_process: usize,
    compute_ms: Compute,
    network: Network,
    /// The processes that ran this command, and the time of their steps. `None`: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Measured>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    estimate: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Measured {
    processes: usize,
    step_ms: Spread,
    estimated_ms: f64,
}

impl Network {
    /// The estimated time of a step: all-to-all of gradients, all-gather of weights, and three short messages.
    fn row(self, compute: Compute, parameters: u64, [processes, tokens]: [u64; 2]) -> Row {
        let (r, n) = (processes as f64, parameters as f64);
        let others = (r - 1.0) / r;
        let bytes = 2.0 * 4.0 * n * others;
        let latencies = 2.0 * (r - 1.0) + 3.0 * f64::from(processes.next_power_of_two().ilog2());
        let exchange_ms = latencies * self.latency_us / 1e3 + bytes / self.gigabytes_per_second / 1e6;
        let alone_ms = compute.gradient + compute.update;
        let step_ms = compute.gradient + compute.add * others + compute.update / r + exchange_ms;
        Row {
            processes,
            tokens_per_second: r * tokens as f64 / step_ms * 1e3,
            step_ms,
            exchange_ms,
            bytes: bytes as u64,
            efficiency: alone_ms / step_ms,
        }
    }
}

pub(super) fn run(args: &ScaleArgs, comm: &Arc<dyn Communicator>) -> Result<(), CliError> {
    Identity::of_command().require_equal(&**comm)?;
    let config = args.shared.config()?;
    let device = args.shared.common.open()?;
    let vocab = source::tokenizer(&config.data.tokenizer)?.vocab_size();
    require_training(&config, vocab, &device)?;
    let mut trainer = training::new_trainer(&config, vocab, &device)?;
    let compute = alone(&mut trainer, &config, args.steps)?;
    let network = Network { latency_us: args.latency_us, gigabytes_per_second: args.bandwidth };
    let parameters = trainer.model.config().n_params() as u64;
    let tokens = (config.train.batch * config.train.context) as u64;
    let row = |processes: u64| network.row(compute, parameters, [processes, tokens]);
    let measured = match comm.size() {
        1 => None,
        n => Some(Measured {
            processes: n,
            step_ms: together(&mut trainer, &config, args.steps, comm)?,
            estimated_ms: row(n as u64).step_ms,
        }),
    };
    let report = Report {
        model: BenchModel::new(bench_model::name(&config), &trainer.model),
        context: config.train.context,
        batch_per_process: config.train.batch,
        compute_ms: compute,
        network,
        measured,
        estimate: if args.estimate {
            (0..=LARGEST).map(|power| row(1 << power)).collect()
        } else {
            Vec::new()
        },
    };
    if args.shared.json { out::print_json(&report) } else { out::print(report.text()) }
}

/// Measures the parts of the step of one process.
fn alone(trainer: &mut Trainer, config: &RunConfig, steps: usize) -> Result<Compute, CliError> {
    let (mut gradients, mut updates, mut adds) = (Vec::new(), Vec::new(), Vec::new());
    let (batch, context, vocab) = (config.train.batch, config.train.context, trainer.model.config().vocab);
    for step in 0..WARM_UP + steps {
        let mut examples =
            bench_model::random_windows(config.train.seed, step * batch, batch, [context, vocab]);
        let targets = normalize_loss_weights(&mut examples);
        let clock = Instant::now();
        let gradient = trainer.gradient(&examples, LogitsProcessing::default(), config.train.micro_batch)?;
        let gradient_ms = clock.elapsed().as_secs_f64() * 1e3;
        let mut sum = trainer.whole_gradient(&gradient)?;
        let clock = Instant::now();
        for (sum, gradient) in sum.iter_mut().zip(&gradient.grads) {
            ops::accumulate(sum, gradient).map_err(model::Error::from)?;
        }
        let add_ms = clock.elapsed().as_secs_f64() * 1e3;
        let clock = Instant::now();
        trainer.apply(gradient, targets)?;
        if step >= WARM_UP {
            updates.push(clock.elapsed().as_secs_f64() * 1e3);
            gradients.push(gradient_ms);
            adds.push(add_ms);
        }
    }
    let median = |samples: Vec<f64>| Spread::of(samples).expect("at least one step was measured").p50;
    Ok(Compute { gradient: median(gradients), update: median(updates), add: median(adds) })
}

/// Measures the steps of all processes, each with one shard of `train.batch` windows.
fn together(
    trainer: &mut Trainer,
    config: &RunConfig,
    steps: usize,
    comm: &Arc<dyn Communicator>,
) -> Result<Spread, CliError> {
    trainer.shards = comm.size();
    trainer.join(Arc::clone(comm))?;
    let (context, vocab) = (config.train.context, trainer.model.config().vocab);
    let batch = config.train.batch * comm.size();
    let mut samples = Vec::new();
    for step in 0..WARM_UP + steps {
        let examples = bench_model::random_windows(config.train.seed, step * batch, batch, [context, vocab]);
        comm.barrier()?;
        let clock = Instant::now();
        trainer.step(examples, config.train.micro_batch)?;
        if step >= WARM_UP {
            samples.push(clock.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(Spread::of(samples).expect("at least one step was measured"))
}

impl Report {
    fn text(&self) -> String {
        let Report {
            batch_per_process, context, compute_ms: Compute { gradient, update, add }, network, ..
        } = self;
        let mut text = format!(
            "{}{batch_per_process} windows of {context} tokens per process and step\n\
             one process: gradient {gradient:.2} ms, update {update:.2} ms, adding two gradients {add:.2} ms\n",
            self.model.title()
        );
        if let Some(Measured { processes, step_ms, estimated_ms }) = &self.measured {
            text += &format!(
                "{processes} processes: {:.2} ms per step (median of {}), estimated {estimated_ms:.2} ms\n",
                step_ms.p50, step_ms.n
            );
        }
        if self.estimate.is_empty() {
            return text;
        }
        let mut table =
            Table::new(&[], &["processes", "tok/s", "ms per step", "exchange", "bytes", "efficiency"]);
        for row in &self.estimate {
            table.row([
                row.processes.to_string(),
                format!("{:.0}", row.tokens_per_second),
                format!("{:.2}", row.step_ms),
                format!("{:.2}", row.exchange_ms),
                units::bytes(row.bytes),
                format!("{:.2}", row.efficiency),
            ]);
        }
        let pays = |two: &&[Row]| two[1].tokens_per_second < 1.5 * two[0].tokens_per_second;
        let end = match self.estimate.windows(2).find(pays) {
            Some(two) => format!("twice {} processes are less than 1.5 times as fast", two[0].processes),
            None => "twice as many processes are always at least 1.5 times as fast".to_string(),
        };
        let Network { latency_us, gigabytes_per_second } = network;
        format!(
            "{text}\n{}\n{end}\nAn estimate for a latency of {latency_us} us and {gigabytes_per_second} GB/s; \
             computation and exchange do not overlap.\n",
            table.render()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPUTE: Compute = Compute { gradient: 100.0, update: 10.0, add: 2.0 };

    #[test]
    fn a_step_of_one_process_exchanges_nothing() {
        let network = Network { latency_us: 5.0, gigabytes_per_second: 1.0 };
        let row = network.row(COMPUTE, 1_000_000, [1, 550]);
        let (rate, efficiency) = (550.0 / 110.0 * 1e3, 1.0);
        assert_eq!(
            row,
            Row {
                processes: 1,
                tokens_per_second: rate,
                step_ms: 110.0,
                exchange_ms: 0.0,
                bytes: 0,
                efficiency
            }
        );
    }

    #[test]
    fn the_bytes_are_two_copies_of_the_parameters_less_the_own_part() {
        let network = Network { latency_us: 1000.0, gigabytes_per_second: 1.0 };
        let row = network.row(COMPUTE, 1_000_000, [4, 1]);
        assert_eq!(row.bytes, 6_000_000);
        // 6 and 3 times 2 messages of 1 ms, and 6 MB at 1 GB/s
        assert_eq!(row.exchange_ms, 12.0 + 6.0);
        assert_eq!(row.step_ms, 100.0 + 1.5 + 2.5 + 18.0);
    }
}
