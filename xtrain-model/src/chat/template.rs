//! A Hugging Face chat template, rendered by minijinja.
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value, escape_formatter};

use super::error::ChatError;
use super::generation::{MARKS, rewrite};
use super::guard::run_limited;
use super::json::Json;
use super::limits::{LimitedOutput, MAX_OUTPUT, MAX_TEMPLATE};
use super::message::Message;
use super::tags::{code_lengths, tag_content, tags};
use super::{date, python, text};

/// Maximum length of the code in one tag in bytes, without string literals. The engine's recursion depth for a chain
/// of operators is its length.
const MAX_CODE: usize = 8 << 10;
/// Maximum number of `elif` tags, each of which is nested in the previous one.
const MAX_ELIF: usize = 1000;
/// Stack size of the parser in bytes, for [`MAX_CODE`] levels.
const PARSER_STACK: usize = 64 << 20;

/// A template that renders messages to text as `apply_chat_template` of Hugging Face's `transformers` does: trimmed
/// blocks, floats as Python prints them, `tojson` as `json.dumps`, `raise_exception`, `strftime_now`,
/// `{% generation %}`, `{% break %}`, the methods of Python's strings and dictionaries.
///
/// Templates are untrusted input. Their size ([`MAX_TEMPLATE`]), output ([`MAX_OUTPUT`]), number of instructions
/// (200,000 plus 50 per byte of input), recursion, time (5 s) and memory (512 MiB, if the system reports it) are
/// limited. They have no access to files or other templates. Memory is checked every 5 ms. A loop that only doubles text
/// (`{% set ns.s = ns.s ~ ns.s %}`) cannot be stopped and may use all memory.
///
/// A loop over `None` is empty; jinja2 rejects it. Floats in printed lists and dictionaries, and floats that `~` or `join`
/// appends to text, are printed as in Rust: `1e-5` in a list, `0.00001` after `~`, where Python has `1e-05`. `tojson` and
/// `string` print all floats as Python does.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    engine: Arc<Environment<'static>>,
    source: Arc<str>,
    has_generation: bool,
    /// Whether messages whose content is not text are refused before they are rendered.
    text_only: bool,
    /// The file of the template, for errors.
    file: Option<Arc<Path>>,
}

