//! A chat template of Hugging Face, carried out by minijinja.
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value};

use super::generation::{MARKS, rewrite};
use super::guard::{bounded, given_up};
use super::tags::{Tags, code_lengths, word};
use super::{ChatError, Json, Message, date, python, text};

/// The longest template that is read, in bytes. Those in use have up to 50 KiB.
pub const MAX_TEMPLATE: usize = 1 << 20;
/// The longest text that a template may write, in bytes.
pub const MAX_OUTPUT: usize = 16 << 20;
/// The longest run of code in one tag, in bytes without its texts. A chain of operators is as deep for the
/// engine as it is long.
const MAX_CODE: usize = 8 << 10;
/// The most `elif`, each of which is inside the one before.
const MAX_ELIF: usize = 1000;
/// The stack of a template that is read, in bytes: for [`MAX_CODE`] levels.
const PARSER: usize = 64 << 20;

/// A template that turns messages into text, as `apply_chat_template` of Hugging Face's `transformers` does:
/// blocks trimmed, `tojson` as `json.dumps`, `raise_exception`, `strftime_now`, `{% generation %}`,
/// `{% break %}`, the methods of Python's strings and dictionaries.
///
/// Templates are untrusted. Bounded are their length ([`MAX_TEMPLATE`]), their output ([`MAX_OUTPUT`]), their
/// instructions (200,000 and 50 a byte of what they are given), recursion, time (5 s) and memory (512 MiB, where
/// the system tells); they see no file and no other template. A loop over `None`, which jinja2 refuses, is empty.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    engine: Arc<Environment<'static>>,
    source: Arc<str>,
    has_generation: bool,
}

/// What a template is given beside the messages.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Whether the text ends with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// `tools`: what the assistant may call, a list of JSON schemas; none as in HF's `tools=None`.
    pub tools: Option<Json>,
    /// `documents`: what it may read.
    pub documents: Option<Json>,
    /// `bos_token`, `eos_token`, ... and their texts.
    pub special_tokens: Vec<(String, String)>,
    /// Whatever else the template reads, as `enable_thinking`.
    pub variables: Vec<(String, Json)>,
    /// The time for `strftime_now`, in seconds since 1970 in the zone that is meant. Without it the template
    /// has no such function, and those in use write a fixed date instead.
    pub now: Option<i64>,
}

/// A conversation as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// The bytes that stand in `{% generation %}` blocks, in order; none for a template without such blocks.
    /// [`ChatTemplate::assistant`] finds them for any template.
    pub generated: Option<Vec<Range<usize>>>,
}

impl ChatTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// [`ChatError::Syntax`]; [`ChatError::Limit`] for more than [`MAX_TEMPLATE`] bytes.
    pub fn parse(text: &str) -> Result<ChatTemplate, ChatError> {
        if text.len() > MAX_TEMPLATE {
            let (want, got) = (format!("at most {MAX_TEMPLATE} bytes"), text.len().to_string());
            return Err(ChatError::Limit { what: "its length", want, got });
        }
        // as jinja2 reads any text
        let source: Arc<str> = text.replace("\r\n", "\n").replace('\r', "\n").into();
        check_code(&source)?;
        let (rewritten, has_generation) = rewrite(&source);
        let engine = bounded(PARSER, move || {
            let mut engine = environment();
            engine.add_template_owned("chat", rewritten).map_err(|e| ChatError::Syntax { got: say(&e) })?;
            Ok(Arc::new(engine))
        })?;
        Ok(ChatTemplate { engine, source, has_generation })
    }

    /// The template's text, with its line ends as `\n`.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template says itself what the assistant said, in `{% generation %}` blocks.
    pub fn has_generation(&self) -> bool {
        self.has_generation
    }

    /// The text of `messages`.
    ///
    /// # Errors
    /// [`ChatError::Raised`] for messages that the template refuses, [`ChatError::Render`] where it fails,
    /// [`ChatError::Limit`] where it takes too much.
    pub fn render(&self, messages: &[Message], options: &Options) -> Result<Rendered, ChatError> {
        let given = Value::from_iter(messages.iter().map(Message::value));
        let seen = seen(&given, options);
        let Some(marks) = marks(&self.source, &seen) else {
            let want = "text without all of U+FDD0..=U+FDEF, which are no characters";
            return Err(ChatError::Message { want, got: "all of them".into() });
        };
        let (mut engine, context) = (Environment::clone(&self.engine), context(given, options, marks));
        let fuel = 200_000 + 50 * (seen.len() as u64).min(400_000);
        engine.set_fuel(Some(fuel));
        // every instruction may make a value one level deeper, and printing it takes some hundred bytes a level
        let stack = (fuel as usize * 900).min(1 << 30);
        let text = bounded(stack, move || {
            let mut out = Out { bytes: Vec::new(), full: false };
            let template = engine.get_template("chat").map_err(|e| ChatError::Syntax { got: say(&e) })?;
            match template.render_captured_to(context, &mut out) {
                Ok(_) => String::from_utf8(out.bytes).map_err(|e| ChatError::Render { got: e.to_string() }),
                Err(_) if out.full => Err(ChatError::Limit {
                    what: "its text",
                    want: format!("at most {MAX_OUTPUT} bytes"),
                    got: "more".into(),
                }),
                Err(e) => Err(refusal(&e, fuel)),
            }
        })?;
        if !self.has_generation {
            return Ok(Rendered { text, generated: None });
        }
        let (text, ranges) = cut(&text, marks)?;
        Ok(Rendered { text, generated: Some(ranges) })
    }
}

