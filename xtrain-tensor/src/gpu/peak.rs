//! Theoretical peak throughput of a GPU, from clocks and widths.

/// Theoretical peak throughput: the product of clocks and widths. No kernel reaches it; benchmarks report achieved
/// throughput as a fraction of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak {
    /// Memory bandwidth in bytes per second.
    pub bytes_per_second: f64,
    /// f32 operations per second on the FFMA units. One fma counts as two operations.
    pub f32_per_second: f64,
    /// Dense bf16 operations per second with f32 accumulation, on the tensor cores. One fma counts as two operations.
    pub bf16_per_second: f64,
}

/// Device properties reported by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Widths {
    /// Compute capability (major, minor).
    pub(super) capability: (i32, i32),
    pub(super) multiprocessors: i32,
    pub(super) clock_khz: i32,
    pub(super) memory_khz: i32,
    pub(super) bus_bits: i32,
}

impl Peak {
    /// Peak of a GPU with these properties. `None`: the driver does not report a property, or the architecture is unknown.
    ///
    /// Operations per multiprocessor and cycle are from NVIDIA's architecture white papers (an fma counts as two). Memory
    /// transfers twice per cycle.
    pub(super) fn of(widths: Widths) -> Option<Peak> {
        let (ffma, tensor) = match widths.capability {
            (8, 0) => (128, 2048),
            (8, _) => (256, 1024),
            (9, _) => (256, 4096),
            (10, _) => (256, 8192),
            (12, _) => (256, 1024),
            _ => return None,
        };
        let reported = |n: i32| (n > 0).then_some(f64::from(n));
        let cycles = reported(widths.multiprocessors)? * reported(widths.clock_khz)? * 1e3;
        let bits = 2.0 * reported(widths.memory_khz)? * 1e3 * reported(widths.bus_bits)?;
        Some(Peak {
            bytes_per_second: bits / 8.0,
            f32_per_second: cycles * f64::from(ffma),
            bf16_per_second: cycles * f64::from(tensor),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_match_the_data_sheets() {
        let h200 = Widths {
            capability: (9, 0),
            multiprocessors: 132,
            clock_khz: 1_830_000,
            memory_khz: 3_201_000,
            bus_bits: 6144,
        };
        let peak = Peak::of(h200).unwrap();
        // 4.9 TB/s, 62 and 989 TFLOP/s
        assert_eq!(peak.bytes_per_second, 4.916736e12);
        assert!((peak.f32_per_second - 61.8e12).abs() < 0.1e12);
        assert!((peak.bf16_per_second - 989.4e12).abs() < 0.1e12);
        assert_eq!(Peak::of(Widths { clock_khz: 0, ..h200 }), None);
        assert_eq!(Peak::of(Widths { bus_bits: 0, ..h200 }), None);
        assert_eq!(Peak::of(Widths { capability: (7, 5), ..h200 }), None);
    }
}
