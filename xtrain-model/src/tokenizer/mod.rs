//! Text to token ids and back: bytes, or a byte-level BPE in HF's `tokenizer.json`.
mod alphabet;
mod byte;
mod error;
#[cfg(test)]
mod every_variant;
mod hf;
mod json;
mod mask;
#[cfg(test)]
mod mutations;
mod pipeline;
mod settings;
mod stream;

use std::path::Path;

pub use error::TokenizerError;
pub use stream::StreamDecoder;

use json::bad;
use settings::Settings;

/// The special token that ends a document.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// One more than the largest id that a vocabulary may use: what the sampler serves.
pub const MAX_VOCABULARY: u32 = 1 << 19;

const FILE: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";

/// Text to token ids and back.
///
/// | kind | ids |
/// |---|---|
/// | bytes (built in) | 0..=255 the byte, 256 `<|endoftext|>`; vocabulary 257. There is no padding token: packed windows and ragged rows need none |
/// | HF `tokenizer.json` | those of the file; its decoder is `ByteLevel` (GPT-2, Llama 3, Qwen, ...) |
///
/// Every token is a string of bytes, so decoding is concatenation and streams exactly.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    kind: Kind,
    vocabulary: Vocabulary,
    eos: Vec<u32>,
    /// Those of a model, where they are others.
    ends: Vec<u32>,
    settings: Settings,
    json: Vec<u8>,
    config: Vec<u8>,
    /// `chat_template.jinja`, where it is a file of its own.
    template: Option<Vec<u8>>,
}

#[derive(Debug, Clone)]
enum Kind {
    Byte,
    Hf(Box<hf::Inner>),
}

/// What each id stands for.
#[derive(Debug, Clone, Default)]
struct Vocabulary {
    tokens: Vec<Option<Box<[u8]>>>,
    special: Vec<u32>,
}

impl Tokenizer {
    /// The built-in tokenizer: a token is a byte, 256 is `<|endoftext|>`.
    pub fn byte() -> Tokenizer {
        Tokenizer {
            kind: Kind::Byte,
            vocabulary: byte::vocabulary(),
            eos: vec![byte::END_OF_TEXT_ID],
            ends: Vec::new(),
            settings: Settings::default(),
            json: byte::to_json().into_bytes(),
            config: default_config().into_bytes(),
            template: None,
        }
    }

    /// The tokenizer in the directory `path` (`tokenizer.json`), or in the file `path`. A
    /// `tokenizer_config.json` beside it names the end-of-sequence token; it and a `chat_template.jinja` beside
    /// it hold chat templates.
    ///
    /// # Errors
    /// A missing, unreadable, too large (64 MiB) or too deep (64) file, one that HF `tokenizers` refuses, a
    /// decoder that is not `ByteLevel`, an id at or above [`MAX_VOCABULARY`], an `eos_token` that is not in
    /// the vocabulary.
    pub fn load(path: &Path) -> Result<Tokenizer, TokenizerError> {
        let file = if path.is_dir() { path.join(FILE) } else { path.to_path_buf() };
        let Some(bytes) = json::read(&file)? else {
            return Err(TokenizerError::Io { file, doing: "open", got: "no such file".into() });
        };
        json::check_depth(&bytes, &file)?;
        let config = json::read(&file.with_file_name(CONFIG))?;
        let mut tokenizer = Tokenizer::from_parts(bytes, config, &file)?;
        let template = file.with_file_name(TEMPLATE);
        if let Some(bytes) = json::read(&template)? {
            tokenizer.settings.template_of_its_own(&bytes, &template)?;
            tokenizer.template = Some(bytes);
        }
        Ok(tokenizer)
    }

