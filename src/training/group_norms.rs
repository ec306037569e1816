//! Norms of the gradient and the weights of each group of parameters: the embedding, each layer, the final norm, the
//! output head.
use std::collections::BTreeMap;

use crate::model::{self, StepGradient, Trainer};
use crate::tensor::Tensor;

/// The norms of a step before its update, with their keys in `metrics.jsonl`, such as `grad_norm/layers.0`.
///
/// The squares are added in f64 in the order of the parameters, so the norms are the same on every machine.
///
/// # Errors
/// If the device cannot be read.
pub(super) fn group_norms(
    trainer: &Trainer,
    gradient: &StepGradient,
) -> Result<BTreeMap<String, f64>, model::Error> {
    let gradients = trainer.whole_gradient(gradient)?;
    let mut squares: BTreeMap<String, f64> = BTreeMap::new();
    for (param, gradient) in trainer.model.params.iter().zip(&gradients) {
        let group = group(param.name());
        *squares.entry(format!("grad_norm/{group}")).or_default() += sum_of_squares(gradient)?;
        *squares.entry(format!("weight_norm/{group}")).or_default() += sum_of_squares(param.value()?)?;
    }
    Ok(squares.into_iter().map(|(key, square)| (key, square.sqrt())).collect())
}

fn sum_of_squares(tensor: &Tensor) -> Result<f64, model::Error> {
    let host = tensor.to_host()?;
    Ok(host.data::<f32>()?.iter().map(|&x| f64::from(x) * f64::from(x)).sum())
}

/// The group of a parameter with this name.
fn group(name: &str) -> String {
    let parts: Vec<&str> = name.trim_start_matches("model.").split('.').collect();
    match parts[..] {
        ["layers", layer, ..] => format!("layers.{layer}"),
        ["embed_tokens", ..] => "embed".to_string(),
        ["lm_head", ..] => "head".to_string(),
        _ => parts[0].to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_group_of_their_layer() {
        for (name, want) in [
            ("model.embed_tokens.weight", "embed"),
            ("model.layers.11.self_attn.q_proj.weight", "layers.11"),
            ("model.norm.weight", "norm"),
            ("lm_head.weight", "head"),
        ] {
            assert_eq!(group(name), want);
        }
    }
}
