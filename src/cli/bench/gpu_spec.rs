//! Data sheets of GPUs, and the time of a kernel launch that follows from them.
use clap::ValueEnum;
use serde::Serialize;

use crate::tensor::KernelLaunch;

/// A GPU whose step times can be estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TargetGpu {
    /// NVIDIA H200 SXM.
    H200,
    /// NVIDIA H100 SXM, 80 GB.
    H100,
    /// NVIDIA A100 SXM, 80 GB.
    A100,
    /// NVIDIA GeForce RTX 4090.
    #[value(name = "4090")]
    #[serde(rename = "4090")]
    Rtx4090,
}

/// Figures of NVIDIA's data sheets and architecture white papers, dense, at boost clock.
#[derive(Debug, Clone, Copy)]
struct GpuSpec {
    multiprocessors: u64,
    clock_hz: f64,
    bytes_per_second: f64,
    /// bf16 products with f32 accumulation, an fma counting as two operations.
    bf16_per_second: f64,
    f32_per_second: f64,
}

/// Fraction of the data sheet's bandwidth that a copy reaches: 4.3 of 4.8 TB/s on an H200.
const BANDWIDTH: f64 = 0.9;
/// Fraction of the data sheet's operations that a matrix product reaches: 790 of 989 TFLOP/s in bf16 on an H200.
const COMPUTE: f64 = 0.8;
/// Bytes per clock between the L2 cache and one multiprocessor.
const L2_BYTES: f64 = 64.0;
/// Clocks from a load to its value in the L2 cache: an assumption for all GPUs. A value in memory takes longer.
const ROUND_TRIP: f64 = 280.0;
/// Seconds from the end of a graph node to the start of the next, as others measured it on an H100.
const NODE: f64 = 1.3e-6;
/// The same with dependent launch: an assumption. Its kernels are resident and their weights on the way to L2 when the
/// previous kernel ends; what remains is the end of that kernel and the release of those that wait.
const DEPENDENT_NODE: f64 = 0.65e-6;

impl TargetGpu {
    fn spec(self) -> GpuSpec {
        let [multiprocessors, mhz, gb, bf16, f32] = match self {
            TargetGpu::H200 => [132, 1830, 4800, 989_000, 67_000],
            TargetGpu::H100 => [132, 1830, 3350, 989_000, 67_000],
            TargetGpu::A100 => [108, 1410, 2039, 312_000, 19_500],
            TargetGpu::Rtx4090 => [128, 2520, 1008, 165_200, 82_600],
        };
        GpuSpec {
            multiprocessors,
            clock_hz: mhz as f64 * 1e6,
            bytes_per_second: gb as f64 * 1e9,
            bf16_per_second: bf16 as f64 * 1e9,
            f32_per_second: f32 as f64 * 1e9,
        }
    }

    pub(super) fn multiprocessors(self) -> u64 {
        self.spec().multiprocessors
    }

    /// Seconds between two nodes, and with dependent launch, which needs sm_90.
    pub(super) fn gaps(self) -> (f64, Option<f64>) {
        (NODE, self.is_hopper().then_some(DEPENDENT_NODE))
    }

    /// Whether it has `wgmma` and dependent launch.
    pub(super) fn is_hopper(self) -> bool {
        matches!(self, TargetGpu::H200 | TargetGpu::H100)
    }

    /// The latency chain of a launch in seconds: its dependent round trips to the L2 cache.
    pub(super) fn latency(self, launch: &KernelLaunch) -> f64 {
        launch.round_trips as f64 * ROUND_TRIP / self.spec().clock_hz
    }

