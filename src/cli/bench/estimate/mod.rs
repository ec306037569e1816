//! `--estimate` of `xtrain bench decode` and `bench train`: the kernel launches of a step, recorded from the host
//! code, and the lower bound of their time on a GPU that need not be present.
mod recorded;

use std::collections::BTreeMap;

use serde::Serialize;

use super::args::{BenchTrainArgs, DecodeArgs};
use super::gpu_spec::TargetGpu;
use crate::cli::{CliError, out};
use crate::report::{Table, units};
use crate::tensor::KernelLaunch;

/// Text below every estimate.
const NOT_MODELLED: &str = "\
An estimate, not a measurement: each launch takes the maximum of its memory time (at 90 % of the
data sheet's bandwidth), its compute time (at 80 %) and its latency chain (dependent round trips of a
block, 280 clocks each), and 1.3 us pass between two launches. Waits within a block, traffic of the
L2 cache and bank conflicts are not modelled: a device is slower.
";
/// Text below an estimate with dependent launch.
const ASSUMED: &str = "\
With dependent launch, the default on sm_90 and later, the estimate assumes 0.65 us between two launches.
";

/// Estimates the decode step in the middle of the new tokens.
pub(super) fn decode(args: &DecodeArgs, gpu: TargetGpu) -> Result<(), CliError> {
    Estimate::new(&recorded::decode(args, gpu)?, gpu).print(args.shared.json)
}

/// Estimates a training step.
pub(super) fn train(args: &BenchTrainArgs, gpu: TargetGpu) -> Result<(), CliError> {
    Estimate::new(&recorded::train(args, gpu)?, gpu).print(args.shared.json)
}

/// The estimate of one step.
#[derive(Debug, Serialize)]
struct Estimate {
    model: String,
    gpu: TargetGpu,
    workload: String,
    tokens_per_step: usize,
    step_us: f64,
    tokens_per_second: f64,
    /// The same if the next kernel starts while the previous one ends. Absent: the GPU has no dependent launch.
    dependent_us: Option<f64>,
    dependent_tokens_per_second: Option<f64>,
    /// Lower bound of any implementation: each byte and operation that the step needs, once, on the whole device.
    ideal_us: f64,
    launches: usize,
    /// Launches of each layer: of kernels that run in every layer.
    launches_per_layer: usize,
    kernels: Vec<KernelRow>,
}

/// Launches of a step with the same kernel, grid and operand sizes.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct KernelRow {
    kernel: &'static str,
    launches: usize,
    blocks: u64,
    /// Output tiles of products by wgmma, of which a block computes several; otherwise the blocks.
    tiles: u64,
    /// Bytes and operations of one launch.
    bytes: u64,
    operations: u64,
    /// The latency chain of one launch.
    latency_us: f64,
    /// Time of one launch, with the gap before the next one.
    us: f64,
}

impl KernelRow {
    /// The rows of a step, by decreasing total time.
    fn of(launches: &[KernelLaunch], gpu: TargetGpu) -> Vec<KernelRow> {
        let mut rows: Vec<KernelRow> = Vec::new();
        for launch in launches {
            let &KernelLaunch { kernel, blocks, tiles, bytes, operations, .. } = launch;
            let (us, latency_us) = (gpu.seconds(launch) * 1e6, gpu.latency(launch) * 1e6);
            let new = KernelRow { kernel, launches: 1, blocks, tiles, bytes, operations, latency_us, us };
            match rows.iter_mut().find(|row| KernelRow { launches: 1, ..(*row).clone() } == new) {
                Some(row) => row.launches += 1,
                None => rows.push(new),
            }
        }
        rows.sort_by(|a, b| b.total().total_cmp(&a.total()));
        rows
    }

    fn total(&self) -> f64 {
        self.us * self.launches as f64
    }
}

impl Estimate {
    fn new(step: &recorded::Step, gpu: TargetGpu) -> Estimate {
        let kernels = KernelRow::of(&step.launches, gpu);
        let step_us: f64 = kernels.iter().map(KernelRow::total).sum();
        let mut of_kernels = BTreeMap::<&str, usize>::new();
        step.launches.iter().for_each(|launch| *of_kernels.entry(launch.kernel).or_default() += 1);
        let [bytes, operations] = step.ideal.needs();
        let per_second = |us: f64| step.tokens as f64 / us * 1e6;
        let (gap, dependent) = gpu.gaps();
        let saved = |gap_then: f64| (gap - gap_then) * 1e6 * step.launches.len() as f64;
        let dependent_us = dependent.map(|gap| step_us - saved(gap));
        Estimate {
            model: step.model.clone(),
            gpu,
            workload: step.workload.clone(),
            tokens_per_step: step.tokens,
            step_us,
            tokens_per_second: per_second(step_us),
            dependent_us,
            dependent_tokens_per_second: dependent_us.map(per_second),
            ideal_us: gpu.ideal_seconds(bytes, operations, step.bf16) * 1e6,
            launches: step.launches.len(),
            launches_per_layer: of_kernels.values().map(|launches| launches / step.layers).sum(),
            kernels,
        }
    }

    fn print(&self, json: bool) -> Result<(), CliError> {
        if json { out::print_json(self) } else { out::print(self.text()) }
    }

    fn text(&self) -> String {
        let sms = self.gpu.multiprocessors();
        let columns =
            ["launches", "blocks", "waves", "bytes", "operations", "latency us", "us", "us in total"];
        let mut table = Table::new(&["kernel"], &columns);
        for row in &self.kernels {
            table.row([
                row.kernel.to_string(),
                row.launches.to_string(),
                row.blocks.to_string(),
                format!("{:.2}", row.tiles as f64 / sms as f64),
                units::bytes(row.bytes),
                units::count(row.operations),
                format!("{:.2}", row.latency_us),
                format!("{:.2}", row.us),
                format!("{:.1}", row.total()),
            ]);
        }
        let mut sum = Table::new(&["step"], &[""]);
        sum.row(["kernel launches", &format!("{} ({} per layer)", self.launches, self.launches_per_layer)]);
        sum.row(["estimated time", &format!("{:.1} us", self.step_us)]);
        sum.row(["estimated rate", &units::rate(self.tokens_per_second, "tok")]);
        if let Some((us, rate)) = self.dependent_us.zip(self.dependent_tokens_per_second) {
            sum.row(["with dependent launch", &format!("{us:.1} us, {}", units::rate(rate, "tok"))]);
        }
        sum.row(["lower bound of any implementation", &format!("{:.1} us", self.ideal_us)]);
        let Estimate { model, workload, .. } = self;
        let assumed = if self.dependent_us.is_some() { ASSUMED } else { "" };
        format!("{model}{workload}\n\n{}\n{}\n{NOT_MODELLED}{assumed}", table.render(), sum.render())
    }
}
