//! `xtrain bench scale`: the training step of several processes, measured and estimated.
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::bench_model::{self, BenchModel};
use super::scale_args::ScaleArgs;
use crate::cli::identity::Identity;
use crate::cli::memory_check::require_training;
use crate::cli::{CliError, gpu_peers, out, source};
use crate::config::RunConfig;
use crate::model::comm::Communicator;
use crate::model::{self, LogitsProcessing, Processes, Trainer, normalize_loss_weights};
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

/// The exchange of a step, without the network.
#[derive(Debug, Clone, PartialEq)]
struct Load {
    /// The number of elements of each group of parameters whose gradients are exchanged together, in walk order.
    groups: Vec<usize>,
    /// Tokens of a process.
    tokens: u64,
    /// The part of the gradient's time in which the exchange of all groups but the first one is hidden: the backward
    /// pass of the last micro-batch, taken as two thirds of its time.
    hides: f64,
}

/// The estimate of a step on some number of processes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Row {
    processes: u64,
    tokens_per_second: f64,
    step_ms: f64,
    exchange_ms: f64,
    /// The part of the exchange behind the backward pass.
    hidden_ms: f64,
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
    /// The exchange of gradients, and its part after the end of the backward pass. `None` between GPUs, which would have
    /// to be synchronized.
    exchange_ms: Option<Spread>,
    exposed_ms: Option<Spread>,
    estimated_ms: f64,
}

impl Network {
    /// The estimated time of a step: an all-to-all of each group of gradients, an all-gather of weights, and three short
    /// all-gathers: of losses, squares and flags.
    fn row(self, compute: Compute, load: &Load, processes: u64) -> Row {
        let r = processes as f64;
        let (latency_ms, others) = (self.latency_us / 1e3, (r - 1.0) / r);
        let transfer = |elements: usize| 4.0 * elements as f64 * others / self.gigabytes_per_second / 1e6;
        let group = |&elements: &usize| (r - 1.0) * latency_ms + transfer(elements);
        let elements: usize = load.groups.iter().sum();
        let gradients_ms: f64 = load.groups.iter().map(group).sum();
        let short = 3.0 * f64::from(processes.next_power_of_two().ilog2());
        let weights_ms = (r - 1.0 + short) * latency_ms + transfer(elements);
        let behind: f64 = load.groups.iter().skip(1).map(group).sum();
        let (exchange_ms, hidden_ms) = (gradients_ms + weights_ms, behind.min(load.hides * compute.gradient));
        let alone_ms = compute.gradient + compute.update;
        let step_ms = compute.gradient + compute.add * others + compute.update / r + exchange_ms - hidden_ms;
        Row {
            processes,
            tokens_per_second: r * load.tokens as f64 / step_ms * 1e3,
            step_ms,
            exchange_ms,
            hidden_ms,
            bytes: (2.0 * 4.0 * elements as f64 * others) as u64,
            efficiency: alone_ms / step_ms,
        }
    }
}