/// The variables of a template in addition to the messages.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Whether the text ends with the start of an assistant turn.
    pub add_generation_prompt: bool,
    /// `tools`: the functions that the assistant may call, a list of JSON schemas. `None`: as HF's `tools=None`.
    pub tools: Option<Json>,
    /// `documents`: documents for the assistant. `None`: as HF's `documents=None`.
    pub documents: Option<Json>,
    /// `bos_token`, `eos_token`, ... and their texts.
    pub special_tokens: Vec<(String, String)>,
    /// Other variables of the template, such as `enable_thinking`.
    pub variables: Vec<(String, Json)>,
    /// The time for `strftime_now`, in seconds since 1970 in the local time zone. `None`: the template has no such
    /// function; templates in use then print a fixed date.
    pub now: Option<i64>,
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// The byte ranges of `{% generation %}` blocks, in order. `None`: the template has no such blocks.
    /// [`ChatTemplate::assistant`] finds the assistant's text for any template.
    pub generated: Option<Vec<Range<usize>>>,
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`ChatError::Syntax`]; [`ChatError::Limit`] for more than [`MAX_TEMPLATE`] bytes.
    pub fn parse(text: &str) -> Result<ChatTemplate, ChatError> {
        if text.len() > MAX_TEMPLATE {
            let (want, got) = (format!("at most {MAX_TEMPLATE} bytes"), text.len().to_string());
            return Err(ChatError::Limit { what: "length", want, got });
        }
        // jinja2 normalizes line breaks
        let source: Arc<str> = text.replace("\r\n", "\n").replace('\r', "\n").into();
        check_code(&source)?;
        let (rewritten, has_generation) = rewrite(&source);
        let engine = run_limited(PARSER_STACK, move || {
            let mut engine = environment();
            let added = engine.add_template_owned("chat", rewritten);
            added.map_err(|e| syntax_error(&e))?;
            Ok(Arc::new(engine))
        })?;
        Ok(ChatTemplate { engine, source, has_generation, text_only: false, file: None })
    }

    /// The template, for messages whose content is text.
    pub(super) fn of_text_only(self) -> ChatTemplate {
        ChatTemplate { text_only: true, ..self }
    }

    /// [`ChatTemplate::parse`] for a template of `file`, which its errors name.
    ///
    /// # Errors
    /// As [`ChatTemplate::parse`].
    pub fn parse_file(text: &str, file: Option<&Path>) -> Result<ChatTemplate, ChatError> {
        let template = ChatTemplate::parse(text).map_err(|error| error.in_file(file))?;
        Ok(ChatTemplate { file: file.map(Arc::from), ..template })
    }

    /// The text of the template with line breaks as `\n`.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders `messages`.
    ///
    /// # Errors
    /// [`ChatError::Raised`] for messages that the template rejects, [`ChatError::Message`] for content that the built-in
    /// template does not support, [`ChatError::Render`] if it fails, [`ChatError::Limit`] if it exceeds a limit.
    pub fn render(&self, messages: &[Message], options: &Options) -> Result<Rendered, ChatError> {
        let other =
            |message: &Message| message.json.get("content").map_or("nothing", |content| content.kind());
        let mut others = messages.iter().enumerate().map(|(at, message)| (at, message, other(message)));
        if let Some((at, message, kind)) = others.find(|(.., kind)| self.text_only && *kind != "a string") {
            let got = format!("{kind} in message {at} of the role {}", message.role());
            return Err(ChatError::Message { want: "text as \"content\" for the built-in template", got });
        }
        self.render_within_limits(messages, options).map_err(|error| error.in_file(self.file.as_deref()))
    }

    fn render_within_limits(&self, messages: &[Message], options: &Options) -> Result<Rendered, ChatError> {
        let messages: Value = messages.iter().map(|message| message.json.0.clone()).collect();
        let input = input_text(&messages, options);
        let Some(marks) = marks(&self.source, &input) else {
            let want = "text without one of the noncharacters U+FDD0..=U+FDEF";
            return Err(ChatError::Message { want, got: "all of them".into() });
        };
        let (mut engine, context) = (Environment::clone(&self.engine), context(messages, options, marks));
        let fuel = 200_000 + 50 * (input.len() as u64).min(400_000);
        engine.set_fuel(Some(fuel));
        // every instruction may nest a value one level deeper, and printing it takes some hundred bytes per level
        let stack = (fuel as usize * 900).min(1 << 30);
        let text = run_limited(stack, move || {
            let mut out = LimitedOutput::default();
            let template = engine.get_template("chat").map_err(|e| syntax_error(&e))?;
            match template.render_captured_to(context, &mut out) {
                Ok(_) => String::from_utf8(out.bytes).map_err(|e| ChatError::Render { got: e.to_string() }),
                Err(_) if out.full => {
                    let (want, got) = (format!("at most {MAX_OUTPUT} bytes"), "more".into());
                    Err(ChatError::Limit { what: "output", want, got })
                }
                Err(e) => Err(refusal(&e, fuel)),
            }
        })?;
        if !self.has_generation {
            return Ok(Rendered { text, generated: None });
        }
        let (text, ranges) = strip_marks(&text, marks)?;
        Ok(Rendered { text, generated: Some(ranges) })
    }
}

/// The engine, configured as HF configures jinja2.
fn environment() -> Environment<'static> {
    let mut engine = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    engine.set_syntax(syntax.expect("the default delimiters are distinct"));
    text::install(&mut engine);
    engine.set_formatter(|out, state, value| match python::float_of(value) {
        Some(float) => escape_formatter(out, state, &Value::from(float)),
        None => escape_formatter(out, state, value),
    });
    // in Python, None is not iterable
    engine.add_test("iterable", |value: Value| !value.is_none() && value.try_iter().is_ok());
    engine.add_test("sequence", |value: Value| {
        // jinja2 requires only a length and items by index or key
        value.is_undefined() || matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    engine.add_filter("tojson", |value: Value, indent: Option<Value>, arguments: Kwargs| {
        python::tojson(&value, indent, &arguments)
    });
    engine.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let raised = Raised(message.to_string());
        Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(raised))
    });
    engine
}

