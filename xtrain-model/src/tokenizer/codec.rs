//! The tokenizer: bytes or a `tokenizer.json` behind one type.
use std::io;
use std::path::Path;

use serde_json::{Map, Value};

use super::error::TokenizerError;
use super::json::{self, bad};
use super::settings::Settings;
use super::vocabulary::{END_OF_TEXT, MAX_VOCABULARY, Vocabulary};
use super::{byte, hf, pipeline};
use crate::json::{found_at_line, sorted};

pub(crate) const FILE: &str = "tokenizer.json";
pub(crate) const CONFIG: &str = "tokenizer_config.json";
pub(crate) const TEMPLATE: &str = "chat_template.jinja";

/// Converts text to token ids and back.
///
/// | kind | ids |
/// |---|---|
/// | bytes (built in) | 0..=255 the byte, 256 `<|endoftext|>`; vocabulary 257. No padding token: packed windows and ragged rows need none |
/// | HF `tokenizer.json`, byte-level | as in the file (GPT-2, Llama 3, Qwen, ...) |
/// | HF `tokenizer.json` of SentencePiece | as in the file; unknown characters are `<0xHH>` tokens (Llama 2, Mistral) |
///
/// Every token is a byte string. Decoding concatenates them, so streamed text equals decoded text. Bytes of `<0xHH>`
/// tokens that are invalid UTF-8 become one U+FFFD for each invalid sequence; HF writes one for each byte of the run.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    pub(super) kind: Kind,
    pub(super) vocabulary: Vocabulary,
    eos: Vec<u32>,
    /// The end-of-text ids of a model. Empty: those of the tokenizer.
    model_eos: Vec<u32>,
    /// The id that begins a text. `None`: nothing is added.
    pub(super) bos: Option<u32>,
    settings: Settings,
    pub(super) json: Vec<u8>,
    config: Vec<u8>,
    /// The content of `chat_template.jinja`. `None`: there is no such file.
    template: Option<Vec<u8>>,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    Byte,
    Hf(Box<hf::Encoder>),
}

impl Tokenizer {
    /// The built-in tokenizer: each byte is a token, 256 is `<|endoftext|>`.
    pub fn byte() -> Tokenizer {
        Tokenizer::new(Kind::Byte, byte::vocabulary(), byte::to_json().into_bytes())
    }

    /// A tokenizer with default settings. Its end-of-text token is [`END_OF_TEXT`], if it has that token.
    fn new(kind: Kind, vocabulary: Vocabulary, json: Vec<u8>) -> Tokenizer {
        let (settings, config) = (Settings::default(), default_config().into_bytes());
        let (eos, model_eos) = (Vec::new(), Vec::new());
        let (bos, template) = (None, None);
        let mut new = Tokenizer { kind, vocabulary, eos, model_eos, bos, settings, json, config, template };
        new.eos.extend(new.special_id(END_OF_TEXT));
        new
    }

    /// Whether this is the built-in tokenizer.
    pub fn is_byte(&self) -> bool {
        matches!(self.kind, Kind::Byte)
    }

    /// Loads the tokenizer from the directory `path` (`tokenizer.json`), or from the file `path`. An optional
    /// `tokenizer_config.json` in the same directory names the end-of-text token. It and an optional
    /// `chat_template.jinja` contain chat templates.
    ///
    /// # Errors
    /// A file that is missing, unreadable, larger than 64 MiB or nested deeper than 64 levels; one that HF
    /// `tokenizers` rejects; an unsupported decoder; an id at or above [`MAX_VOCABULARY`]; an `eos_token` that is not
    /// in the vocabulary.
    pub fn load(path: &Path) -> Result<Tokenizer, TokenizerError> {
        let file = if path.is_dir() { path.join(FILE) } else { path.to_path_buf() };
        let Some(bytes) = json::read(&file)? else {
            let source = io::Error::new(io::ErrorKind::NotFound, "no such file");
            return Err(TokenizerError::Io { file, op: "open", source });
        };
        json::check_text(&bytes, &file)?;
        let config = json::read(&file.with_file_name(CONFIG))?;
        let template = json::read(&file.with_file_name(TEMPLATE))?;
        Tokenizer::from_files(bytes, config, template, &file)
    }

    /// Creates a tokenizer from the content of a `tokenizer.json`, of an optional `tokenizer_config.json`, and of an
    /// optional `chat_template.jinja`. `file` is the path of the first in errors.
    pub(crate) fn from_files(
        json: Vec<u8>,
        config: Option<Vec<u8>>,
        template: Option<Vec<u8>>,
        file: &Path,
    ) -> Result<Tokenizer, TokenizerError> {
        let mut tokenizer = Tokenizer::from_parts(json, config, file)?;
        if let Some(bytes) = template {
            tokenizer.settings.set_default_template(&bytes, &file.with_file_name(TEMPLATE))?;
            tokenizer.template = Some(bytes);
        }
        Ok(tokenizer)
    }

