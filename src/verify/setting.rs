//! The settings in which the same rollouts are computed.
use crate::decode::{KvKind, Speculation};
use crate::tensor::{Device, Simd};

/// One way to compute the same rollouts.
#[derive(Debug, Clone)]
pub struct Setting {
    /// KV cache.
    pub kv: KvKind,
    /// Maximum prompt tokens per forward pass. `None`: the whole prompt.
    pub chunk: Option<usize>,
    /// Whether the completions of a prompt share its prefill.
    pub prompts: Prompts,
    /// Maximum number of concurrent sequences.
    pub batch: usize,
    /// The room of the cache.
    pub room: CacheRoom,
    /// Maximum number of decode steps of a GPU between two synchronizations. With more than 1 the host receives no
    /// logits: only tokens and log-probabilities are compared.
    pub steps_per_sync: usize,
    /// Where drafted tokens come from. With drafts, only tokens and log-probabilities are compared: the rows of rejected
    /// tokens belong to no sequence.
    pub speculation: Speculation,
    /// The device: the CPU with its threads and SIMD instruction set, or a GPU.
    pub device: Device,
}

/// The room of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheRoom {
    /// For all running sequences.
    AllSequences,
    /// For the longest sequence and one page: sequences are preempted and computed again.
    OneSequence,
}

/// How the completions of one prompt are prefilled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prompts {
    /// Each completion computes the prompt.
    Own,
    /// The prompt is computed once for completions with consecutive ids.
    Shared,
}

impl Setting {
    /// Whether logits are compared, not only tokens and log-probabilities.
    pub(super) fn has_logits(&self) -> bool {
        self.steps_per_sync == 1 && self.speculation == Speculation::Off
    }
}

/// The setting that the caller requests in addition to the fixed ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestedSetting {
    /// CPU threads.
    pub threads: usize,
    /// KV cache.
    pub kv: KvKind,
    /// Maximum prompt tokens per forward pass. `None`: the whole prompt.
    pub chunk: Option<usize>,
}

/// The settings to verify: first the requested one; then every cache, pages smaller and larger than an attention
/// chunk, whole and chunked prompts, own and shared prompts, one sequence at a time and all at once, a cache with room
/// for one sequence, and drafted tokens. On the CPU with one thread and with `threads`, and with every SIMD instruction
/// set of this machine; on a GPU only on that GPU, also with eight steps between two synchronizations.
pub fn settings(requests: usize, requested: &RequestedSetting, device: &Device) -> Vec<Setting> {
    use Prompts::{Own, Shared};
    let threads = requested.threads;
    let all = requests.max(1);
    let simd = device.simd().unwrap_or(Simd::Portable);
    let setting = |kv, chunk, prompts, batch, threads| {
        let device = match device {
            Device::Cpu(_) => Device::cpu_with(threads, simd),
            other => other.clone(),
        };
        let (room, speculation) = (CacheRoom::AllSequences, Speculation::Off);
        Setting { kv, chunk, prompts, batch, room, steps_per_sync: 1, speculation, device }
    };
    let mut rows = vec![
        setting(requested.kv, requested.chunk, Shared, all, threads),
        setting(KvKind::Off, None, Own, all, 1),
        setting(KvKind::Growing, None, Own, 1, 1),
        setting(KvKind::Growing, Some(7), Shared, all, threads),
        setting(KvKind::Contiguous, None, Shared, 2, threads),
        setting(KvKind::Contiguous, Some(1), Own, all, 1),
        setting(KvKind::Paged { page: 1 }, None, Shared, all, threads),
        setting(KvKind::Paged { page: 5 }, Some(3), Shared, 2, 1),
        setting(KvKind::Paged { page: 16 }, None, Own, all, threads),
        setting(KvKind::Paged { page: 16 }, Some(1), Shared, 3, threads + 1),
        setting(KvKind::Paged { page: 100 }, Some(11), Own, all, threads),
    ];
    let preempting = setting(KvKind::Paged { page: 4 }, Some(9), Own, all, threads);
    rows.push(Setting { room: CacheRoom::OneSequence, ..preempting });
    let drafting = setting(KvKind::Paged { page: 16 }, None, Shared, all, threads);
    rows.push(Setting { speculation: Speculation::PromptLookup, ..drafting });
    if let Device::Gpu(_) = device {
        let ahead = setting(KvKind::Paged { page: 16 }, None, Shared, all, 1);
        let room = CacheRoom::OneSequence;
        rows.push(Setting { steps_per_sync: 8, ..ahead.clone() });
        rows.push(Setting { steps_per_sync: 8, room, prompts: Own, ..ahead });
    }
    if let Device::Cpu(_) = device {
        let others = Simd::available().filter(|&s| s != simd);
        let paged = setting(KvKind::Paged { page: 16 }, None, Shared, all, 1);
        rows.extend(others.map(|simd| Setting { device: Device::cpu_with(1, simd), ..paged.clone() }));
    }
    rows
}
