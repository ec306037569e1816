//! Rejects work that needs more memory than this process may use.
use super::estimate::{GrpoMemory, TrainingMemory};
use super::exit::{CliError, Exit};
use crate::config::RunConfig;
use crate::decode::{EngineOptions, KvKind, KvMemory, Request, Room};
use crate::memory_limit::memory_limit;
use crate::model::Model;
use crate::report::units;
use crate::tensor::Device;
use crate::tensor::faults::{self, Fault};

/// Checks that `bytes` more bytes fit. `what` needs them; `hint` says how to need less. GPUs report their own memory.
pub(super) fn require(bytes: u64, device: &Device, what: &str, hint: &str) -> Result<(), CliError> {
    if device.gpu_counters().is_some() { Ok(()) } else { require_host(bytes, what, hint) }
}

/// Checks that `bytes` more bytes of host memory fit.
fn require_host(bytes: u64, what: &str, hint: &str) -> Result<(), CliError> {
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

/// Checks that this process of a training run fits.
pub(super) fn require_training(
    config: &RunConfig,
    vocab: usize,
    device: &Device,
    processes: usize,
) -> Result<(), CliError> {
    let needed = TrainingMemory::of(config, vocab, processes)?;
    let hint = if needed.activations > needed.model.to_train() {
        "reduce train.micro_batch or train.context, or use --gradient-checkpointing"
    } else {
        "reduce the sizes in [model]"
    };
    require(needed.total(), device, "training", hint)
}

/// Checks that this process of a run of reinforcement learning fits. `prompt` is the length of its longest prompt.
pub(super) fn require_grpo(
    config: &RunConfig,
    prompt: usize,
    device: &Device,
    processes: usize,
) -> Result<(), CliError> {
    let needed = GrpoMemory::of(config, prompt, processes)?;
    let hint =
        "reduce grpo.num_generations, grpo.prompts_per_step, grpo.max_completion_length or grpo.micro_batch";
    require(needed.total(), device, "the run", hint)
}

/// Checks that the KV cache of an engine fits, with that of its draft model. `hint` says how to make it smaller.
pub(super) fn require_cache(
    model: &Model,
    draft: Option<&Model>,
    options: &EngineOptions,
    hint: &str,
) -> Result<(), CliError> {
    require_cache_in(&KvMemory::default(), Models { model, draft }, options, hint)
}

/// The models of an engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Models<'a> {
    pub(super) model: &'a Model,
    /// `None`: it does not speculate with a model.
    pub(super) draft: Option<&'a Model>,
}

/// [`require_cache`] of an engine whose cache is in `memory`. Offloaded layers in host memory have to fit there.
pub(super) fn require_cache_in(
    memory: &KvMemory,
    Models { model, draft }: Models<'_>,
    options: &EngineOptions,
    hint: &str,
) -> Result<(), CliError> {
    let room = options.room(model.config());
    let offloaded = memory.host_bytes(options.kv, model, room);
    require_host(offloaded, "the offloaded part of the KV cache", hint)?;
    let own = memory.allocated_bytes(options.kv, model, room);
    let bytes = own.saturating_add(draft.map_or(0, |draft| draft_cache_bytes(draft, model, options)));
    let what = if draft.is_some() { "the KV cache with that of the draft model" } else { "the KV cache" };
    require(bytes, model.device(), what, hint)
}

/// Bytes of the KV cache of a draft model: pages for all positions of all sequences, up to its context.
fn draft_cache_bytes(draft: &Model, model: &Model, options: &EngineOptions) -> u64 {
    let room = options.room(model.config());
    let positions = room.positions.min(draft.config().max_positions);
    KvKind::default().allocated_bytes(draft, Room { positions, slots: None, ..room })
}