    /// Creates a tokenizer from the content of a `tokenizer.json` and of an optional `tokenizer_config.json`. `file`
    /// is the path of the former in errors.
    ///
    /// # Errors
    /// As [`load`](Tokenizer::load).
    pub fn from_parts(
        json: Vec<u8>,
        config: Option<Vec<u8>>,
        file: &Path,
    ) -> Result<Tokenizer, TokenizerError> {
        let mut tokenizer = Tokenizer::from_json(json, file)?;
        if let Some(config) = config {
            let is_json = file.extension().is_some_and(|extension| extension == "json");
            // a GGUF file contains both parts
            let config_file = if is_json { file.with_file_name(CONFIG) } else { file.to_path_buf() };
            tokenizer.configure(config, &config_file)?;
            if let Some(add) = tokenizer.settings.add_bos {
                let named = tokenizer.settings.special("bos_token");
                let id = named.and_then(|token| tokenizer.special_id(token)).or(tokenizer.bos);
                tokenizer.bos = id.filter(|_| add);
            }
        }
        Ok(tokenizer)
    }

    /// Creates a tokenizer from `json`, the content of a `tokenizer.json`. `file` is its path in errors.
    ///
    /// # Errors
    /// As [`load`](Tokenizer::load).
    pub fn from_json(json: Vec<u8>, file: &Path) -> Result<Tokenizer, TokenizerError> {
        json::check_text(&json, file)?;
        if byte::recognises(&json) {
            return Ok(Tokenizer { json, ..Tokenizer::byte() });
        }
        let pipeline = pipeline::check(&json, file)?;
        let (encoder, vocabulary) = hf::load(&json, &pipeline, file)?;
        let bos = pipeline.first_token().and_then(|token| encoder.token_to_id(token));
        Ok(Tokenizer { bos, ..Tokenizer::new(Kind::Hf(Box::new(encoder)), vocabulary, json) })
    }

    /// Trains a byte-level BPE on `texts`. Ids: `<|endoftext|>` and the other `specials` from 0, then the 256 bytes,
    /// then merges in the order in which they were learned. It can encode any text. A small corpus may yield fewer
    /// merges than requested.
    ///
    /// # Errors
    /// `vocab_size` below 256 + the number of specials or above [`MAX_VOCABULARY`]; an empty or repeated special
    /// token.
    pub fn train_bpe(
        texts: impl Iterator<Item = String> + Send,
        vocab_size: usize,
        specials: &[&str],
    ) -> Result<Tokenizer, TokenizerError> {
        let mut all = vec![END_OF_TEXT.to_string()];
        for special in specials.iter().filter(|special| **special != END_OF_TEXT) {
            if special.is_empty() || all.iter().any(|s| s == special) {
                let (want, got) = ("unique, non-empty special tokens".into(), format!("{special:?}"));
                return Err(TokenizerError::Argument { op: "train_bpe", want, got });
            }
            all.push(special.to_string());
        }
        let (min, max) = (256 + all.len(), MAX_VOCABULARY as usize);
        if !(min..=max).contains(&vocab_size) {
            let want = format!("a vocabulary of {min} (256 bytes and {} special) to {max}", all.len());
            return Err(TokenizerError::Argument { op: "train_bpe", want, got: vocab_size.to_string() });
        }
        Tokenizer::from_json(hf::train_bpe(texts, vocab_size, &all)?, Path::new("the trained tokenizer"))
    }

