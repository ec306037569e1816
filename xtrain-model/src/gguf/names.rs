//! Tensor names in GGUF, and the row order of Llama's queries and keys.
use xtrain_tensor::faults::{self, Fault};

use super::config::Arch;

/// Names inside a block: Hugging Face, GGUF.
const INNER: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

pub(super) fn gguf_name(name: &str) -> String {
    let outer = [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("lm_head.weight", "output.weight"),
    ];
    if let Some((_, gguf)) = outer.into_iter().find(|(hf, _)| *hf == name) {
        return gguf.to_string();
    }
    let split = || {
        let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let (inner, kind) = rest.rsplit_once('.')?;
        let (_, gguf) = INNER.into_iter().find(|(hf, _)| *hf == inner)?;
        Some(format!("blk.{layer}.{gguf}.{kind}"))
    };
    split().expect("every parameter has a GGUF name: every_parameter_has_a_name tests it")
}

/// Whether a file stores the rows of RoPE pairs of the parameter `name` adjacent: those of queries and keys in a
/// `llama` file. Other rows have the order of Hugging Face.
pub(super) fn is_interleaved(arch: Arch, name: &str) -> bool {
    let left_out = name.contains(".bias") && faults::on(Fault::LlamaBiasRowsNotInterleaved);
    arch == Arch::Llama && (name.contains(".q_proj.") || name.contains(".k_proj.")) && !left_out
}

/// Converts the half-split row order of Hugging Face (pairs are `i` and `i + hd / 2`) to the interleaved order (pairs
/// are adjacent) of GGUF's `llama`. A head has `head_dim` rows of `row` values.
pub(super) fn interleave<T: Copy>(data: &[T], head_dim: usize, row: usize) -> Vec<T> {
    reorder(data, head_dim, row, |to| to / 2 + to % 2 * (head_dim / 2))
}

/// The inverse of [`interleave`].
pub(super) fn separate<T: Copy>(data: &[T], head_dim: usize, row: usize) -> Vec<T> {
    reorder(data, head_dim, row, |to| 2 * (to % (head_dim / 2)) + to / (head_dim / 2))
}

fn reorder<T: Copy>(data: &[T], head_dim: usize, row: usize, from: impl Fn(usize) -> usize) -> Vec<T> {
    let mut out = Vec::with_capacity(data.len());
    for head in data.chunks_exact(head_dim * row) {
        (0..head_dim).for_each(|to| out.extend_from_slice(&head[from(to) * row..][..row]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Biases, Config, Params};

    #[test]
    fn every_parameter_has_a_name() {
        let biases = Biases { qkv: true, o: true, mlp: true };
        let cfg = Config { tie_embeddings: false, biases, ..Config::tiny() };
        let names: Vec<String> = Params::shapes(&cfg).unwrap().iter().map(|s| gguf_name(&s.0)).collect();
        assert_eq!(names.len(), 3 + 2 * (4 + 2 * 7));
        assert_eq!((&*names[0], &*names[2]), ("token_embd.weight", "blk.0.attn_q.weight"));
        assert!(names.contains(&"blk.1.ffn_down.bias".to_string()));
    }

    #[test]
    fn separating_the_rows_of_llama_heads_undoes_interleaving() {
        let x: Vec<f32> = (0..24u8).map(f32::from).collect();
        let interleaved = interleave(&x, 6, 2);
        assert_eq!(interleaved[..12], [0.0, 1.0, 6.0, 7.0, 2.0, 3.0, 8.0, 9.0, 4.0, 5.0, 10.0, 11.0]);
        assert_eq!(separate(&interleaved, 6, 2), x);
    }
}
