//! The error of chat templates.
use std::fmt;
use std::path::{Path, PathBuf};

/// Why messages could not be rendered.
///
/// The errors of the template engine are converted to text: an engine error may hold values of an untrusted template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// A syntax error in a template.
    #[error("chat template: syntax error: {}", Line(got))]
    Syntax {
        /// The parser's message with the line.
        got: String,
    },
    /// The template called `raise_exception`.
    #[error("chat template: it rejects the messages: {}", Line(message))]
    Raised {
        /// The template's message.
        message: String,
    },
    /// The template failed.
    #[error("chat template: cannot be rendered: {}", Line(got))]
    Render {
        /// The message with the line.
        got: String,
    },
    /// A limit on untrusted templates was exceeded.
    #[error("chat template: {what}: expected {want}, found {got}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The limit.
        want: String,
        /// The value found.
        got: String,
    },
    /// An invalid message, or a value that templates do not support.
    #[error("messages: expected {want}, found {}", Line(got))]
    Message {
        /// What was expected.
        want: &'static str,
        /// What was found.
        got: String,
    },
    /// The text of an assistant turn depends on the messages after it, or the template rejects the messages up to it.
    #[error(
        "chat template: {}, so its tokens cannot be identified; the template needs {{% generation %}} blocks{}",
        match source {
            None => format!("the text of message {at} depends on the messages after it"),
            Some(_) => format!("the messages up to message {at} cannot be rendered without those after it"),
        },
        source.as_ref().map(|source| format!(": {source}")).unwrap_or_default()
    )]
    Turn {
        /// The index of the message, from 0.
        at: usize,
        /// Why the messages before the turn, or up to it, cannot be rendered. `None`: they can.
        source: Option<Box<ChatError>>,
    },
    /// A template of a file has a syntax error or cannot be rendered.
    #[error("{}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The error.
        source: Box<ChatError>,
    },
    /// There is no template of that name.
    #[error("chat template {name:?} not found{}{}",
        if known.is_empty() { "" } else { "; templates: " }, known.join(", "))]
    Missing {
        /// The name.
        name: String,
        /// The names of the existing templates.
        known: Vec<String>,
    },
}

impl ChatError {
    /// Adds the file of the template, if it is known, to an error of the template itself.
    pub(super) fn in_file(self, file: Option<&Path>) -> ChatError {
        match (self, file) {
            (source @ (ChatError::Syntax { .. } | ChatError::Render { .. }), Some(file)) => {
                ChatError::File { file: file.into(), source: Box::new(source) }
            }
            (error, _) => error,
        }
    }
}

/// A text as one line of at most 300 characters without control characters.
struct Line<'a>(&'a str);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_CHARS: usize = 300;
        for c in self.0.chars().take(MAX_CHARS) {
            if c.is_control() {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        f.write_str(if self.0.chars().nth(MAX_CHARS).is_some() { "..." } else { "" })
    }
}
