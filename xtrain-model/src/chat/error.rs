//! What a chat template refuses.
use std::fmt;

/// Why messages could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatError {
    /// A template that is not one.
    Syntax {
        /// What the parser said, with the line.
        got: String,
    },
    /// The template refused these messages, in its own words.
    Raised {
        /// Its words.
        message: String,
    },
    /// The template could not be carried out.
    Render {
        /// What went wrong, with the line.
        got: String,
    },
    /// A limit that keeps a hostile template from taking the machine.
    Limit {
        /// What is limited.
        what: &'static str,
        /// How much there may be.
        want: String,
        /// How much there was.
        got: String,
    },
    /// Something that is no message, or no value that a template can have.
    Message {
        /// What was expected.
        want: &'static str,
        /// What was found.
        got: String,
    },
    /// The text of a turn is not where the template puts it when the conversation ends there.
    Turn {
        /// The message, from 0.
        at: usize,
    },
    /// There is no template of that name.
    Missing {
        /// The name.
        name: String,
        /// Those that are there.
        known: Vec<String>,
    },
}

impl fmt::Display for ChatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChatError::Syntax { got } => write!(f, "chat template: cannot be read: {}", Line(got)),
            ChatError::Raised { message } => {
                write!(f, "chat template: it refuses the messages: {}", Line(message))
            }
            ChatError::Render { got } => write!(f, "chat template: cannot be rendered: {}", Line(got)),
            ChatError::Limit { what, want, got } => {
                write!(f, "chat template: {what}: want {want}, got {got}")
            }
            ChatError::Message { want, got } => write!(f, "messages: want {want}, found {}", Line(got)),
            ChatError::Turn { at } => write!(
                f,
                "chat template: the text of message {at} changes with what follows, so that its tokens cannot be \
                 told apart; it needs {{% generation %}} blocks"
            ),
            ChatError::Missing { name, known } if known.is_empty() => {
                write!(f, "chat template {name:?}: there is none")
            }
            ChatError::Missing { name, known } => {
                write!(f, "chat template {name:?}: there is none; there are {}", known.join(", "))
            }
        }
    }
}

impl std::error::Error for ChatError {}

/// A text in one line of at most 300 characters, without control characters.
struct Line<'a>(&'a str);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 300;
        for c in self.0.chars().take(LONGEST) {
            match c.is_control() {
                true => write!(f, "{}", c.escape_default())?,
                false => write!(f, "{c}")?,
            }
        }
        f.write_str(if self.0.chars().nth(LONGEST).is_some() { "..." } else { "" })
    }
}