/// The argument of `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn context(messages: Value, options: &Options, marks: [char; 2]) -> Value {
    let json = |json: &Option<Json>| json.as_ref().map_or(Value::from(()), |json| json.0.clone());
    let mut fields: Vec<(&str, Value)> = vec![
        ("messages", messages),
        ("tools", json(&options.tools)),
        ("documents", json(&options.documents)),
        ("add_generation_prompt", Value::from(options.add_generation_prompt)),
    ];
    fields.extend(MARKS.into_iter().zip(marks.map(|mark| Value::from(mark.to_string()))));
    if let Some(now) = options.now {
        let strftime = move |format: String| {
            let unknown = || Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {format:?}"));
            date::strftime(&format, now).ok_or_else(unknown)
        };
        fields.push(("strftime_now", Value::from_function(strftime)));
    }
    let special = options.special_tokens.iter();
    fields.extend(special.map(|(name, text)| (name.as_str(), Value::from(text.as_str()))));
    fields.extend(options.variables.iter().map(|(name, value)| (name.as_str(), value.0.clone())));
    Value::from_pairs(fields)
}

/// All input of a template as text.
fn input_text(messages: &Value, options: &Options) -> String {
    let mut text = messages.to_string();
    let variables = options.variables.iter().map(|(_, value)| value);
    for json in options.tools.iter().chain(&options.documents).chain(variables) {
        text += &json.0.to_string();
    }
    options.special_tokens.iter().for_each(|(_, special)| text += special);
    text
}

/// Two noncharacters that occur neither in the template nor in its input. `None`: there are none.
fn marks(source: &str, input: &str) -> Option<[char; 2]> {
    let mut free = ('\u{fdd0}'..='\u{fdef}').filter(|&c| !source.contains(c) && !input.contains(c));
    Some([free.next()?, free.next()?])
}

/// Rejects code that is nested too deep for the engine.
fn check_code(source: &str) -> Result<(), ChatError> {
    let limit = |what, max: usize, got: usize| {
        Err(ChatError::Limit { what, want: format!("at most {max}"), got: got.to_string() })
    };
    let longest = code_lengths(source).max().unwrap_or(0);
    if longest > MAX_CODE {
        return limit("bytes of code in one tag", MAX_CODE, longest);
    }
    let elifs =
        tags(source).filter(|tag| tag_content(&source[tag.start + 2..tag.end - 2]).starts_with("elif"));
    match elifs.count() {
        n if n > MAX_ELIF => limit("elif tags", MAX_ELIF, n),
        _ => Ok(()),
    }
}

/// Removes the marks from `text`. Also returns the byte ranges between them.
fn strip_marks(text: &str, [begins, ends]: [char; 2]) -> Result<(String, Vec<Range<usize>>), ChatError> {
    let refused = || Err(ChatError::Render { got: "a nested or unclosed {% generation %} block".into() });
    let (mut out, mut ranges, mut open) = (String::with_capacity(text.len()), Vec::new(), None);
    for c in text.chars() {
        match (c, open) {
            (c, None) if c == begins => open = Some(out.len()),
            (c, Some(from)) if c == ends => {
                ranges.push(from..out.len());
                open = None;
            }
            (c, _) if c == begins || c == ends => return refused(),
            (c, _) => out.push(c),
        }
    }
    match open {
        None => Ok((out, ranges)),
        Some(_) => refused(),
    }
}

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
            ChatError::Limit { what: "instructions", want, got }
        }
        _ => ChatError::Render { got: describe(error) },
    }
}

/// An error of the parser, whose message does not begin with its kind.
fn syntax_error(error: &Error) -> ChatError {
    let got = describe(error);
    ChatError::Syntax { got: got.strip_prefix("syntax error: ").map_or(got.clone(), ToString::to_string) }
}

/// The message of an engine error with its line.
fn describe(error: &Error) -> String {
    let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    format!("{}{detail}{line}", error.kind())
}