pub(super) fn run(args: &ScaleArgs, comm: &Arc<dyn Communicator>) -> Result<(), CliError> {
    Identity::of_command().require_equal(&**comm)?;
    let config = args.shared.config()?;
    let device = args.shared.common.open()?;
    let vocab = source::tokenizer(&config.data.tokenizer)?.vocab_size();
    require_training(&config, vocab, &device, comm.size())?;
    let mut trainer = training::new_trainer(&config, vocab, &device)?;
    let compute = alone(&mut trainer, &config, args.steps)?;
    let network = Network { latency_us: args.latency_us, gigabytes_per_second: args.bandwidth };
    let (batch, micro_batch) = (config.train.batch, config.train.micro_batch);
    let last = (batch - 1) % micro_batch.clamp(1, batch) + 1;
    let tokens = (batch * config.train.context) as u64;
    let params = trainer.model.params.clone();
    let row = |processes: u64| {
        let groups = model::exchange_groups(&params, processes as usize);
        let load = Load { groups, tokens, hides: 2.0 / 3.0 * last as f64 / batch as f64 };
        network.row(compute, &load, processes)
    };
    let measured = match comm.size() {
        1 => None,
        n => {
            let processes = gpu_peers::connect(&device, args.shared.common.threads, comm)?;
            Some(together(&mut trainer, &config, args.steps, &processes, row(n as u64).step_ms)?)
        }
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
    processes: &Processes,
    estimated_ms: f64,
) -> Result<Measured, CliError> {
    let Processes { comm, gpus, .. } = processes;
    trainer.shards = comm.size();
    trainer.join(processes)?;
    let (context, vocab) = (config.train.context, trainer.model.config().vocab);
    let batch = config.train.batch * comm.size();
    let [mut step_ms, mut exchange_ms, mut exposed_ms] = [const { Vec::new() }; 3];
    for step in 0..WARM_UP + steps {
        let mut examples =
            bench_model::random_windows(config.train.seed, step * batch, batch, [context, vocab]);
        let targets = normalize_loss_weights(&mut examples);
        comm.barrier()?;
        let clock = Instant::now();
        let gradient = trainer.gradient(&examples, LogitsProcessing::default(), config.train.micro_batch)?;
        let exchange = gradient.exchange;
        trainer.apply(gradient, targets)?;
        if step >= WARM_UP {
            step_ms.push(clock.elapsed().as_secs_f64() * 1e3);
            exchange_ms.push(exchange.total.as_secs_f64() * 1e3);
            exposed_ms.push(exchange.exposed.as_secs_f64() * 1e3);
        }
    }
    let on_host = gpus.is_none();
    let spread = |samples| Spread::of(samples).expect("at least one step was measured");
    Ok(Measured {
        processes: comm.size(),
        step_ms: spread(step_ms),
        exchange_ms: on_host.then(|| spread(exchange_ms)),
        exposed_ms: on_host.then(|| spread(exposed_ms)),
        estimated_ms,
    })
}

impl Measured {
    fn text(&self) -> String {
        let Measured { processes, step_ms, exchange_ms, exposed_ms, estimated_ms } = self;
        let exchange = match (exchange_ms, exposed_ms) {
            (Some(all), Some(exposed)) => format!(
                "{:.2} ms per step, of which {:.2} ms are not hidden behind the backward pass",
                all.p50, exposed.p50
            ),
            _ => "between GPUs, its time is not measured".to_string(),
        };
        format!(
            "{processes} processes: {:.2} ms per step (median of {}), estimated {estimated_ms:.2} ms\n\
             exchange of gradients: {exchange}\n",
            step_ms.p50, step_ms.n
        )
    }
}

/// Up to how many processes a doubling gives at least 1.5 times the speed, in words.
fn scaling_limit(estimate: &[Row]) -> String {
    let too_slow = |two: &&[Row]| two[1].tokens_per_second < 1.5 * two[0].tokens_per_second;
    match estimate.windows(2).find(too_slow) {
        Some(two) => format!("twice {} processes are less than 1.5 times as fast", two[0].processes),
        None => "twice as many processes are always at least 1.5 times as fast".to_string(),
    }
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
        text += &self.measured.as_ref().map(Measured::text).unwrap_or_default();
        if self.estimate.is_empty() {
            return text;
        }
        let mut table = Table::new(
            &[],
            &["processes", "tok/s", "ms per step", "exchange", "hidden", "bytes", "efficiency"],
        );
        for row in &self.estimate {
            table.row([
                row.processes.to_string(),
                format!("{:.0}", row.tokens_per_second),
                format!("{:.2}", row.step_ms),
                format!("{:.2}", row.exchange_ms),
                format!("{:.2}", row.hidden_ms),
                units::bytes(row.bytes),
                format!("{:.2}", row.efficiency),
            ]);
        }
        let end = scaling_limit(&self.estimate);
        let Network { latency_us, gigabytes_per_second } = network;
        format!(
            "{text}\n{}\n{end}\nAn estimate for a latency of {latency_us} us and {gigabytes_per_second} GB/s. Hidden: \
             the gradients of a layer are exchanged during the backward pass of those before it.\n",
            table.render()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Config, Model};
    use crate::tensor::{Device, Dtype};

    const COMPUTE: Compute = Compute { gradient: 100.0, update: 10.0, add: 2.0 };

    fn load(groups: &[usize], tokens: u64) -> Load {
        Load { groups: groups.to_vec(), tokens, hides: 0.5 }
    }

    #[test]
    fn a_measurement_and_the_limit_are_described() {
        let spread = |samples: &[f64]| Spread::of(samples.to_vec()).unwrap();
        let measured = Measured {
            processes: 4,
            step_ms: spread(&[2.0, 3.0, 9.0]),
            exchange_ms: Some(spread(&[1.25])),
            exposed_ms: Some(spread(&[0.5])),
            estimated_ms: 2.125,
        };
        let want = "4 processes: 3.00 ms per step (median of 3), estimated 2.12 ms\nexchange of gradients: 1.25 ms per \
                    step, of which 0.50 ms are not hidden behind the backward pass\n";
        assert_eq!(measured.text(), want);
        let on_gpus = Measured { exposed_ms: None, exchange_ms: None, ..measured };
        assert!(on_gpus.text().ends_with("exchange of gradients: between GPUs, its time is not measured\n"));
        let row = |processes, tokens_per_second| Row {
            processes,
            tokens_per_second,
            step_ms: 0.0,
            exchange_ms: 0.0,
            hidden_ms: 0.0,
            bytes: 0,
            efficiency: 0.0,
        };
        let rows = [row(1, 100.0), row(2, 150.0), row(4, 224.0), row(8, 230.0)];
        assert_eq!(scaling_limit(&rows), "twice 2 processes are less than 1.5 times as fast");
        assert_eq!(
            scaling_limit(&rows[..2]),
            "twice as many processes are always at least 1.5 times as fast"
        );
        let model = Model::init(&Config::tiny(), Dtype::F32, &Device::cpu(), 1).unwrap();
        let mut report = Report {
            model: BenchModel::new("tiny".into(), &model),
            context: 8,
            batch_per_process: 2,
            compute_ms: COMPUTE,
            network: Network { latency_us: 5.0, gigabytes_per_second: 1.0 },
            measured: Some(on_gpus),
            estimate: Vec::new(),
        };
        let text = report.text();
        assert!(text.contains("2 windows of 8 tokens") && text.contains("4 processes: 3.00 ms"), "{text}");
        (report.measured, report.estimate) = (None, rows.to_vec());
        let text = report.text();
        assert!(text.contains("twice 2 processes") && !text.contains("4 processes: "), "{text}");
    }

    #[test]
    fn a_step_of_one_process_exchanges_nothing() {
        let network = Network { latency_us: 5.0, gigabytes_per_second: 1.0 };
        let row = network.row(COMPUTE, &load(&[1_000_000], 550), 1);
        let want = Row {
            processes: 1,
            tokens_per_second: 550.0 / 110.0 * 1e3,
            step_ms: 110.0,
            exchange_ms: 0.0,
            hidden_ms: 0.0,
            bytes: 0,
            efficiency: 1.0,
        };
        assert_eq!(row, want);
    }

    #[test]
    fn the_bytes_are_two_copies_of_the_parameters_less_the_own_part() {
        let network = Network { latency_us: 1000.0, gigabytes_per_second: 1.0 };
        let row = network.row(COMPUTE, &load(&[1_000_000], 1), 4);
        assert_eq!(row.bytes, 6_000_000);
        // 3 messages of gradients, 3 of weights and 3 times 2 short ones of 1 ms, and 6 MB at 1 GB/s
        assert_eq!((row.exchange_ms, row.hidden_ms), (12.0 + 6.0, 0.0));
        assert_eq!(row.step_ms, 100.0 + 1.5 + 2.5 + 18.0);
    }

    #[test]
    fn all_groups_but_the_first_are_hidden_as_long_as_the_backward_pass_takes() {
        let network = Network { latency_us: 0.0, gigabytes_per_second: 1.0 };
        // 4 and 12 MB, of which each of two processes receives half
        let row = network.row(COMPUTE, &load(&[1_000_000, 3_000_000], 1), 2);
        assert_eq!((row.exchange_ms, row.hidden_ms), (2.0 + 6.0 + 8.0, 6.0));
        let slow = Network { gigabytes_per_second: 0.01, ..network };
        assert_eq!(slow.row(COMPUTE, &load(&[1_000_000, 3_000_000], 1), 2).hidden_ms, 50.0);
    }
}
