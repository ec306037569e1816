//! Model, optimizer and schedule of a configuration.
use crate::config::{self, Precision, RunConfig};
use crate::model::{self, ActivationCheckpointing, Config, Decay, Model, OptimConfig, Schedule, Trainer};
use crate::tensor::faults::{self, Fault};
use crate::tensor::{Device, Dtype};

/// The model of a configuration. If `model.vocab` is 0, its vocabulary size is `tokens`.
pub fn model_config(config: &RunConfig, tokens: usize) -> Config {
    let m = &config.model;
    Config {
        vocab: if m.vocab == 0 { tokens } else { m.vocab },
        dim: m.dim,
        ffn_dim: m.ffn_dim,
        n_layers: m.n_layers,
        n_heads: m.n_heads,
        n_kv_heads: m.n_kv_heads,
        head_dim: m.head_dim,
        max_positions: config.train.context.max(m.max_positions),
        rope_theta: m.rope_theta,
        norm_eps: m.norm_eps,
        qk_norm: m.qk_norm,
        tie_embeddings: m.tie_embeddings,
        ..Config::default()
    }
}

/// The compute dtype of a configuration.
pub fn compute(precision: Precision) -> Dtype {
    match precision {
        Precision::F32 => Dtype::F32,
        Precision::Bf16 => Dtype::BF16,
    }
}

/// The optimizer of a configuration.
pub fn optim_config(config: &RunConfig) -> OptimConfig {
    let t = &config.train;
    let clip = max_norm(t.clip);
    let (beta1, beta2) = match faults::on(Fault::AdamBetasExchanged) {
        true => (t.beta2, t.beta1),
        false => (t.beta1, t.beta2),
    };
    OptimConfig { beta1, beta2, eps: t.eps, weight_decay: t.weight_decay, clip }
}

/// The learning rate decay of a configuration.
pub(crate) fn decay(kind: config::DecayKind) -> Decay {
    match kind {
        config::DecayKind::Constant => Decay::Constant,
        config::DecayKind::Linear => Decay::Linear,
        config::DecayKind::Cosine => Decay::Cosine,
        config::DecayKind::Wsd => Decay::Wsd,
        config::DecayKind::WsdCosine => Decay::WsdCosine,
        config::DecayKind::WsdSqrt => Decay::WsdSqrt,
    }
}

/// The maximum gradient norm of a configured clip. 0: no clipping, an infinite norm.
pub(crate) fn max_norm(clip: f64) -> f64 {
    if clip == 0.0 { f64::INFINITY } else { clip }
}

/// The learning rate schedule of a configuration.
pub fn schedule(config: &RunConfig) -> Schedule {
    let t = &config.train;
    Schedule {
        decay: decay(t.schedule),
        warmup_start_lr: t.initial_learning_rate,
        lr: t.learning_rate,
        min_lr: t.min_learning_rate,
        warmup_steps: t.warmup as u64,
        steps: t.steps as u64,
        decay_steps: t.decay as u64,
    }
}

/// The activation checkpointing of a configuration.
pub fn activation_checkpointing(config: &RunConfig) -> ActivationCheckpointing {
    match config.train.gradient_checkpointing {
        true => ActivationCheckpointing::PerLayer,
        false => ActivationCheckpointing::Off,
    }
}

/// A trainer at step 0 with random weights.
///
/// # Errors
/// [`model::Error::Config`] if no model can have these sizes.
pub fn new_trainer(config: &RunConfig, tokens: usize, device: &Device) -> Result<Trainer, model::Error> {
    let (cfg, train) = (model_config(config, tokens), &config.train);
    let model = Model::init(&cfg, compute(train.dtype), device, train.seed)?;
    Trainer::new(model, optim_config(config), schedule(config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Layer, PRESETS};

    fn parameters(layer: Layer, vocab: usize) -> usize {
        model_config(&RunConfig::load(&[layer]).unwrap(), vocab).n_params()
    }

    #[test]
    fn a_preset_has_about_the_number_of_parameters_in_its_name() {
        for (preset, millions) in PRESETS.iter().zip([1.0, 3.0, 10.0, 30.0, 125.0, 600.0]) {
            let count = parameters(Layer::Set(format!("model.preset={}", preset.name)), 256) as f64 / 1e6;
            assert!((count / millions - 1.0).abs() < 0.06, "{}: {count} M", preset.name);
        }
    }

    #[test]
    fn qwen3_has_the_parameter_count_of_the_published_checkpoint() {
        assert_eq!(parameters(Layer::Set("model.preset=qwen3-0.6b".into()), 0), 596_049_920);
    }

    #[test]
    fn the_shakespeare_model_is_within_5_percent_of_nanogpt() {
        let path = format!("{}/configs/shakespeare.toml", env!("CARGO_MANIFEST_DIR"));
        let count = parameters(Layer::File(path.into()), 256) as f64;
        assert!((count / 804_096.0 - 1.0).abs() < 0.05, "{count}");
    }
}
