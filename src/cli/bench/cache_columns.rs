//! The caches that `xtrain bench cache-kinds` compares.
use super::workload::Workload;
use crate::cli::offload_place;
use crate::cli::{CliError, Exit};
use crate::decode::{CacheShape, EngineOptions, KvKind, KvMemory, LayerOffload, Room};
use crate::model::Model;
use crate::tensor::Device;

/// A kind of cache, and whether two layers of it are in the memory of the device and the others offloaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) kv: KvKind,
    pub(super) offloads: bool,
}

/// The columns, with pages of `page` tokens. The sinks cache has half of the positions of a sequence of `len` tokens.
pub(super) fn columns(page: usize, len: usize) -> [Column; 6] {
    let of = |kv| Column { kv, offloads: false };
    let paged = KvKind::Paged { page };
    let sinks = KvKind::SINKS.min(len / 4);
    let window = (len / 2).saturating_sub(sinks).max(1);
    [
        of(KvKind::Growing),
        of(KvKind::Contiguous),
        of(paged),
        of(KvKind::Int8 { page }),
        of(KvKind::Sinks { sinks, window }),
        Column { kv: paged, offloads: true },
    ]
}

impl Column {
    pub(super) fn name(self) -> String {
        let offloads = if self.offloads { ", layers offloaded" } else { "" };
        format!("{}{offloads}", self.kv)
    }

    /// Slots of a cache of `budget` bytes in the memory of the device, in whole pages.
    pub(super) fn slots(self, model: &Model, budget: usize) -> usize {
        let page = self.kv.page().unwrap_or(1);
        let bytes = if self.offloads {
            // with the share of each slot in the checksums
            let many = Room { sequences: 1, positions: 1 << 20, slots: None };
            LayerOffload::least_resident(self.kv, model, many).div_ceil(1 << 20)
        } else {
            CacheShape::of(model).stored_as(self.kv.dtype()).bytes_per_token()
        };
        budget / bytes / page * page
    }

    /// Checks that the sequences of `workload` fit into `slots` slots.
    pub(super) fn check(self, workload: Workload, slots: usize, budget_mib: usize) -> Result<(), CliError> {
        let len = workload.prompt_len + workload.max_new;
        let of_one = if self.kv.keeps_all() { len } else { self.kv.slots(len) };
        let want = workload.batch.saturating_mul(of_one);
        if slots >= want {
            return Ok(());
        }
        let cache = self.name();
        let message = format!(
            "--budget-mib {budget_mib}: expected room for {want} tokens, found {slots} in a {cache} cache"
        );
        let hint = "increase --budget-mib, or reduce --batch, --prompt-len or --max-new";
        Err(CliError::new(Exit::Usage, message).hint(hint))
    }

    /// The memory of the cache of an engine: with room for two layers, the others in a file, with a GPU in host memory.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(super) fn memory(self, model: &Model, options: &EngineOptions) -> Result<KvMemory, CliError> {
        if !self.offloads {
            return Ok(KvMemory::default());
        }
        let resident = LayerOffload::least_resident(self.kv, model, options.room(model.config()));
        let offload = match model.device() {
            Device::Gpu(_) => LayerOffload::in_memory(resident, usize::MAX),
            _ => offload_place::in_directory(&std::env::temp_dir(), resident, usize::MAX)?,
        };
        Ok(KvMemory::offloading(offload))
    }
}
