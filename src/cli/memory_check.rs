//! Rejects work that needs more memory than this process may use.
use super::estimate::{GrpoMemory, TrainingMemory};
use super::exit::{CliError, Exit};
use crate::config::RunConfig;
use crate::decode::{CacheShape, EngineOptions, KvKind, Request, Room};
use crate::memory_limit::memory_limit;
use crate::model::Model;
use crate::report::units;
use crate::tensor::Device;

/// Checks that `bytes` more bytes fit. `what` needs them; `hint` says how to need less. GPUs report their own memory.
pub(super) fn require(bytes: u64, device: &Device, what: &str, hint: &str) -> Result<(), CliError> {
    if device.gpu_counters().is_some() {
        return Ok(());
    }
    let Some(limit) = memory_limit().filter(|limit| bytes > limit.left) else { return Ok(()) };
    let message = format!(
        "not enough memory: {what} needs about {}, {} of {} are left ({})",
        units::bytes(bytes),
        units::bytes(limit.left),
        units::bytes(limit.bytes),
        limit.source
    );
    Err(CliError::new(Exit::Memory, message).hint(hint))
}

/// Checks that a training run fits.
pub(super) fn require_training(config: &RunConfig, vocab: usize, device: &Device) -> Result<(), CliError> {
    let needed = TrainingMemory::of(config, vocab)?;
    let hint = if needed.activations > needed.model.to_train() {
        "reduce train.micro_batch or train.context, or use --gradient-checkpointing"
    } else {
        "reduce the sizes in [model]"
    };
    require(needed.total(), device, "training", hint)
}

/// Checks that a run of reinforcement learning fits. `prompt` is the length of its longest prompt.
pub(super) fn require_grpo(config: &RunConfig, prompt: usize, device: &Device) -> Result<(), CliError> {
    let needed = GrpoMemory::of(config, prompt)?;
    let hint =
        "reduce grpo.num_generations, grpo.prompts_per_step, grpo.max_completion_length or grpo.micro_batch";
    require(needed.total(), device, "the run", hint)
}

/// Checks that the KV cache of an engine fits. `hint` says how to make it smaller.
pub(super) fn require_cache(model: &Model, options: &EngineOptions, hint: &str) -> Result<(), CliError> {
    let slots = allocated_slots(options.kv, options.room(model.config()));
    let bytes = slots.saturating_mul(CacheShape::of(model).bytes_per_token() as u64);
    require(bytes, model.device(), "the KV cache", hint)
}

/// The positions for which a cache allocates memory at its start.
fn allocated_slots(kv: KvKind, room: Room) -> u64 {
    let positions = match kv {
        KvKind::Off | KvKind::Growing => return 0,
        KvKind::Contiguous => room.positions as u64,
        KvKind::Paged { page } => room.positions.next_multiple_of(page) as u64,
    };
    room.slots.map_or(positions.saturating_mul(room.sequences as u64), |slots| slots as u64)
}

/// Checks that the KV cache for `requests` fits, of which `options.max_batch` run at a time.
pub(super) fn require_cache_of(
    model: &Model,
    requests: &[Request],
    options: EngineOptions,
) -> Result<(), CliError> {
    let max_seq_len = requests.iter().map(|request| request.required_len(model.config())).max();
    let max_batch = options.max_batch.min(requests.len().max(1));
    require_cache(model, &EngineOptions { max_seq_len, max_batch, ..options }, "use --kv growing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_counted_if_it_is_allocated_at_the_start() {
        let room = Room { sequences: 3, positions: 10, slots: None };
        assert_eq!(allocated_slots(KvKind::Growing, room), 0);
        assert_eq!(allocated_slots(KvKind::Off, room), 0);
        assert_eq!(allocated_slots(KvKind::Contiguous, room), 30);
        assert_eq!(allocated_slots(KvKind::Paged { page: 8 }, room), 48);
        assert_eq!(allocated_slots(KvKind::Growing, Room { slots: Some(7), ..room }), 0);
        assert_eq!(allocated_slots(KvKind::Contiguous, Room { slots: Some(7), ..room }), 7);
    }
}