    /// The tokenizer of a `tokenizer.json` and of the `tokenizer_config.json` beside it; `file` is the name of
    /// the first in errors.
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
            tokenizer.configure(config, &file.with_file_name(CONFIG))?;
        }
        Ok(tokenizer)
    }

    /// The tokenizer that `json`, the content of a `tokenizer.json`, describes; `file` is its name in errors.
    ///
    /// # Errors
    /// As [`load`](Tokenizer::load).
    pub fn from_json(json: Vec<u8>, file: &Path) -> Result<Tokenizer, TokenizerError> {
        json::check_depth(&json, file)?;
        if byte::recognises(&json) {
            return Ok(Tokenizer { json, ..Tokenizer::byte() });
        }
        pipeline::check(&json, file)?;
        let (inner, vocabulary) = hf::load(&json, file)?;
        let mut tokenizer = Tokenizer {
            kind: Kind::Hf(Box::new(inner)),
            vocabulary,
            eos: Vec::new(),
            ends: Vec::new(),
            settings: Settings::default(),
            json,
            config: default_config().into_bytes(),
            template: None,
        };
        tokenizer.eos.extend(tokenizer.special_id(END_OF_TEXT));
        Ok(tokenizer)
    }

    /// Trains a byte-level BPE on `texts`. Ids: `<|endoftext|>` and the other `specials` from 0, then the 256
    /// bytes, then merges in the order in which they were learned. Any text can be encoded with it. A small
    /// corpus may have fewer merges than asked for.
    ///
    /// # Errors
    /// `vocab_size` below 256 + the specials or above [`MAX_VOCABULARY`]; an empty or repeated special.
    pub fn train_bpe(
        texts: impl Iterator<Item = String> + Send,
        vocab_size: usize,
        specials: &[&str],
    ) -> Result<Tokenizer, TokenizerError> {
        let mut all = vec![END_OF_TEXT.to_string()];
        for &special in specials {
            if special.is_empty() || (special != END_OF_TEXT && all.iter().any(|s| s == special)) {
                let (want, got) = ("specials that are not empty and differ".into(), format!("{special:?}"));
                return Err(TokenizerError::Argument { op: "train_bpe", want, got });
            }
            if special != END_OF_TEXT {
                all.push(special.to_string());
            }
        }
        let (least, most) = (256 + all.len(), MAX_VOCABULARY as usize);
        if !(least..=most).contains(&vocab_size) {
            let want = format!("a vocabulary of {least} (256 bytes and {} special) to {most}", all.len());
            return Err(TokenizerError::Argument { op: "train_bpe", want, got: vocab_size.to_string() });
        }
        Tokenizer::from_json(hf::train_bpe(texts, vocab_size, &all)?, Path::new("the trained tokenizer"))
    }

    /// The ids of `text`. Special tokens that stand in the text are parsed (as in HF); none are added.
    /// With bytes it cannot fail.
    ///
    /// # Errors
    /// A text on which the tokenizer's own pattern gives up (a foreign `tokenizer.json` only).
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match &self.kind {
            Kind::Byte => Ok(byte::encode(text)),
            Kind::Hf(inner) => hf::encode(inner, text),
        }
    }

    /// The text of `ids`, special tokens included: their bytes concatenated, U+FFFD for what is not UTF-8 and
    /// for an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A decoder for ids that come one by one.
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }

    /// The bytes that one id stands for; those of U+FFFD for an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        const UNKNOWN: &[u8] = "\u{fffd}".as_bytes();
        self.vocabulary.tokens.get(id as usize).and_then(Option::as_deref).unwrap_or(UNKNOWN)
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.tokens.len()
    }

    /// The ids after which a completion is over: those of [`with_ends`](Tokenizer::with_ends), else the
    /// `eos_token` of `tokenizer_config.json` first, then `<|endoftext|>` where it is another one. Empty if the
    /// tokenizer has neither.
    pub fn eos_ids(&self) -> &[u32] {
        if self.ends.is_empty() { &self.eos } else { &self.ends }
    }

    /// This tokenizer for a model whose texts end with `ends`, in that order (its `generation_config.json` may
    /// have more of them than the tokenizer has names for). None: as it was.
    pub fn with_ends(self, ends: &[u32]) -> Tokenizer {
        Tokenizer { ends: ends.to_vec(), ..self }
    }

    /// The id that ends a document in packed data: `<|endoftext|>`, else the tokenizer's own end of text.
    pub fn separator(&self) -> Option<u32> {
        self.eos.last().copied()
    }

    /// How many bytes of text `ids` stand for (for bits per byte); special tokens count nothing.
    pub fn text_bytes(&self, ids: &[u32]) -> u64 {
        let plain = ids.iter().filter(|id| self.vocabulary.special.binary_search(id).is_err());
        plain.map(|&id| self.token_bytes(id).len() as u64).sum()
    }

    /// A 64-bit digest (FNV-1a) of what each id means: data and models that agree on it share their ids.
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

    /// Special tokens under the names that chat templates know (`bos_token`, `eos_token`, ...), with their text.
    pub fn special_tokens(&self) -> &[(String, String)] {
        &self.settings.special_tokens
    }

    /// The chat templates under their names; the usual one is `default`. Their text is as it was read:
    /// [`crate::chat::ChatTemplate::of`] reads one.
    pub fn chat_templates(&self) -> &[(String, String)] {
        &self.settings.templates
    }

    /// The files that hold this tokenizer, as (name, content): `tokenizer.json`, `tokenizer_config.json` and,
    /// where it had one, `chat_template.jinja`. A loaded tokenizer gives back the bytes that were loaded.
    pub fn files(&self) -> Vec<(&'static str, &[u8])> {
        let mut files = vec![(FILE, &self.json[..]), (CONFIG, &self.config[..])];
        files.extend(self.template.as_ref().map(|bytes| (TEMPLATE, &bytes[..])));
        files
    }

    /// Writes [`files`](Tokenizer::files) into `dir`, which exists. HF `transformers` opens
    /// the directory with `AutoTokenizer`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), TokenizerError> {
        for (name, bytes) in self.files() {
            let file = dir.join(name);
            std::fs::write(&file, bytes).map_err(|e| TokenizerError::Io {
                file,
                doing: "write",
                got: e.to_string(),
            })?;
        }
        Ok(())
    }

    fn configure(&mut self, bytes: Vec<u8>, file: &Path) -> Result<(), TokenizerError> {
        json::check_depth(&bytes, file)?;
        let settings = Settings::read(&bytes, file)?;
        if let Some(name) = settings.special("eos_token") {
            let Some(id) = self.special_id(name) else {
                return Err(bad(file, "an eos_token of the vocabulary", format!("{name:?}")));
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
            Kind::Hf(inner) => inner.token_to_id(name),
        }
    }
}

fn default_config() -> String {
    format!(
        "{{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"eos_token\": \"{END_OF_TEXT}\",\n  \
         \"clean_up_tokenization_spaces\": false\n}}\n"
    )
}

#[cfg(test)]
mod tests;
