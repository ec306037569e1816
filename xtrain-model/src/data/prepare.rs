//! Tokenizing text and JSONL files to packed tokens.
use std::fs;
use std::path::{Path, PathBuf};

use xtrain_tensor::faults::{self, Fault};

use super::conversation::ChatEncoder;
use super::document_sink::{DocumentSink, Role};
use super::error::DataError;
use super::jsonl::{self, Location, Record};
use super::text::Blocks;
use super::writer::TokenWriter;
use crate::tokenizer::Tokenizer;

/// Number of text bytes tokenized at a time.
const BLOCK: usize = 1 << 20;

/// The allowed content of input files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Text and records of any kind.
    Any,
    /// Records with supervised answers: `messages`, or `prompt` and `completion`.
    Conversations,
}

/// The result of [`prepare`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared {
    /// Number of input bytes.
    pub bytes: u64,
    /// Number of tokens, including separators.
    pub tokens: u64,
    /// Number of documents.
    pub documents: u64,
}

/// The tokenizer of [`prepare`].
#[derive(Debug, Clone, Copy)]
pub struct NamedTokenizer<'a> {
    /// `bytes`, or the path of a file or directory; the token file records it. Empty: not recorded.
    pub name: &'a str,
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
}

impl<'a> From<&'a Tokenizer> for NamedTokenizer<'a> {
    fn from(tokenizer: &'a Tokenizer) -> NamedTokenizer<'a> {
        NamedTokenizer { name: "", tokenizer }
    }
}

/// Tokenizes `inputs` into the token file `output`.
///
/// A file named `*.jsonl` or `*.ndjson` has one record per line: `text`; or `prompt` and `completion`, whose prompt
/// is masked out of the loss; or `messages`, rendered by the tokenizer's chat template, with loss on assistant turns
/// only; or lists of messages as `prompt` and `completion`, with loss on the assistant turns of the completion. Any other file is text: one document, or several separated by `<|endoftext|>`. Every document ends with the
/// separator, except a conversation whose last turn ends with an end-of-text token. The token file stores the
/// document ends. A document and a prompt begin with the tokenizer's [`bos_id`](Tokenizer::bos_id), if it has one; the
/// text of a chat template is not changed. `progress` receives the number of input bytes processed so far.
///
/// # Errors
/// A file that is missing, empty, not UTF-8 (with the offset) or not JSONL with these fields (with the line); an
/// output that cannot be written. On error, `output` is unchanged.
pub fn prepare<'a>(
    inputs: &[PathBuf],
    output: &Path,
    tokenizer: impl Into<NamedTokenizer<'a>>,
    progress: &mut dyn FnMut(u64),
) -> Result<Prepared, DataError> {
    let NamedTokenizer { name, tokenizer } = tokenizer.into();
    let mut writer = TokenWriter::create(output, tokenizer)?.with_tokenizer_name(name);
    let bytes = feed(inputs, tokenizer, Content::Any, &mut writer, progress)?;
    let prepared = Prepared { bytes, tokens: writer.count(), documents: writer.documents() };
    if prepared.tokens == 0 {
        let want = "at least one document with text".into();
        let got = if inputs.len() > 1 { "none in any of the files".into() } else { "none".into() };
        return Err(DataError::Format { file: inputs[0].clone(), field: "documents", want, got });
    }
    writer.finish()?;
    Ok(prepared)
}

/// Tokenizes `inputs` into `sink`. Returns the number of input bytes.
pub(super) fn feed(
    inputs: &[PathBuf],
    tokenizer: &Tokenizer,
    content: Content,
    sink: &mut impl DocumentSink,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, DataError> {
    if inputs.is_empty() {
        return Err(DataError::argument("prepare", "at least one file", "none"));
    }
    let length = |path: &PathBuf| Ok(fs::metadata(path).map_err(|e| DataError::io(path, "open", e))?.len());
    let lengths = inputs.iter().map(length).collect::<Result<Vec<u64>, DataError>>()?;
    let mut done = 0;
    for (path, length) in inputs.iter().zip(lengths) {
        let mut report = |bytes: u64| progress(done + bytes.min(length));
        if is_jsonl(path) {
            feed_jsonl(path, tokenizer, content, sink, &mut report)?;
        } else if content == Content::Conversations {
            return Err(DataError::Format {
                file: path.clone(),
                field: "kind of data",
                want: "JSONL with \"messages\", or \"prompt\" and \"completion\", in each line".into(),
                got: "text".into(),
            });
        } else {
            feed_text(path, tokenizer, sink, &mut report)?;
        }
        done += length;
    }
    Ok(done)
}

fn is_jsonl(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("jsonl") || e.eq_ignore_ascii_case("ndjson"))
}

