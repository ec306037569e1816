//! What `tokenizer_config.json` and `chat_template.jinja` say beside the vocabulary.
use std::path::Path;

use serde_json::Value;

use super::TokenizerError;
use super::json::bad;

/// Special tokens that have a name of their own.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The name of the usual template.
pub(super) const DEFAULT: &str = "default";

/// Special tokens by name, and chat templates by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Settings {
    pub(super) special_tokens: Vec<(String, String)>,
    pub(super) templates: Vec<(String, String)>,
}

impl Settings {
    /// Reads a `tokenizer_config.json`.
    ///
    /// # Errors
    /// What is no JSON, a special token without text, a `chat_template` that is neither a text nor a list of
    /// `{"name": ..., "template": ...}`.
    pub(super) fn read(bytes: &[u8], file: &Path) -> Result<Settings, TokenizerError> {
        let value: Value = serde_json::from_slice(bytes).map_err(|e| bad(file, "JSON", e.to_string()))?;
        if !value.is_object() {
            return Err(bad(file, "a JSON object", "something else"));
        }
        let mut special_tokens = Vec::new();
        for name in NAMES {
            let text = match &value[name] {
                Value::Null => continue,
                Value::String(text) => text,
                token => match &token["content"] {
                    Value::String(text) => text,
                    _ => {
                        let want = format!("{name} as a text or {{\"content\": ...}}");
                        return Err(bad(file, want, short(token)));
                    }
                },
            };
            special_tokens.push((name.to_string(), text.clone()));
        }
        Ok(Settings { special_tokens, templates: templates(&value["chat_template"], file)? })
    }

    /// Puts the text of a `chat_template.jinja` in the place of the usual template.
    ///
    /// # Errors
    /// A text that is not UTF-8.
    pub(super) fn template_of_its_own(&mut self, bytes: &[u8], file: &Path) -> Result<(), TokenizerError> {
        let text = std::str::from_utf8(bytes);
        let text =
            text.map_err(|e| bad(file, "UTF-8 text", format!("other bytes at {}", e.valid_up_to())))?;
        self.templates.retain(|(name, _)| name != DEFAULT);
        self.templates.insert(0, (DEFAULT.into(), text.into()));
        Ok(())
    }

    /// The text of a special token.
    pub(super) fn special(&self, name: &str) -> Option<&str> {
        self.special_tokens.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
    }
}

fn templates(value: &Value, file: &Path) -> Result<Vec<(String, String)>, TokenizerError> {
    let want = "chat_template as a text or a list of {\"name\": ..., \"template\": ...}";
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(vec![(DEFAULT.into(), text.clone())]),
        Value::Array(list) => {
            let mut templates: Vec<(String, String)> = Vec::new();
            for item in list {
                let (Some(name), Some(text)) = (item["name"].as_str(), item["template"].as_str()) else {
                    return Err(bad(file, want, short(item)));
                };
                if templates.iter().any(|(known, _)| known == name) {
                    return Err(bad(file, "chat templates of different names", format!("{name:?} twice")));
                }
                templates.push((name.into(), text.into()));
            }
            Ok(templates)
        }
        other => Err(bad(file, want, short(other))),
    }
}

/// A value in at most 80 characters.
fn short(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}