/// The engine as HF sets up jinja2.
fn environment() -> Environment<'static> {
    let mut engine = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    engine.set_syntax(syntax.expect("the usual delimiters differ"));
    text::install(&mut engine);
    // in Python nothing can be got from None one by one
    engine.add_test("iterable", |value: Value| !value.is_none() && value.try_iter().is_ok());
    engine.add_test("sequence", |value: Value| {
        // what has a length and items by number or key: jinja2 asks no more
        value.is_undefined() || matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    engine.add_filter("tojson", |value: Value, indent: Option<Value>, arguments| {
        python::tojson(&value, indent, arguments)
    });
    engine.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let raised = Raised(message.to_string());
        Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(raised))
    });
    engine
}

/// What `raise_exception` was given.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// The variables of a template.
fn context(messages: Value, options: &Options, marks: [char; 2]) -> Value {
    let json = |json: &Option<Json>| json.as_ref().map_or(Value::from(()), |json| json.0.clone());
    let mut fields = vec![
        ("messages".to_string(), messages),
        ("tools".to_string(), json(&options.tools)),
        ("documents".to_string(), json(&options.documents)),
        ("add_generation_prompt".to_string(), Value::from(options.add_generation_prompt)),
    ];
    fields.extend(
        MARKS.iter().zip(marks).map(|(name, mark)| (name.to_string(), Value::from(mark.to_string()))),
    );
    if let Some(now) = options.now {
        let strftime = move |format: String| {
            let unknown = || Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {format:?}"));
            date::strftime(&format, now).ok_or_else(unknown)
        };
        fields.push(("strftime_now".to_string(), Value::from_function(strftime)));
    }
    let special = options.special_tokens.iter();
    fields.extend(special.map(|(name, text)| (name.clone(), Value::from(text.as_str()))));
    fields.extend(options.variables.iter().map(|(name, value)| (name.clone(), value.0.clone())));
    Value::from_pairs(fields)
}

/// All that a template is given, as text.
fn seen(messages: &Value, options: &Options) -> String {
    let mut text = messages.to_string();
    let variables = options.variables.iter().map(|(_, value)| value);
    for json in options.tools.iter().chain(&options.documents).chain(variables) {
        text += &json.0.to_string();
    }
    options.special_tokens.iter().for_each(|(_, special)| text += special);
    text
}

/// Two noncharacters that stand nowhere in what the template can print.
fn marks(source: &str, seen: &str) -> Option<[char; 2]> {
    let mut free = ('\u{fdd0}'..='\u{fdef}').filter(|&c| !source.contains(c) && !seen.contains(c));
    Some([free.next()?, free.next()?])
}

/// Refuses what would be too deep for the engine.
fn check_code(source: &str) -> Result<(), ChatError> {
    let limit = |what, most: usize, got: usize| {
        Err(ChatError::Limit { what, want: format!("at most {most}"), got: got.to_string() })
    };
    let longest = code_lengths(source).max().unwrap_or(0);
    if longest > MAX_CODE {
        return limit("bytes of code in one tag", MAX_CODE, longest);
    }
    let elifs = Tags::of(source).filter(|tag| word(&source[tag.start + 2..tag.end - 2]).starts_with("elif"));
    match elifs.count() {
        n if n > MAX_ELIF => limit("elif tags", MAX_ELIF, n),
        _ => Ok(()),
    }
}

/// Takes the marks out of `text`; what stood between them.
fn cut(text: &str, [begins, ends]: [char; 2]) -> Result<(String, Vec<Range<usize>>), ChatError> {
    let (mut out, mut ranges, mut open) = (String::with_capacity(text.len()), Vec::new(), None);
    for c in text.chars() {
        match (c, open) {
            (c, None) if c == begins => open = Some(out.len()),
            (c, Some(from)) if c == ends => {
                ranges.push(from..out.len());
                open = None;
            }
            (c, _) if c == begins || c == ends => break,
            (c, _) => out.push(c),
        }
    }
    match open {
        None => Ok((out, ranges)),
        Some(_) => {
            Err(ChatError::Render { got: "a {% generation %} block inside another, or left open".into() })
        }
    }
}

/// Bytes up to the limit.
struct Out {
    bytes: Vec<u8>,
    full: bool,
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if given_up() || self.bytes.len() + bytes.len() > MAX_OUTPUT {
            self.full = true;
            return Err(io::Error::other("the limit of an output"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What an error of the engine means.
fn refusal(error: &Error, fuel: u64) -> ChatError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return ChatError::Raised { message: message.clone() };
        }
        source = inner.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => {
            let (want, got) = (format!("at most {fuel}"), "more".into());
            ChatError::Limit { what: "its instructions", want, got }
        }
        _ => ChatError::Render { got: say(error) },
    }
}

/// An error of the engine in its own words, with the line.
fn say(error: &Error) -> String {
    let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    format!("{}{detail}{line}", error.kind())
}
