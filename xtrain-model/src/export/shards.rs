//! Distribution of tensors over weight files.
use serde_json::{Value, json};
use xtrain_tensor::faults::{self, Fault};

use crate::model::Model;
use crate::param::Param;
use crate::quant::Quant;

pub(super) struct Shard<'a> {
    pub(super) name: String,
    pub(super) params: Vec<&'a Param>,
    /// The size of the tensors in bytes.
    bytes: u64,
}

/// Distributes a model's weights over files in walk order. A tensor starts a new file if the current one would exceed
/// `max` bytes of tensors. A single file is named `model.safetensors`.
pub(super) fn of(model: &Model, quant: Quant, max: u64) -> Vec<Shard<'_>> {
    let mut shards: Vec<Shard<'_>> = Vec::new();
    for param in model.params.iter() {
        let bytes = (param.shape().iter().product::<usize>() * quant.block().bytes) as u64;
        let over = |total: u64| total > max || total == max && faults::on(Fault::ShardLimitExclusive);
        match shards.last_mut() {
            Some(last) if !over(last.bytes + bytes) => {
                last.params.push(param);
                last.bytes += bytes;
            }
            _ => shards.push(Shard { name: String::new(), params: vec![param], bytes }),
        }
    }
    let n = shards.len();
    for (at, shard) in shards.iter_mut().enumerate() {
        shard.name = match n {
            1 => "model.safetensors".into(),
            _ => format!("model-{:05}-of-{n:05}.safetensors", at + 1),
        };
    }
    shards
}

/// The content of `model.safetensors.index.json`. `None`: a single file needs no index.
pub(super) fn index(shards: &[Shard<'_>]) -> Option<Value> {
    if shards.len() == 1 {
        return None;
    }
    let total: u64 = shards.iter().map(|shard| shard.bytes).sum();
    let map: serde_json::Map<String, Value> = shards
        .iter()
        .flat_map(|shard| shard.params.iter().map(|p| (p.name().to_string(), json!(shard.name))))
        .collect();
    Some(json!({"metadata": {"total_size": total}, "weight_map": map}))
}
