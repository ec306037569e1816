//! Which tensors stand in which file.
use serde_json::{Value, json};

use crate::gguf::Quant;
use crate::model::Model;
use crate::param::Param;

/// A file of weights.
pub(super) struct Shard<'a> {
    pub(super) name: String,
    /// In walk order.
    pub(super) params: Vec<&'a Param>,
    /// Of its tensors.
    bytes: u64,
}

/// The files of a model's weights in walk order: a tensor opens the next one where it would bring its file beyond
/// `most` bytes of tensors. The only one is `model.safetensors`.
pub(super) fn of(model: &Model, (quant, most): (Quant, u64)) -> Vec<Shard<'_>> {
    let mut shards: Vec<Shard<'_>> = Vec::new();
    for param in model.params.iter() {
        let bytes = (param.shape().iter().product::<usize>() * quant.block().1) as u64;
        match shards.last_mut() {
            Some(last) if last.bytes + bytes <= most => {
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

/// What `model.safetensors.index.json` says; none of a single file.
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
