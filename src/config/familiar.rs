//! Names of configuration keys in nanoGPT and Hugging Face.

/// Names in those programs, in lower case with `_`, and the key for the same value here.
const KEYS: &[(&[&str], &str)] = &[
    (&["n_embd", "hidden_size", "d_model", "embed_dim", "embedding_dim"], "model.dim"),
    (&["n_layer", "num_layers", "num_hidden_layers", "layers"], "model.n_layers"),
    (&["n_head", "num_heads", "num_attention_heads", "heads"], "model.n_heads"),
    (&["num_key_value_heads", "n_head_kv"], "model.n_kv_heads"),
    (&["intermediate_size", "d_ff", "n_ff"], "model.ffn_dim"),
    (&["vocab_size"], "model.vocab"),
    (&["max_position_embeddings"], "model.max_positions"),
    (&["tie_word_embeddings"], "model.tie_embeddings"),
    (&["rms_norm_eps"], "model.norm_eps"),
    (
        &["block_size", "seq_len", "seq_length", "max_seq_length", "max_length", "n_ctx", "ctx_size"],
        "train.context",
    ),
    (&["max_iters", "max_steps", "iters", "n_steps", "num_steps"], "train.steps"),
    (&["epochs", "n_epochs", "num_epochs", "num_train_epochs"], "train.steps"),
    (&["lr"], "train.learning_rate"),
    (&["batch_size", "per_device_train_batch_size"], "train.batch"),
    (&["micro_batch_size"], "train.micro_batch"),
    (&["min_lr"], "train.min_learning_rate"),
    (&["lr_scheduler_type", "lr_schedule", "lr_scheduler"], "train.schedule"),
    (&["warmup_iters", "warmup_steps"], "train.warmup"),
    (&["adam_beta1"], "train.beta1"),
    (&["adam_beta2"], "train.beta2"),
    (&["adam_epsilon"], "train.eps"),
    (&["grad_clip", "max_grad_norm", "gradient_clip"], "train.clip"),
    (&["eval_interval", "eval_steps"], "train.eval_every"),
    (&["save_interval", "save_steps"], "train.save_every"),
    (&["save_total_limit"], "train.keep"),
    (&["load_best_model_at_end"], "train.keep_best"),
    (&["early_stopping_patience"], "train.patience"),
    (&["validation_split", "val_split"], "data.val_fraction"),
    (&["train_file", "train_files", "dataset"], "data.files"),
];

/// The key that nanoGPT or Hugging Face calls `name`, in any section. `-` and `_` are equal. `None`: they have no such
/// name, or it has no counterpart.
pub(crate) fn familiar_key(name: &str) -> Option<&'static str> {
    let name = name.rsplit_once('.').map_or(name, |(_, last)| last).replace('-', "_").to_lowercase();
    KEYS.iter().find(|(names, _)| names.contains(&name.as_str())).map(|(_, key)| *key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::KnownKeys;

    #[test]
    fn every_name_leads_to_a_key_and_is_no_key_itself() {
        let known = KnownKeys::new();
        let all: Vec<&str> = known.keys().collect();
        for (names, key) in KEYS {
            assert!(all.contains(key), "{key}");
            for name in *names {
                let own = all.iter().any(|key| key.rsplit('.').next() == Some(*name));
                let once = KEYS.iter().flat_map(|(names, _)| *names).filter(|other| *other == name).count();
                assert!(!own && once == 1, "{name}");
            }
        }
        assert_eq!(familiar_key("model.n_embd"), Some("model.dim"));
        assert_eq!(familiar_key("Max-Steps"), Some("train.steps"));
        assert_eq!(familiar_key("dropout"), None);
    }
}