    /// The bytes of one id. An id outside the vocabulary has the bytes of U+FFFD.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        const UNKNOWN: &[u8] = "\u{fffd}".as_bytes();
        self.vocabulary.tokens.get(id as usize).and_then(Option::as_deref).unwrap_or(UNKNOWN)
    }

    /// The bytes of one id that is text. `None`: a special token, an end-of-text token, or an id outside the vocabulary.
    pub fn text_token(&self, id: u32) -> Option<&[u8]> {
        let is_text = self.vocabulary.special.binary_search(&id).is_err() && !self.eos_ids().contains(&id);
        self.vocabulary.tokens.get(id as usize)?.as_deref().filter(|_| is_text)
    }

    /// The vocabulary size: one more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.tokens.len()
    }

    /// The end-of-text ids: those of [`with_eos_ids`](Tokenizer::with_eos_ids), else the `eos_token` of
    /// `tokenizer_config.json`, followed by `<|endoftext|>` if it is a different token. Empty if the tokenizer has
    /// neither.
    pub fn eos_ids(&self) -> &[u32] {
        if self.model_eos.is_empty() { &self.eos } else { &self.model_eos }
    }

    /// The id of the `eos_token` of `tokenizer_config.json`. `None`: the file names none.
    pub(crate) fn eos_token_id(&self) -> Option<u32> {
        self.settings.special("eos_token").and_then(|token| self.special_id(token))
    }

    /// The tokenizer with the end-of-text ids of a model, in that order. A model's `generation_config.json` may list
    /// more of them than the tokenizer. An empty list restores the ids of the tokenizer.
    #[must_use]
    pub fn with_eos_ids(self, ids: &[u32]) -> Tokenizer {
        Tokenizer { model_eos: ids.to_vec(), ..self }
    }

    /// The id that ends a document in packed data: `<|endoftext|>`, else the tokenizer's `eos_token`. `None`: the
    /// tokenizer has neither.
    pub fn separator(&self) -> Option<u32> {
        self.eos.last().copied()
    }

    /// The number of text bytes of `ids`, for bits per byte. Special tokens count as 0 bytes, the space that a
    /// SentencePiece tokenizer adds to the beginning of a text as one.
    pub fn text_bytes(&self, ids: &[u32]) -> u64 {
        let plain = ids.iter().filter(|id| self.vocabulary.special.binary_search(id).is_err());
        plain.map(|&id| self.token_bytes(id).len() as u64).sum()
    }

    /// A 64-bit digest (FNV-1a) of the vocabulary. Data and models with equal digests use the same ids.
    pub fn digest(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut add = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        for token in &self.vocabulary.tokens {
            let length = token.as_ref().map_or(u32::MAX, |t| u32::try_from(t.len()).unwrap_or(u32::MAX - 1));
            length.to_le_bytes().into_iter().for_each(&mut add);
            token.iter().flat_map(|t| t.iter().copied()).for_each(&mut add);
        }
        hash
    }

    /// The special tokens as (name, text), with the names that chat templates use (`bos_token`, `eos_token`, ...).
    pub fn special_tokens(&self) -> &[(String, String)] {
        &self.settings.special_tokens
    }

    /// The chat templates as (name, text). The default template is named `default`. The text is unparsed; see
    /// [`crate::chat::ChatTemplate::of`].
    pub fn chat_templates(&self) -> &[(String, String)] {
        &self.settings.templates
    }

    /// The tokenizer with a default chat template. Templates name the end-of-text token: the first end-of-text id gets
    /// the name `eos_token` if no token has it.
    ///
    /// # Errors
    /// A tokenizer without an end-of-text id, which no template could end a turn with.
    pub fn with_chat_template(mut self, template: &str) -> Result<Tokenizer, TokenizerError> {
        let file = Path::new(CONFIG);
        let eos = self.eos_ids().first().map(|&id| self.decode_continuation(&[id]));
        let config =
            with_template(&self.config, template, eos).map_err(|got| bad(file, "a JSON object", got))?;
        self.configure(config, file)?;
        self.template = None;
        Ok(self)
    }

    /// The file of the default chat template. `None`: the tokenizer was not loaded with templates.
    pub(crate) fn chat_template_file(&self) -> Option<&Path> {
        self.settings.template_file.as_deref()
    }

    /// The files of the tokenizer as (name, content): `tokenizer.json`, `tokenizer_config.json` and, if it was
    /// loaded, `chat_template.jinja`. For a loaded tokenizer, the content is byte-identical to the loaded files.
    pub fn files(&self) -> Vec<(&'static str, &[u8])> {
        let mut files = vec![(FILE, &self.json[..]), (CONFIG, &self.config[..])];
        files.extend(self.template.as_ref().map(|bytes| (TEMPLATE, &bytes[..])));
        files
    }

    /// Writes [`files`](Tokenizer::files) into the existing directory `dir`. HF `transformers` opens the directory
    /// with `AutoTokenizer`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), TokenizerError> {
        for (name, bytes) in self.files() {
            let file = dir.join(name);
            let written = std::fs::write(&file, bytes);
            written.map_err(|source| TokenizerError::Io { file, op: "write", source })?;
        }
        Ok(())
    }

    pub(super) fn configure(&mut self, bytes: Vec<u8>, file: &Path) -> Result<(), TokenizerError> {
        json::check_text(&bytes, file)?;
        let settings = Settings::read(&bytes, file)?;
        if let Some(name) = settings.special("eos_token") {
            let Some(id) = self.special_id(name) else {
                return Err(bad(file, "an eos_token in the vocabulary", format!("{name:?}")));
            };
            self.eos = vec![id];
            self.eos.extend(self.special_id(END_OF_TEXT).filter(|&end| end != id));
        }
        (self.settings, self.config) = (settings, bytes);
        Ok(())
    }

    fn special_id(&self, name: &str) -> Option<u32> {
        match &self.kind {
            Kind::Byte => (name == END_OF_TEXT).then_some(byte::END_OF_TEXT_ID),
            Kind::Hf(encoder) => encoder.token_to_id(name),
        }
    }
}

/// A `tokenizer_config.json` with a chat template, and with `eos` as `eos_token` if it names none.
fn with_template(config: &[u8], template: &str, eos: Option<String>) -> Result<Vec<u8>, String> {
    let config = serde_json::from_slice::<Map<String, Value>>(config);
    let mut config = config.map_err(|error| found_at_line(&error))?;
    config.insert("chat_template".into(), template.into());
    if config.get("eos_token").is_none_or(Value::is_null) {
        config.insert("eos_token".into(), eos.ok_or("no end-of-text token")?.into());
    }
    Ok(format!("{:#}\n", sorted(Value::Object(config))).into_bytes())
}

fn default_config() -> String {
    format!(
        "{{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"eos_token\": \"{END_OF_TEXT}\",\n  \
         \"clean_up_tokenization_spaces\": false\n}}\n"
    )
}