fn feed_text(
    path: &Path,
    tokenizer: &Tokenizer,
    sink: &mut impl DocumentSink,
    report: &mut dyn FnMut(u64),
) -> Result<(), DataError> {
    let (mut blocks, mut is_first) = (Blocks::open(path, BLOCK)?, true);
    while let Some(text) = blocks.next()? {
        let refused = |source| DataError::Tokenizer { origin: path.display().to_string(), source };
        let ids = if is_first { tokenizer.encode(&text) } else { tokenizer.encode_continuation(&text) };
        push_text(sink, tokenizer.bos_id(), &ids.map_err(refused)?)?;
        is_first = false;
        report(blocks.position());
    }
    sink.end_document()
}

fn feed_jsonl(
    path: &Path,
    tokenizer: &Tokenizer,
    content: Content,
    sink: &mut impl DocumentSink,
    report: &mut dyn FnMut(u64),
) -> Result<(), DataError> {
    let mut encoder = RecordEncoder::of(tokenizer);
    jsonl::records(path, |record, location| {
        if content == Content::Conversations && matches!(record, Record::Text(_)) {
            let want = "\"messages\", or \"prompt\" and \"completion\"";
            return Err(location.error(want, "\"text\", which has no supervised answer"));
        }
        encoder.encode(&record, location, sink)?;
        report(location.bytes());
        Ok(())
    })
}

/// Encodes records of JSONL files.
pub(super) struct RecordEncoder<'a> {
    tokenizer: &'a Tokenizer,
    chat: ChatEncoder<'a>,
}

impl<'a> RecordEncoder<'a> {
    pub(super) fn of(tokenizer: &'a Tokenizer) -> RecordEncoder<'a> {
        RecordEncoder { tokenizer, chat: ChatEncoder::of(tokenizer) }
    }

    /// Appends the documents of the record at `location` to `sink`.
    pub(super) fn encode(
        &mut self,
        record: &Record,
        location: &Location,
        sink: &mut impl DocumentSink,
    ) -> Result<(), DataError> {
        let tokenizer = self.tokenizer;
        let refused = |error| location.not_encoded(&error);
        match record {
            Record::Text(text) => {
                let ids = tokenizer.encode(text).map_err(refused)?;
                push_text(sink, tokenizer.bos_id(), &ids)?;
                sink.end_document()
            }
            Record::Pair { prompt, completion } => {
                sink.push(&tokenizer.encode_with_bos(prompt).map_err(refused)?, Role::Context)?;
                sink.push(&tokenizer.encode_continuation(completion).map_err(refused)?, Role::Target)?;
                sink.end_document()
            }
            Record::Chat(conversation) => self.chat.encode(conversation, location, sink),
        }
    }
}

/// Appends running text. Separators in it end documents. Every document with text begins with `bos`.
fn push_text(sink: &mut impl DocumentSink, bos: Option<u32>, ids: &[u32]) -> Result<(), DataError> {
    let separator = sink.separator();
    let bos = bos.filter(|_| !faults::on(Fault::DocumentBosNotAdded));
    for part in ids.split_inclusive(|&id| id == separator) {
        let begins = sink.last().is_none() && part != [separator];
        if let Some(bos) = bos.filter(|bos| begins && part[0] != *bos) {
            sink.push(&[bos], Role::Target)?;
        }
        sink.push(part, Role::Target)?;
        if part.ends_with(&[separator]) {
            sink.cut();
        }
    }
    Ok(())
}
