//! The ways in which the same rollouts are computed.
use crate::decode::KvKind;
use crate::tensor::{Device, Simd};

/// One way to compute the same rollouts.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Where keys and values are kept.
    pub kv: KvKind,
    /// The most rows of one prompt in a step; none: the whole prompt.
    pub chunk: Option<usize>,
    /// Whether completions of one prompt share it.
    pub prompts: Prompts,
    /// The most sequences at a time.
    pub batch: usize,
    /// Who computes: a processor with its threads and instructions, or a GPU.
    pub device: Device,
}

/// How completions of one prompt get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prompts {
    /// Each computes it.
    Own,
    /// One computes it for all whose ids follow each other; the others fork.
    Shared,
}

/// What a caller asks to be checked beside the fixed settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResolvedGeneration {
    /// Threads.
    pub threads: usize,
    /// Where keys and values are kept.
    pub kv: KvKind,
    /// The most rows of one prompt in a step.
    pub chunk: Option<usize>,
}

/// The settings that are checked: what was asked for first; then every cache, pages smaller and larger
/// than a chunk of keys, prompts whole and in pieces, computed by each and shared, one sequence at a time
/// and all at once; on the processor with one thread and `threads`, and every instruction set of this
/// machine; on a GPU, there alone.
pub fn settings(requests: usize, asked: &ResolvedGeneration, device: &Device) -> Vec<Setting> {
    use Prompts::{Own, Shared};
    let threads = asked.threads;
    let all = requests.max(1);
    let widest = Simd::detect();
    let row = |kv, (chunk, prompts), (batch, threads)| {
        let device = match device {
            Device::Cpu(_) => Device::cpu_with(threads, widest),
            other => other.clone(),
        };
        Setting { kv, chunk, prompts, batch, device }
    };
    let mut rows = vec![
        row(asked.kv, (asked.chunk, Shared), (all, threads)),
        row(KvKind::Off, (None, Own), (all, 1)),
        row(KvKind::Growing, (None, Own), (1, 1)),
        row(KvKind::Growing, (Some(7), Shared), (all, threads)),
        row(KvKind::Contiguous, (None, Shared), (2, threads)),
        row(KvKind::Contiguous, (Some(1), Own), (all, 1)),
        row(KvKind::Paged { page: 1 }, (None, Shared), (all, threads)),
        row(KvKind::Paged { page: 5 }, (Some(3), Shared), (2, 1)),
        row(KvKind::Paged { page: 16 }, (None, Own), (all, threads)),
        row(KvKind::Paged { page: 16 }, (Some(1), Shared), (3, threads + 1)),
        row(KvKind::Paged { page: 100 }, (Some(11), Own), (all, threads)),
    ];
    if let Device::Cpu(_) = device {
        let others = Simd::available().filter(|&s| s != widest);
        let paged = row(KvKind::Paged { page: 16 }, (None, Shared), (all, 1));
        rows.extend(others.map(|simd| Setting { device: Device::cpu_with(1, simd), ..paged.clone() }));
    }
    rows
}
