//! The resident memory of this process.

/// Resident memory in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident {
    /// Current value.
    pub(crate) now: u64,
    /// Maximum since the process started.
    pub(crate) peak: u64,
}

impl Resident {
    /// The resident memory of this process. `None`: not available; only Linux reports it.
    pub(crate) fn measure() -> Option<Resident> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let bytes = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
        };
        Some(Resident { now: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::testing::alone;

    #[test]
    #[cfg(target_os = "linux")]
    fn written_memory_counts_towards_the_peak() {
        if !alone("report::resident::tests::written_memory_counts_towards_the_peak") {
            return;
        }
        let before = Resident::measure().unwrap();
        // More than the difference between the peak so far and the current value.
        let bytes = before.peak - before.now + (48 << 20);
        drop(std::hint::black_box(vec![1u8; bytes as usize]));
        let after = Resident::measure().unwrap();
        assert!(after.peak >= before.peak + (24 << 20) && after.peak >= after.now, "{before:?}, {after:?}");
    }
}
