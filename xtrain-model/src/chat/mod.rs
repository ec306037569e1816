//! Chat templates: renders messages as Hugging Face's `apply_chat_template` does, and finds the assistant's text.
//!
//! ```
//! use xtrain_model::chat::{ChatTemplate, Message, Options};
//!
//! let template = ChatTemplate::parse("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")?;
//! let messages = [Message::new("user", "Hi"), Message::new("assistant", "Hello")];
//! let rendered = template.render(&messages, &Options::default())?;
//! assert_eq!(rendered.text, "user: Hi\nassistant: Hello\n");
//! # Ok::<(), xtrain_model::chat::ChatError>(())
//! ```
mod date;
mod error;
#[cfg(test)]
mod every_variant;
mod generation;
mod guard;
#[cfg(test)]
mod hostile;
mod json;
mod limits;
mod message;
mod python;
mod source;
mod tags;
mod template;
mod templates;
#[cfg(test)]
mod tests;
mod text;
mod turns;

pub use error::ChatError;
pub use json::Json;
pub use limits::{MAX_OUTPUT, MAX_TEMPLATE};
pub use message::Message;
pub use source::BUILT_IN;
pub use template::{ChatTemplate, Options, Rendered};
pub(crate) use templates::Templates;