    /// The lower bound of the time of a launch in seconds, with the gap before the next one: the maximum of the
    /// memory time, the compute time and the latency chain. A launch with fewer blocks than multiprocessors reads only
    /// as fast as its multiprocessors can, and computes only on them; the last wave of tiles also leaves some idle.
    pub(super) fn seconds(self, launch: &KernelLaunch) -> f64 {
        let spec = self.spec();
        let active = launch.blocks.min(spec.multiprocessors) as f64;
        let bandwidth = (spec.bytes_per_second * BANDWIDTH).min(active * L2_BYTES * spec.clock_hz);
        let waves = launch.tiles.div_ceil(spec.multiprocessors) * spec.multiprocessors;
        let busy = launch.tiles as f64 / waves as f64;
        let bf16 = launch.kernel.contains("_bf16");
        let rate = if bf16 { spec.bf16_per_second } else { spec.f32_per_second };
        let compute = launch.operations as f64 / (rate * COMPUTE * busy);
        NODE + compute.max(launch.bytes as f64 / bandwidth).max(self.latency(launch))
    }

    /// The time of `bytes` and `operations` on the whole device at the rates of the data sheet, in seconds.
    pub(super) fn ideal_seconds(self, bytes: u64, operations: u64, bf16: bool) -> f64 {
        let spec = self.spec();
        let rate = if bf16 { spec.bf16_per_second } else { spec.f32_per_second };
        (bytes as f64 / spec.bytes_per_second).max(operations as f64 / rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(kernel: &'static str, blocks: u64, bytes: u64, operations: u64) -> KernelLaunch {
        KernelLaunch { kernel, blocks, threads: 128, tiles: blocks, bytes, operations, round_trips: 0 }
    }

    #[test]
    fn a_launch_takes_the_longer_of_memory_and_compute_time_and_the_gap() {
        let us = |l: KernelLaunch| (TargetGpu::H200.seconds(&l) * 1e6 * 1e3).round() / 1e3;
        // 4.32 GB at 4.32 TB/s: 1 ms; and 1.3 us between two nodes
        assert_eq!(us(launch("linear_bf16_128", 132, 4_320_000_000, 0)), 1001.3);
        // 791.2 Gop at 791.2 Top/s: 1 ms; f32: 53.6 Top/s
        assert_eq!(us(launch("linear_bf16_128", 264, 0, 791_200_000_000)), 1001.3);
        assert_eq!(us(launch("linear_f32_128", 132, 0, 53_600_000_000)), 1001.3);
        // half of the multiprocessors compute half as fast
        assert_eq!(us(launch("linear_bf16_128", 66, 0, 791_200_000_000)), 2001.3);
        // 133 blocks are two waves
        assert_eq!(us(launch("linear_bf16_128", 133, 0, 791_200_000_000 / 264 * 133)), 1001.3);
        // 133 tiles of 132 blocks are, too
        let persistent = launch("linear_bf16_wgmma", 132, 0, 791_200_000_000 / 264 * 133);
        assert_eq!(us(KernelLaunch { tiles: 133, ..persistent }), 1001.3);
        // 1830 round trips of 280 clocks at 1830 MHz
        assert_eq!(us(KernelLaunch { round_trips: 1830, ..launch("add_f32", 132, 0, 0) }), 281.3);
        // one multiprocessor reads 64 bytes per clock
        assert_eq!(us(launch("rms_norm_f32", 1, 64 * 1830, 0)), 2.3);
    }

    #[test]
    fn the_ideal_time_is_that_of_the_whole_device() {
        let ms = |bytes, ops, bf16| TargetGpu::H200.ideal_seconds(bytes, ops, bf16) * 1e3;
        assert_eq!(ms(4_800_000_000, 0, true), 1.0);
        assert_eq!(ms(0, 989_000_000_000, true), 1.0);
        assert_eq!(ms(0, 67_000_000_000, false), 1.0);
    }

    #[test]
    fn an_h100_has_the_arithmetic_of_an_h200_and_less_bandwidth() {
        let both =
            |bytes, ops| [TargetGpu::H100, TargetGpu::H200].map(|gpu| gpu.ideal_seconds(bytes, ops, true));
        assert_eq!(both(0, 989_000_000_000), [1e-3; 2]);
        assert_eq!(both(33_500_000_000, 0)[0], 1e-2);
        assert_eq!(TargetGpu::H100.gaps(), TargetGpu::H200.gaps());
        assert_eq!(TargetGpu::A100.gaps().1, None);
    }
}
