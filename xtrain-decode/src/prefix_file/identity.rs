//! What the rows of a prefix depend on besides its tokens.
use std::path::Path;

use serde::{Deserialize, Serialize};
use xtrain_model::checkpoint::CheckpointError;
use xtrain_model::store::NUMERICS;
use xtrain_model::{Biases, Config, Model};
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::{Device, Dtype};

/// Everything that the keys and values of a token sequence depend on, as names and values: the version of
/// docs/numerics.md, the compute dtype, the config, and a digest of the weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PrefixIdentity(Vec<(String, String)>);

impl PrefixIdentity {
    /// The identity of `model`. `weights` is a digest of its weights.
    pub fn of(model: &Model, weights: &str) -> PrefixIdentity {
        // the size of the table of positions, the vocabulary and the head change no row
        let Config {
            vocab: _,
            dim,
            ffn_dim,
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            max_positions: _,
            rope_theta,
            norm_eps,
            qk_norm,
            tie_embeddings: _,
            biases: Biases { qkv, o, mlp },
            rope_scaling,
            windows,
        } = model.config();
        let facts = [
            ("numerics", NUMERICS.to_owned()),
            ("dtype", model.compute().to_string()),
            ("products", products(model)),
            ("n_layers", n_layers.to_string()),
            ("n_kv_heads", n_kv_heads.to_string()),
            ("head_dim", head_dim.to_string()),
            ("n_heads", n_heads.to_string()),
            ("dim", dim.to_string()),
            ("ffn_dim", ffn_dim.to_string()),
            ("rope_theta", rope_theta.to_string()),
            ("rope_scaling", format!("{rope_scaling:?}")),
            ("norm_eps", norm_eps.to_string()),
            ("qk_norm", qk_norm.to_string()),
            ("biases", format!("qkv {qkv}, o {o}, mlp {mlp}")),
            ("sliding_window", format!("{windows:?}")),
            ("weights", weights.to_owned()),
        ];
        PrefixIdentity(facts.map(|(name, value)| (name.to_owned(), value)).into())
    }

    /// Checks that the identity in `file` is that of the model, `want`.
    pub(super) fn require(&self, file: &Path, want: &PrefixIdentity) -> Result<(), CheckpointError> {
        let value = |all: &PrefixIdentity, name: &str| {
            all.0.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone())
        };
        for (name, want) in &want.0 {
            if name == "weights" && faults::on(Fault::PrefixWeightsNotCompared) {
                continue;
            }
            let got = value(self, name).unwrap_or_else(|| "nothing".into());
            if got != *want {
                let (file, field) = (file.into(), name.clone());
                let want = format!("{want}, as the model has");
                return Err(CheckpointError::Field { file, field, want, got });
            }
        }
        match self.0.iter().find(|(name, _)| value(want, name).is_none()) {
            Some((name, got)) => {
                let (file, field, want) = (file.into(), name.clone(), "nothing".into());
                Err(CheckpointError::Field { file, field, want, got: got.clone() })
            }
            None => Ok(()),
        }
    }
}

/// How products are summed: in f32 alike on every device, in bf16 as the CPU or as a tensor core does.
fn products(model: &Model) -> String {
    match (model.compute(), model.device()) {
        (Dtype::BF16, Device::Gpu(gpu)) => gpu.tensor_core().map_or(gpu.name(), |core| format!("{core:?}")),
        (Dtype::BF16, Device::Reference(_)) => {
            let name = model.device().to_string();
            name.strip_prefix("reference of ").unwrap_or("CPU").to_owned()
        }
        (Dtype::BF16, _) => "CPU".to_owned(),
        _ => "f32".to_owned(),
    }
}
