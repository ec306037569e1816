//! Names of configuration keys in nanoGPT, llama.cpp and Hugging Face.

/// Names in those programs, in lower case with `_`, and the key for the same value here.
type Names = &'static [(&'static [&'static str], &'static str)];

/// Names of the keys outside `[grpo]`.
const KEYS: Names = &[
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
    (&["lr"], "train.learning_rate"),
    (&["batch_size", "per_device_train_batch_size"], "train.batch"),
    (&["micro_batch_size"], "train.micro_batch"),
    (&["min_lr"], "train.min_learning_rate"),
    (&["bf16", "fp16", "mixed_precision", "precision", "torch_dtype"], "train.dtype"),
    (&["lr_scheduler_type", "lr_schedule", "lr_scheduler"], "train.schedule"),
    (&["warmup_iters", "warmup_steps"], "train.warmup"),
    (&["adam_beta1"], "train.beta1"),
    (&["adam_beta2"], "train.beta2"),
    (&["adam_epsilon"], "train.eps"),
    (&["grad_clip", "max_grad_norm", "gradient_clip"], "train.clip"),
    (&["eval_interval", "eval_steps", "eval_strategy"], "train.eval_every"),
    (&["save_interval", "save_steps", "save_strategy"], "train.save_every"),
    (&["save_total_limit"], "train.keep"),
    (&["load_best_model_at_end"], "train.keep_best"),
    (&["early_stopping_patience"], "train.patience"),
    (&["validation_split", "val_split"], "data.val_fraction"),
    (&["train_file", "train_files", "dataset"], "data.files"),
    (
        &["validation_file", "validation_files", "val_file", "val_data", "eval_file", "eval_dataset"],
        "data.val_files",
    ),
];

/// Names of the keys of `[grpo]`, where they are not those of the same names in [`KEYS`].
const GRPO_KEYS: Names = &[
    (&["batch_size", "per_device_train_batch_size", "generation_batch_size"], "grpo.prompts_per_step"),
    (&["reward_funcs", "reward_func", "reward_functions"], "grpo.reward"),
    (&["max_tool_calling_iterations"], "grpo.max_turns"),
    (&["stop_strings", "stop_sequences", "stop_words"], "grpo.stop"),
    (&["sync_ref_model"], "grpo.ref_model_sync_steps"),
    (&["max_new_tokens", "max_tokens"], "grpo.max_completion_length"),
    (&["train_file", "train_files", "dataset", "train_dataset"], "grpo.prompts"),
    (
        &["validation_file", "validation_files", "val_file", "val_data", "eval_file", "eval_dataset"],
        "grpo.eval_prompts",
    ),
];

/// Names in those programs without a counterpart here, and what to say instead. A name without `_` also matches a part of a longer one.
const ABSENT: &[(&[&str], &str)] = &[
    (
        &["lora", "qlora", "peft", "adapter"],
        "LoRA is not supported: training changes all weights; merge an adapter into its model first",
    ),
    (
        &["epochs"],
        "the length of a run is its number of steps: --steps N; xtrain train --epochs EPOCHS computes it from the data",
    ),
    (&["warmup_ratio"], "warmup is a number of steps"),
    (&["decay_lr"], "train.schedule = \"constant\" has no decay"),
    (&["out_dir", "output_dir"], "the directory of a run is a flag: --run DIR"),
    (
        &["init_from", "resume_from_checkpoint"],
        "--init MODEL starts with the weights of a model, --resume RUN continues a run",
    ),
    (&["use_vllm"], "not needed: the rollouts have the weights and the bits of the trainer"),
    (
        &["gradient_accumulation_steps", "grad_accum", "accumulation_steps"],
        "each step accumulates the gradients of its micro-batches: train.micro_batch, or grpo.micro_batch, is the size of \
         one",
    ),
    (&["kv_sinks", "kv_window"], "this command needs an exact cache; --kv sinks is lossy"),
    (&["compile"], "not needed: there is one forward pass"),
    (&["logging_steps", "logging_strategy", "log_interval"], "every step is logged"),
    (&["presence_penalty", "frequency_penalty"], "--repetition-penalty is the only penalty"),
    (&["dropout"], "dropout is not supported; weight_decay regularizes training"),
    (&["optimizer", "optim"], "AdamW is the only optimizer; its keys are beta1, beta2, eps and weight_decay"),
    (
        &["4bit", "8bit"],
        "training needs f32 weights; inference reads quantized GGUF files, and export --type q8_0 writes one",
    ),
];

