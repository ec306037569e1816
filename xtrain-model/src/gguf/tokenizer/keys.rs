//! The metadata keys of a tokenizer, and the types of tokens.

pub(super) const MODEL: &str = "tokenizer.ggml.model";
/// The values of [`MODEL`] in a file without a tokenizer. Without one of them, llama.cpp refuses the file.
pub(super) const NO_TOKENIZER: [&str; 2] = ["no_vocab", "none"];
/// The value of [`MODEL`] for a SentencePiece vocabulary.
pub(super) const SENTENCEPIECE: &str = "llama";
pub(super) const PRE: &str = "tokenizer.ggml.pre";
/// Whether text is normalized to NFC, if that is not the rule of the pre-tokenizer. A key of xtrain: llama.cpp does not
/// read it, and normalizes no text.
pub(super) const NFC: &str = "xtrain.tokenizer.nfc";
/// The flags of added tokens, and for each the key with the ids of the tokens that have it. Keys of xtrain: GGUF has no
/// such flags, and llama.cpp acts as if no token had one.
pub(super) const FLAGS: [(&str, &str); 4] = [
    ("single_word", "xtrain.tokenizer.single_word"),
    ("lstrip", "xtrain.tokenizer.lstrip"),
    ("rstrip", "xtrain.tokenizer.rstrip"),
    ("normalized", "xtrain.tokenizer.normalized"),
];
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const TYPES: &str = "tokenizer.ggml.token_type";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";
pub(super) const SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
pub(super) const TRIM_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
pub(super) const TEMPLATE: &str = "tokenizer.chat_template";
/// The names of all chat templates except the default.
pub(super) const TEMPLATES: &str = "tokenizer.chat_templates";
pub(super) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
/// The end-of-text ids of the model in their order, if they are not those of [`EOS_KEYS`]. A key of xtrain.
pub(super) const EOS_IDS: &str = "xtrain.eos_token_ids";
/// The keys of end-of-text ids. The first is the id of `eos_token`.
pub(super) const EOS_KEYS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
pub(super) const BOS: &str = "tokenizer.ggml.bos_token_id";
pub(super) const PAD: &str = "tokenizer.ggml.padding_token_id";
pub(super) const UNK: &str = "tokenizer.ggml.unknown_token_id";

pub(super) const NORMAL: i64 = 1;
pub(super) const UNKNOWN: i64 = 2;
pub(super) const CONTROL: i64 = 3;
pub(super) const USER: i64 = 4;
pub(super) const UNUSED: i64 = 5;
pub(super) const BYTE: i64 = 6;
