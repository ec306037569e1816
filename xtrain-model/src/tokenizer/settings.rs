//! The content of `tokenizer_config.json` and `chat_template.jinja`.
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::TokenizerError;
use super::json::bad;
use crate::json::found_at_line;

/// The names of special tokens.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

const DEFAULT: &str = "default";

/// The classes of transformers that replace the post-processor of `tokenizer.json`, also with the suffix `Fast`.
const REPLACING: [&str; 2] = ["LlamaTokenizer", "CodeLlamaTokenizer"];

/// Special tokens by name, and chat templates by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Settings {
    pub(super) special_tokens: Vec<(String, String)>,
    pub(super) templates: Vec<(String, String)>,
    /// Whether a text begins with the BOS token. `None`: the post-processor of `tokenizer.json` decides.
    pub(super) add_bos: Option<bool>,
    /// The file of the default template.
    pub(super) template_file: Option<PathBuf>,
}

impl Settings {
    pub(super) fn read(bytes: &[u8], file: &Path) -> Result<Settings, TokenizerError> {
        let value: Value = serde_json::from_slice(bytes).map_err(|e| bad(file, "JSON", found_at_line(&e)))?;
        if !value.is_object() {
            return Err(bad(file, "a JSON object", "another JSON value"));
        }
        let mut special_tokens = Vec::new();
        for name in NAMES.into_iter().filter(|name| !value[*name].is_null()) {
            let token = &value[name];
            let Some(text) = token.as_str().or(token["content"].as_str()) else {
                let want = format!("{name} as a string or {{\"content\": ...}}");
                return Err(bad(file, want, short(token)));
            };
            special_tokens.push((name.to_string(), text.to_string()));
        }
        let templates = templates(&value["chat_template"], file)?;
        let template_file = (!templates.is_empty()).then(|| file.to_path_buf());
        let class = value["tokenizer_class"].as_str().unwrap_or_default();
        let replaces = REPLACING.contains(&class.strip_suffix("Fast").unwrap_or(class));
        let add_bos = value["add_bos_token"].as_bool().filter(|_| replaces);
        Ok(Settings { special_tokens, templates, add_bos, template_file })
    }

    /// Replaces all templates with the content of a `chat_template.jinja`, as transformers does.
    pub(super) fn set_default_template(&mut self, bytes: &[u8], file: &Path) -> Result<(), TokenizerError> {
        let text = std::str::from_utf8(bytes);
        let text =
            text.map_err(|e| bad(file, "UTF-8 text", format!("an invalid byte at {}", e.valid_up_to())))?;
        self.templates = vec![(DEFAULT.into(), text.into())];
        self.template_file = Some(file.to_path_buf());
        Ok(())
    }

    pub(super) fn special(&self, name: &str) -> Option<&str> {
        self.special_tokens.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
    }
}

fn templates(value: &Value, file: &Path) -> Result<Vec<(String, String)>, TokenizerError> {
    let want = "chat_template as a string or a list of {\"name\": ..., \"template\": ...}";
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
                    return Err(bad(file, "unique names of chat templates", format!("{name:?} twice")));
                }
                templates.push((name.into(), text.into()));
            }
            Ok(templates)
        }
        other => Err(bad(file, want, short(other))),
    }
}

/// The first 80 characters of a value.
fn short(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}
