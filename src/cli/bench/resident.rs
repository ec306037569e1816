//! The memory that this process has in use, as the system counts it.

/// Bytes of resident memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resident {
    /// Now.
    pub(super) now: u64,
    /// The most since the process began.
    pub(super) most: u64,
}

/// What the system says of this process; none where it does not (it is Linux that does).
pub(super) fn resident() -> Option<Resident> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let bytes = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
    };
    Some(Resident { now: bytes("VmRSS:")?, most: bytes("VmHWM:")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::testing::alone;

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_was_written_to_is_in_the_peak() {
        if !alone("cli::bench::resident::tests::memory_that_was_written_to_is_in_the_peak") {
            return;
        }
        let before = resident().unwrap();
        // more than there was at any time beside what is there now
        let bytes = before.most - before.now + (48 << 20);
        drop(std::hint::black_box(vec![1u8; bytes as usize]));
        let after = resident().unwrap();
        assert!(after.most >= before.most + (24 << 20) && after.most >= after.now, "{before:?}, {after:?}");
    }
}