/// Checks that the KV cache for `requests` fits, of which `options.max_batch` run at a time.
pub(super) fn require_cache_of(
    model: &Model,
    requests: &[Request],
    options: EngineOptions,
) -> Result<(), CliError> {
    let limits = options.kv.limits(model.config());
    let max_seq_len = requests.iter().map(|request| request.required_len(&limits)).max();
    let running = requests.len().max(1);
    let running = if faults::on(Fault::CacheOfAbsentRequests) { usize::MAX } else { running };
    let max_batch = options.max_batch.min(running);
    require_cache(model, None, &EngineOptions { max_seq_len, max_batch, ..options }, "use --kv growing")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the KV cache of an engine.
    fn cache_bytes(model: &Model, options: &EngineOptions) -> u64 {
        KvMemory::default().allocated_bytes(options.kv, model, options.room(model.config()))
    }

    #[test]
    fn the_estimate_is_what_a_full_cache_allocates() {
        use crate::tensor::Dtype;
        let sizes = crate::model::Config { vocab: 8, dim: 8, ffn_dim: 4, n_heads: 2, ..Default::default() };
        let heads =
            crate::model::Config { n_kv_heads: 1, head_dim: 6, rope_theta: 1e4, norm_eps: 1e-6, ..sizes };
        let cfg = crate::model::Config { n_layers: 3, max_positions: 50, ..heads };
        for dtype in [Dtype::F32, Dtype::BF16] {
            let model = Model::init(&cfg, dtype, &Device::cpu(), 1).unwrap();
            for kv in [KvKind::Contiguous, KvKind::Paged { page: 8 }, KvKind::Int8 { page: 8 }] {
                let options = EngineOptions { kv, max_batch: 3, ..EngineOptions::default() };
                let mut cache = kv.cache(&model, options.room(&cfg), KvMemory::default()).unwrap().unwrap();
                (0..3).for_each(|seq| cache.reserve(seq, 50).unwrap());
                // each tensor has one of eight sizes per power of two
                let (bytes, estimate) = (cache.bytes() as u64, cache_bytes(&model, &options));
                assert!(
                    (bytes..=bytes + bytes / 8).contains(&estimate),
                    "{kv} {dtype}: {estimate} for {bytes}"
                );
            }
        }
    }

    /// A model with one kv head of 4 values in each layer.
    fn model(n_layers: usize, max_positions: usize) -> Model {
        use crate::model::Config;
        let sizes = Config { vocab: 8, dim: 4, ffn_dim: 4, n_heads: 1, n_kv_heads: 1, ..Config::default() };
        let cfg = Config { head_dim: 4, rope_theta: 1e4, norm_eps: 1e-6, n_layers, max_positions, ..sizes };
        Model::init(&cfg, crate::tensor::Dtype::F32, &Device::cpu(), 1).unwrap()
    }

    #[test]
    fn layers_in_host_memory_have_to_fit_there() {
        use crate::decode::LayerOffload;
        let (model, kv) = (model(3, 50), KvKind::Contiguous);
        let options = EngineOptions { kv, max_batch: 3, ..EngineOptions::default() };
        let room = options.room(model.config());
        let resident = LayerOffload::least_resident(kv, &model, room);
        let in_memory = KvMemory::offloading(LayerOffload::in_memory(resident, usize::MAX));
        let in_file = LayerOffload::in_directory(&std::env::temp_dir(), resident, usize::MAX).unwrap();
        // keys and values of 150 positions in three layers
        assert_eq!(in_memory.host_bytes(kv, &model, room), 3 * 150 * 2 * 4 * 4);
        assert_eq!(KvMemory::offloading(in_file).host_bytes(kv, &model, room), 0);
        assert_eq!(KvMemory::default().host_bytes(kv, &model, room), 0);
        let models = Models { model: &model, draft: None };
        require_cache_in(&in_memory, models, &options, "").unwrap();
        let many = EngineOptions { max_batch: 1 << 50, ..options };
        let error = require_cache_in(&in_memory, models, &many, "").map_err(|error| error.to_string());
        assert!(error.is_err_and(|error| error.contains("the offloaded part of the KV cache needs about")));
    }

    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn the_layer_that_a_gpu_reads_takes_host_memory() {
        use crate::decode::LayerOffload;
        use crate::tensor::testing::emulated;
        use crate::tensor::{Dtype, ThreadSchedule};
        let (gpu, kv) = (emulated(ThreadSchedule::Forward), KvKind::Contiguous);
        let model = Model::init(model(3, 50).config(), Dtype::F32, &gpu, 1).unwrap();
        let options = EngineOptions { kv, max_batch: 3, ..EngineOptions::default() };
        let room = options.room(model.config());
        let host_bytes = |offload| KvMemory::offloading(offload).host_bytes(kv, &model, room);
        let resident = LayerOffload::least_resident(kv, &model, room);
        // keys and values of 150 positions: in three layers, and in one that is read
        let layers = 3 * 150 * 2 * 4 * 4;
        let read = 2 * Device::cpu().allocated_bytes(150 * 4, Dtype::F32) as u64;
        assert!(read >= 150 * 2 * 4 * 4);
        assert_eq!(host_bytes(LayerOffload::in_memory(resident, usize::MAX)), layers + read);
        let in_file = LayerOffload::in_directory(&std::env::temp_dir(), resident, usize::MAX).unwrap();
        assert_eq!(host_bytes(in_file), read);
        // all layers stay on the GPU
        assert_eq!(host_bytes(LayerOffload::in_memory(usize::MAX, usize::MAX)), 0);
    }

    #[cfg(feature = "faults")]
    #[test]
    #[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
    fn a_layer_that_is_read_and_not_counted_is_detected() {
        let test = the_layer_that_a_gpu_reads_takes_host_memory;
        let found = faults::with(Fault::ReadLayerNotCounted, || crate::tensor::testing::failure(test));
        assert!(found.is_some_and(|text| text.contains("left == right")));
    }

    /// Checks the memory of one request with room for very many sequences.
    fn of_one_request() -> Result<(), CliError> {
        let options =
            EngineOptions { kv: KvKind::Contiguous, max_batch: 1 << 50, ..EngineOptions::default() };
        require_cache_of(&model(2, 50), &[Request::greedy(&[1, 2], 3)], options)
    }

    #[test]
    fn one_request_needs_the_cache_of_one_sequence() {
        of_one_request().unwrap();
    }

    #[test]
    #[cfg(feature = "faults")]
    fn a_cache_of_requests_that_do_not_exist_is_found() {
        assert!(faults::with(Fault::CacheOfAbsentRequests, of_one_request).is_err());
    }

    #[test]
    fn the_cache_of_a_draft_model_has_room_for_all_sequences_up_to_its_context() {
        use crate::decode::CacheShape;
        let (large, small) = (model(2, 300), model(1, 100));
        let options = EngineOptions { max_batch: 3, kv_capacity: Some(320), ..EngineOptions::default() };
        let token = CacheShape::of(&small).bytes_per_token() as u64;
        assert_eq!(draft_cache_bytes(&small, &large, &options), 3 * 128 * token);
        assert_eq!(cache_bytes(&large, &options), 320 * 2 * token);
    }
}