/// What to say about a key or a flag of another program that has no counterpart here. `None`: nothing is known.
pub(crate) fn absent(name: &str) -> Option<&'static str> {
    let name = name.replace('-', "_").to_lowercase();
    let last = name.rsplit('.').next().unwrap_or(&name).trim_start_matches('_');
    let has = |word: &&str| last == *word || name.split(['.', '_']).any(|part| part == *word);
    ABSENT.iter().find(|(words, _)| words.iter().any(has)).map(|(_, text)| *text)
}

/// The key that nanoGPT or Hugging Face calls `name`, in any section. `-` and `_` are equal. `None`: they have no such
/// name, or it has no counterpart.
pub(crate) fn familiar_key(name: &str) -> Option<&'static str> {
    of(KEYS, name)
}

/// [`familiar_key`] for `xtrain grpo`, which also knows the names of TRL. The name in `[grpo]` of a key outside it need
/// not be a key.
pub(super) fn familiar_grpo_key(name: &str) -> Option<String> {
    let key = of(GRPO_KEYS, name).or_else(|| of(KEYS, name))?;
    key.split_once('.').map(|(_, last)| format!("grpo.{last}"))
}

fn of(keys: Names, name: &str) -> Option<&'static str> {
    let name = name.rsplit_once('.').map_or(name, |(_, last)| last).replace('-', "_").to_lowercase();
    keys.iter().find(|(names, _)| names.contains(&name.as_str())).map(|(_, key)| *key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::KnownKeys;

    #[test]
    fn every_name_leads_to_a_key_and_is_no_key_itself() {
        let known = KnownKeys::new();
        let all: Vec<&str> = known.keys().collect();
        for table in [KEYS, GRPO_KEYS] {
            for (names, key) in table {
                assert!(all.contains(key), "{key}");
                assert_eq!(key.starts_with("grpo."), table == GRPO_KEYS, "{key}");
                for name in *names {
                    let own = all.iter().any(|key| key.rsplit('.').next() == Some(*name));
                    let once =
                        table.iter().flat_map(|(names, _)| *names).filter(|other| *other == name).count();
                    assert!(!own && once == 1, "{name}");
                }
            }
        }
        assert_eq!(familiar_key("model.n_embd"), Some("model.dim"));
        assert_eq!(familiar_key("Max-Steps"), Some("train.steps"));
        assert_eq!(familiar_key("dropout"), None);
        assert_eq!(familiar_grpo_key("grpo.Batch-Size").as_deref(), Some("grpo.prompts_per_step"));
        assert_eq!(familiar_grpo_key("lr").as_deref(), Some("grpo.learning_rate"));
        assert_eq!(familiar_grpo_key("dropout"), None);
    }

    #[test]
    fn what_has_no_counterpart_is_said_and_no_key_has_such_a_name() {
        let begins = |name: &str, text: &str| absent(name).is_some_and(|found| found.starts_with(text));
        for (name, text) in [
            ("train.dropout", "dropout"),
            ("--lora-r", "LoRA"),
            ("lora_dropout", "LoRA"),
            ("use_peft", "LoRA"),
            ("--optimizer", "AdamW"),
            ("train.optim", "AdamW"),
            ("--load-in-4bit", "training needs f32"),
            ("train.num_train_epochs", "the length of a run is its number"),
            ("--warmup-ratio", "warmup is a number"),
            ("train.gradient_accumulation_steps", "each step accumulates"),
        ] {
            assert!(begins(name, text), "{name}: {:?}", absent(name));
        }
        for name in
            ["train.flora", "", "save_frequency", "train.clip_ratio", "logging_dir", "save_every_epoch"]
        {
            assert_eq!(absent(name), None, "{name}");
        }
        let known = KnownKeys::new();
        assert_eq!(known.keys().find(|key| absent(key).is_some()), None);
    }
}
