//! The names of a model's tensors in GGUF, and the order of the rows of Llama's queries and keys.

/// Names inside a block: in a Hugging Face directory, and in GGUF.
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

/// The name in GGUF of a parameter of ours.
pub(super) fn gguf_name(name: &str) -> String {
    let outer = [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("lm_head.weight", "output.weight"),
    ];
    if let Some((_, theirs)) = outer.into_iter().find(|(ours, _)| *ours == name) {
        return theirs.to_string();
    }
    let split = || {
        let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let (inner, kind) = rest.rsplit_once('.')?;
        let (_, theirs) = INNER.into_iter().find(|(ours, _)| *ours == inner)?;
        Some(format!("blk.{layer}.{theirs}.{kind}"))
    };
    split().expect("every parameter of a model has a name in GGUF: a test walks them")
}

/// Which heads a tensor's rows belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heads {
    /// None that are turned.
    Others,
    /// Queries.
    Queries,
    /// Keys.
    Keys,
}

impl Heads {
    /// Of a parameter of ours.
    pub(super) fn of(name: &str) -> Heads {
        match name {
            _ if name.contains(".q_proj.") => Heads::Queries,
            _ if name.contains(".k_proj.") => Heads::Keys,
            _ => Heads::Others,
        }
    }
}

/// From the order of halves (ours: pairs are `i` and `i + hd / 2`) to that of pairs side by side, which GGUF
/// has for `llama` alone: rows of `row` values, heads of `head_dim` rows.
pub(super) fn interleave(data: &[f32], head_dim: usize, row: usize) -> Vec<f32> {
    reorder(data, (head_dim, row), |to| to / 2 + to % 2 * (head_dim / 2))
}

/// The inverse of [`interleave`].
pub(super) fn separate(data: &[f32], head_dim: usize, row: usize) -> Vec<f32> {
    reorder(data, (head_dim, row), |to| 2 * (to % (head_dim / 2)) + to / (head_dim / 2))
}

fn reorder(data: &[f32], (head_dim, row): (usize, usize), from: impl Fn(usize) -> usize) -> Vec<f32> {
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
        let cfg = Config {
            vocab: 8,
            dim: 4,
            ffn_dim: 4,
            n_layers: 2,
            n_heads: 2,
            n_kv_heads: 1,
            head_dim: 2,
            max_positions: 8,
            rope_theta: 1e4,
            norm_eps: 1e-6,
            qk_norm: true,
            biases: Biases { qkv: true, o: true, mlp: true },
            ..Config::default()
        };
        let names: Vec<String> = Params::shapes(&cfg).unwrap().iter().map(|s| gguf_name(&s.0)).collect();
        assert_eq!(names.len(), 3 + 2 * (4 + 2 * 7));
        assert_eq!((&*names[0], &*names[2]), ("token_embd.weight", "blk.0.attn_q.weight"));
        assert!(names.contains(&"blk.1.ffn_down.bias".to_string()));
    }

    #[test]
    fn rows_of_llama_heads_go_there_and_back() {
        let x: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let turned = interleave(&x, 6, 2);
        assert_eq!(turned[..12], [0.0, 1.0, 6.0, 7.0, 2.0, 3.0, 8.0, 9.0, 4.0, 5.0, 10.0, 11.0]);
        assert_eq!(separate(&turned, 6, 2), x);
    }
}
