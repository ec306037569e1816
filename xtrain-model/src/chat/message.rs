//! One message of a conversation.
use minijinja::Value;
use xtrain_tensor::faults::{self, Fault};

use super::error::ChatError;
use super::json::Json;

/// A message: an object with a `role`, usually `content`, and other fields that the template reads (`tool_calls`,
/// `reasoning_content`, ...).
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    pub(super) json: Json,
    role: String,
}

impl Message {
    /// A message with a text.
    pub fn new(role: &str, content: &str) -> Message {
        let json = Json(Value::from_pairs([("role", role), ("content", content)]));
        Message { json, role: role.into() }
    }

    /// Converts an object to a message.
    ///
    /// # Errors
    /// [`ChatError::Message`] unless `json` is an object whose `role` is a string.
    pub fn from_json(json: Json) -> Result<Message, ChatError> {
        let want = "messages as objects with a string as \"role\"";
        match json.get("role") {
            Some(role) if role.as_str().is_some() => {
                let role = role.as_str().unwrap_or_default().to_string();
                Ok(Message { json, role })
            }
            Some(role) => Err(ChatError::Message { want, got: format!("{} as role", role.kind()) }),
            None if json.kind() == "an object" => Err(ChatError::Message { want, got: "no role".into() }),
            None => Err(ChatError::Message { want, got: json.kind().into() }),
        }
    }

    /// Converts a list of objects to messages.
    ///
    /// # Errors
    /// As [`Message::from_json`]; a value that is not a list; an empty list; a role that is nearly `assistant`, such as
    /// `asistant`; a message of the assistant whose `weight` is not 0 or 1.
    pub fn list(json: &Json) -> Result<Vec<Message>, ChatError> {
        let want = "a list of messages";
        let items = json.items().ok_or(ChatError::Message { want, got: json.kind().into() })?;
        if items.is_empty() {
            return Err(ChatError::Message { want, got: "an empty list".into() });
        }
        items.into_iter().map(|item| Message::from_json(item)?.checked()).collect()
    }

    /// Checks the role, and the weight of a message of the assistant.
    fn checked(self) -> Result<Message, ChatError> {
        let role = self.role.to_lowercase();
        // others that begin with it, such as `assistant_2`, are roles of their own
        let is_nearly = !role.starts_with("assistant") && strsim::osa_distance(&role, "assistant") <= 2;
        let is_wrong = is_nearly || role == "assistant" && role != self.role;
        if is_wrong && !faults::on(Fault::MisspelledRolesUntrained) {
            let got = format!("{:?}", self.role);
            return Err(ChatError::Message { want: "the role \"assistant\"", got });
        }
        match self.weight() {
            Err(got) if self.role == "assistant" => {
                Err(ChatError::Message { want: "\"weight\" as 0 or 1", got })
            }
            _ => Ok(self),
        }
    }

    /// The role: system, user, assistant, ...
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Whether a turn of the assistant contributes to the loss: its `weight` is not 0.
    pub fn is_trained(&self) -> bool {
        self.weight() != Ok(false) || faults::on(Fault::WeightsOfTurnsIgnored)
    }

    /// The field `weight`: 0 or 1. Fails with the text of another value.
    fn weight(&self) -> Result<bool, String> {
        match self.json.get("weight").map(|weight| weight.0) {
            None => Ok(true),
            Some(weight) if weight.is_none() || weight == Value::from(1) => Ok(true),
            Some(weight) if weight == Value::from(0) => Ok(false),
            Some(weight) => Err(format!("{weight:?}")),
        }
    }

    /// The texts of the content: a string, or the `text` of each part of a list.
    pub fn texts(&self) -> Vec<String> {
        let parts = self.json.get("content").and_then(|content| content.items()).unwrap_or_default();
        let text = |part: &Json| part.get("text")?.as_str().map(str::to_string);
        self.content().into_iter().chain(parts.iter().filter_map(text)).collect()
    }

    /// The content. `None`: absent, or not a string.
    pub fn content(&self) -> Option<String> {
        self.json.get("content")?.as_str().map(str::to_string)
    }
}
