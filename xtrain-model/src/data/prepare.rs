//! Text and JSONL files to packed tokens.
use std::fs;
use std::path::{Path, PathBuf};

use super::conversation::{Chat, Ending};
use super::jsonl::{self, Record};
use super::text::Blocks;
use super::{DataError, Role, TokenWriter, separator_of};
use crate::tokenizer::Tokenizer;

/// Bytes of text that are tokenised at a time.
const BLOCK: usize = 1 << 20;

/// What files may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Text and records of any kind.
    Any,
    /// Records with an answer to learn: `messages`, or `prompt` and `completion`.
    Conversations,
}

/// How far [`prepare`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the inputs that are done.
    pub bytes: u64,
    /// Bytes of all inputs.
    pub of: u64,
}

/// What [`prepare`] wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared {
    /// Bytes of the inputs.
    pub bytes: u64,
    /// Tokens, separators included.
    pub tokens: u64,
    /// Documents.
    pub documents: u64,
}

/// Where tokens go: documents, one after the other.
pub(super) trait Sink {
    /// Adds to the document.
    fn push(&mut self, ids: &[u32], role: Role) -> Result<(), DataError>;
    /// Ends the document, with a separator where it has none.
    fn end_document(&mut self) -> Result<(), DataError>;
    /// Ends the document as it stands.
    fn cut(&mut self);
}

impl Sink for TokenWriter {
    fn push(&mut self, ids: &[u32], role: Role) -> Result<(), DataError> {
        TokenWriter::push(self, ids, role)
    }

    fn end_document(&mut self) -> Result<(), DataError> {
        TokenWriter::end_document(self)
    }

    fn cut(&mut self) {
        TokenWriter::cut(self);
    }
}

/// Tokenises `inputs` into the token file `output`. A file named `*.jsonl` or `*.ndjson` has one record a line:
/// `text`, or `prompt` and `completion`, whose prompt is masked out of the loss, or `messages`, which the
/// tokenizer's chat template writes and of which what the assistant says is to be learnt. Any other file is text:
/// one document, or several with `<|endoftext|>` between them. Every document ends with the separator, but a
/// conversation whose last turn has a token of its own that ends a text; and the file says where.
///
/// # Errors
/// A file that is missing, empty, not UTF-8 (with the offset) or not JSONL of these fields (with the line); an
/// output that cannot be written. `output` is then what it was before.
pub fn prepare(
    inputs: &[PathBuf],
    output: &Path,
    tokenizer: &Tokenizer,
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared, DataError> {
    let mut writer = TokenWriter::create(output, tokenizer)?;
    let bytes = feed(inputs, (tokenizer, Content::Any), &mut writer, progress)?;
    let prepared = Prepared { bytes, tokens: writer.count(), documents: writer.documents() };
    writer.finish()?;
    Ok(prepared)
}

/// Tokenises `inputs` into `sink`; returns their bytes.
pub(super) fn feed(
    inputs: &[PathBuf],
    (tokenizer, content): (&Tokenizer, Content),
    sink: &mut impl Sink,
    progress: &mut dyn FnMut(Progress),
) -> Result<u64, DataError> {
    if inputs.is_empty() {
        return Err(DataError::argument("prepare", "at least one file", "none"));
    }
    let mut lengths = Vec::with_capacity(inputs.len());
    for path in inputs {
        lengths.push(fs::metadata(path).map_err(|e| DataError::io(path, "open", &e))?.len());
    }
    let of = lengths.iter().sum();
    let mut done = 0;
    for (path, length) in inputs.iter().zip(lengths) {
        let mut report = |bytes: u64| progress(Progress { bytes: done + bytes.min(length), of });
        if is_jsonl(path) {
            feed_jsonl(path, (tokenizer, content), sink, &mut report)?;
        } else if content == Content::Conversations {
            return Err(DataError::Format {
                file: path.clone(),
                field: "kind of data",
                want: "JSONL with \"messages\", or \"prompt\" and \"completion\", in each row".into(),
                got: "text".into(),
            });
        } else {
            feed_text(path, tokenizer, sink, &mut report)?;
        }
        done += length;
    }
    Ok(of)
}

fn is_jsonl(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("jsonl") || e.eq_ignore_ascii_case("ndjson"))
}

fn feed_text(
    path: &Path,
    tokenizer: &Tokenizer,
    sink: &mut impl Sink,
    report: &mut dyn FnMut(u64),
) -> Result<(), DataError> {
    let (mut blocks, separator) = (Blocks::open(path, BLOCK)?, separator_of(tokenizer)?);
    let mut bytes = 0;
    while let Some(text) = blocks.next()? {
        let refused = |error| DataError::Tokenizer { source: path.display().to_string(), error };
        push_text(sink, &tokenizer.encode(&text).map_err(refused)?, separator)?;
        bytes += text.len() as u64;
        report(bytes);
    }
    sink.end_document()
}

fn feed_jsonl(
    path: &Path,
    (tokenizer, content): (&Tokenizer, Content),
    sink: &mut impl Sink,
    report: &mut dyn FnMut(u64),
) -> Result<(), DataError> {
    let (separator, mut chat) = (separator_of(tokenizer)?, None);
    jsonl::records(path, |record, place| {
        let encode = |text: &str| tokenizer.encode(text).map_err(|refused| place.not_encoded(&refused));
        match record {
            Record::Text(_) if content == Content::Conversations => {
                let want = "\"messages\", or \"prompt\" and \"completion\"";
                return Err(place.error((want, "\"text\", which has no answer to learn".into())));
            }
            Record::Text(text) => {
                push_text(sink, &encode(&text)?, separator)?;
                sink.end_document()?;
            }
            Record::Pair { prompt, completion } => {
                sink.push(&encode(&prompt)?, Role::Read)?;
                sink.push(&encode(&completion)?, Role::Learnt)?;
                sink.end_document()?;
            }
            Record::Chat { messages, tools } => {
                if chat.is_none() {
                    chat = Some(Chat::of(tokenizer, place)?);
                }
                let chat = chat.as_ref().expect("made above");
                let (tokens, ending) = chat.encode((&messages, tools), place)?;
                for run in tokens.chunk_by(|a, b| a.1 == b.1) {
                    sink.push(&run.iter().map(|token| token.0).collect::<Vec<_>>(), run[0].1)?;
                }
                match ending {
                    Ending::Learnt => sink.cut(),
                    Ending::Missing => sink.end_document()?,
                }
            }
        }
        report(place.bytes());
        Ok(())
    })
}

/// Adds running text, in which separators end documents.
fn push_text(sink: &mut impl Sink, ids: &[u32], separator: u32) -> Result<(), DataError> {
    for part in ids.split_inclusive(|&id| id == separator) {
        sink.push(part, Role::Learnt)?;
        if part.ends_with(&[separator]) {
            sink.cut();
        }
    }
    Ok(())
}
