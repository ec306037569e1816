//! What a GPU could do at most: its clocks times its widths.

/// The most that a GPU's clocks and widths allow, which nothing reaches: what measured times are held against.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak {
    /// Bytes of its memory that can be moved in a second.
    pub bytes_per_second: f64,
    /// Multiplications and additions in f32, on its plain units.
    pub f32_per_second: f64,
    /// Multiplications and additions in bf16 with f32 sums, dense, on its tensor cores.
    pub bf16_per_second: f64,
}

/// What the driver tells of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Widths {
    /// The two numbers of its architecture.
    pub(super) capability: (i32, i32),
    pub(super) multiprocessors: i32,
    pub(super) clock_khz: i32,
    pub(super) memory_khz: i32,
    pub(super) bus_bits: i32,
}

impl Peak {
    /// Of a GPU with such widths; none where its driver does not tell them, or its architecture is not known here.
    ///
    /// Operations of a multiprocessor in a cycle are those of NVIDIA's architecture white papers (an fma is two);
    /// memory moves twice in a cycle.
    pub(super) fn of(widths: Widths) -> Option<Peak> {
        let (plain, tensor) = match widths.capability {
            (8, 0) => (128, 2048),
            (8, _) => (256, 1024),
            (9, _) => (256, 4096),
            (10, _) => (256, 8192),
            (12, _) => (256, 1024),
            _ => return None,
        };
        let told = |n: i32| (n > 0).then_some(f64::from(n));
        let cycles = told(widths.multiprocessors)? * told(widths.clock_khz)? * 1e3;
        let bits = 2.0 * told(widths.memory_khz)? * 1e3 * told(widths.bus_bits)?;
        Some(Peak {
            bytes_per_second: bits / 8.0,
            f32_per_second: cycles * f64::from(plain),
            bf16_per_second: cycles * f64::from(tensor),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_those_of_the_data_sheets() {
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
