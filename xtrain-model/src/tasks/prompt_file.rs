//! The prompts of a JSONL file, for rollouts and reinforcement learning.
use std::io::BufRead;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::chat::{ChatError, Json, Message, Options, Templates};
use crate::data::DataError;
use crate::data::jsonl::{self, Location, fields, kind_of};
use crate::tokenizer::Tokenizer;

/// The prompts of a JSONL file, in the order of the file. A line is an object with one of
///
/// | field | prompt |
/// |---|---|
/// | `prompt`: a string | this text |
/// | `messages`, or `prompt` as a list | a conversation that ends before an assistant turn; with `tools`, if any |
/// | `prompt_ids`: a list of token ids | these tokens |
///
/// The other fields are columns: rewards read them, and `xtrain rollout` copies them.
#[derive(Debug, Clone)]
pub struct PromptFile {
    file: PathBuf,
    records: Vec<PromptRecord>,
}

/// A line of a file of prompts.
#[derive(Debug, Clone)]
pub struct PromptRecord {
    /// The line number, from 1.
    pub line: u64,
    /// The prompt.
    pub content: PromptContent,
    /// The fields except `prompt` and `prompt_ids`. A conversation is the field `messages`.
    pub columns: Map<String, Value>,
}

/// The text, the conversation or the tokens of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptContent {
    /// Text, used as it is.
    Text(String),
    /// A conversation, rendered with the chat template of the tokenizer.
    Chat {
        /// The messages.
        messages: Vec<Message>,
        /// The functions that the assistant may call. `None`: no tools.
        tools: Option<Json>,
    },
    /// Tokens, used as they are.
    Ids(Vec<u32>),
}

/// A prompt as the model reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedPrompt {
    /// The text. A conversation ends with the start of an assistant turn. `None`: tokens without a tokenizer.
    pub text: Option<String>,
    /// The tokens of the text; at least one.
    pub ids: Vec<u32>,
}

impl PromptFile {
    /// Reads the file `path`. Skips blank lines.
    ///
    /// # Errors
    /// A file that cannot be read or contains no record; an invalid line, by its number.
    pub fn open(path: &Path) -> Result<PromptFile, DataError> {
        let mut records = Vec::new();
        jsonl::objects(path, |object, location| {
            records.push(PromptRecord::from_object(object, location)?);
            Ok(())
        })?;
        Ok(PromptFile { file: path.into(), records })
    }

    /// Like [`PromptFile::open`], for the text of `reader`. Errors name it `name`.
    ///
    /// # Errors
    /// As [`PromptFile::open`].
    pub fn read(reader: impl BufRead, name: &Path) -> Result<PromptFile, DataError> {
        let mut records = Vec::new();
        jsonl::objects_of(reader, name, |object, location| {
            records.push(PromptRecord::from_object(object, location)?);
            Ok(())
        })?;
        Ok(PromptFile { file: name.into(), records })
    }

    /// The records, in the order of the file.
    pub fn records(&self) -> &[PromptRecord] {
        &self.records
    }

    /// The prompts as tokens. Conversations are rendered with the default chat template of `tokenizer` and a
    /// generation prompt. `None`: only token ids are prompts.
    ///
    /// # Errors
    /// By line: messages that the template rejects, text that the tokenizer cannot encode, text without a tokenizer, an
    /// empty prompt.
    pub fn encode(&self, tokenizer: Option<&Tokenizer>) -> Result<Vec<EncodedPrompt>, DataError> {
        let mut renderer =
            tokenizer.map(|tokenizer| Renderer { tokenizer, templates: Templates::of(tokenizer) });
        self.records.iter().map(|record| self.encode_record(record, renderer.as_mut())).collect()
    }

    fn encode_record(
        &self,
        record: &PromptRecord,
        renderer: Option<&mut Renderer<'_>>,
    ) -> Result<EncodedPrompt, DataError> {
        let error = |want, got| DataError::Line { file: self.file.clone(), line: record.line, want, got };
        if let PromptContent::Ids(ids) = &record.content {
            let text = renderer.map(|renderer| renderer.tokenizer.decode(ids));
            return Ok(EncodedPrompt { text, ids: ids.clone() });
        }
        let without = || error("\"prompt_ids\" for a model without a tokenizer", "text".into());
        let renderer = renderer.ok_or_else(without)?;
        let (text, begins) = match &record.content {
            PromptContent::Text(text) => (text.clone(), true),
            PromptContent::Chat { messages, tools } => {
                let text = renderer.render(messages, tools.as_ref());
                let want = "\"messages\" that the tokenizer's chat template accepts";
                let refused = |e: ChatError| match e {
                    ChatError::Message { want, got } => error(want, got),
                    e => error(want, e.to_string()),
                };
                (text.map_err(refused)?, false)
            }
            PromptContent::Ids(_) => unreachable!("returned above"),
        };
        let tokenizer = renderer.tokenizer;
        let ids = if begins { tokenizer.encode_with_bos(&text) } else { tokenizer.encode(&text) };
        let ids = ids.map_err(|e| error("text that the tokenizer can encode", e.to_string()))?;
        if ids.is_empty() {
            return Err(error("a prompt of at least one token", "an empty prompt".into()));
        }
        Ok(EncodedPrompt { text: Some(text), ids })
    }
}

/// A tokenizer and its chat templates.
struct Renderer<'a> {
    tokenizer: &'a Tokenizer,
    templates: Templates<'a>,
}

impl Renderer<'_> {
    fn render(&mut self, messages: &[Message], tools: Option<&Json>) -> Result<String, ChatError> {
        let options =
            Options { add_generation_prompt: true, tools: tools.cloned(), ..Options::of(self.tokenizer) };
        Ok(self.templates.get(&options)?.render(messages, &options)?.text)
    }
}

/// The fields that hold a prompt.
const KINDS: [&str; 3] = ["prompt", "messages", "prompt_ids"];

impl PromptRecord {
    fn from_object(object: &Map<String, Value>, location: &Location) -> Result<PromptRecord, DataError> {
        if let Some(number) = location.rounded_integer() {
            let got = format!("{number}: write it as a string, which keeps its digits");
            return Err(location.error("integers of at most 64 bits", got));
        }
        let mut columns = object.clone();
        let [prompt, ids] = ["prompt", "prompt_ids"].map(|key| columns.remove(key).filter(|v| !v.is_null()));
        let has_messages = object.get("messages").is_some_and(|messages| !messages.is_null());
        // null counts as absent
        columns.retain(|name, value| {
            !(value.is_null() && ["messages", "regex", "json_schema"].contains(&name.as_str()))
        });
        let content = match (prompt, ids, has_messages) {
            (Some(Value::String(text)), None, false) => PromptContent::Text(text),
            (Some(messages @ Value::Array(_)), None, false) => {
                columns.insert("messages".into(), messages);
                conversation("prompt", location)?
            }
            (None, None, true) => conversation("messages", location)?,
            (None, Some(ids), false) => PromptContent::Ids(token_ids(&ids, location)?),
            (Some(other), None, false) => {
                let got = format!("\"prompt\": {}", kind_of(&other));
                return Err(location.error("a string or a list of messages as \"prompt\"", got));
            }
            _ => {
                let given = |key: &&str| object.get(*key).is_some_and(|value| !value.is_null());
                let given: Vec<String> =
                    KINDS.iter().copied().filter(given).map(|key| format!("{key:?}")).collect();
                let want = "one of \"prompt\", \"messages\" and \"prompt_ids\"";
                let got = if given.is_empty() { fields(object) } else { given.join(" and ") };
                return Err(location.error(want, got));
            }
        };
        columns.sort_keys();
        Ok(PromptRecord { line: location.line(), content, columns })
    }
}

/// The tokens in the field `prompt_ids`; at least one.
fn token_ids(value: &Value, location: &Location) -> Result<Vec<u32>, DataError> {
    let error = |got: String| location.error("a list of token ids as \"prompt_ids\"", got);
    let Value::Array(values) = value else { return Err(error(kind_of(value).into())) };
    let id = |(at, value): (usize, &Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| error(format!("{value} at index {at}")))
    };
    if values.is_empty() {
        return Err(error("an empty list".into()));
    }
    values.iter().enumerate().map(id).collect()
}

/// The conversation in field `key`.
fn conversation(key: &str, location: &Location) -> Result<PromptContent, DataError> {
    const WANT: &str = "messages as [{\"role\": ..., \"content\": ...}, ...]";
    let ([messages], tools) = jsonl::lists([key], WANT, location)?;
    if messages.last().is_some_and(|last| last.role() == "assistant") {
        return Err(
            location.error("messages that end before an assistant turn", "an assistant turn at the end")
        );
    }
    Ok(PromptContent::Chat { messages, tools })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(text: &str) -> Result<PromptFile, DataError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("in.jsonl");
        std::fs::write(&path, text).unwrap();
        PromptFile::open(&path)
    }

    fn columns_of(prompts: &PromptFile, at: usize) -> Value {
        Value::Object(prompts.records()[at].columns.clone())
    }

    #[test]
    fn messages_that_are_null_are_no_messages() {
        let prompts = open(
            "{\"prompt\": \"a\", \"messages\": null, \"regex\": null, \"json_schema\": null, \"n\": 1}\n",
        )
        .unwrap();
        assert!(matches!(&prompts.records()[0].content, PromptContent::Text(text) if text == "a"));
        assert_eq!(columns_of(&prompts, 0), serde_json::json!({"n": 1}));
    }

    #[test]
    fn tools_that_are_null_are_no_tools() {
        let row = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]";
        let text =
            format!("{row}}}\n{row}, \"tools\": null}}\n{row}, \"tools\": []}}\n{row}, \"tools\": [1]}}\n");
        let has_tools = |record: &PromptRecord| match &record.content {
            PromptContent::Chat { tools, .. } => tools.is_some(),
            _ => panic!("a conversation"),
        };
        let prompts = open(&text).unwrap();
        assert_eq!(prompts.records().iter().map(has_tools).collect::<Vec<_>>(), [false, false, true, true]);
    }

    /// The byte tokenizer with this `chat_template`.
    fn with_templates(templates: &serde_json::Value) -> Tokenizer {
        let config = serde_json::json!({ "chat_template": templates }).to_string();
        let (json, file) = (Tokenizer::byte().files()[0].1.to_vec(), Path::new("tokenizer.json"));
        Tokenizer::from_parts(json, Some(config.into_bytes()), file).unwrap()
    }

    #[test]
    fn the_template_gets_the_tools_of_a_line() {
        let template = "{% if tools %}[{{ tools[0] }}]{% endif %}{% for m in messages %}{{ m.content }};{% endfor %}\
                        {% if add_generation_prompt %}>{% endif %}";
        let tokenizer = with_templates(&serde_json::json!(template));
        let row = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]";
        let text = format!("{row}, \"tools\": [\"f\"]}}\n{row}}}\n");
        let encoded = open(&text).unwrap().encode(Some(&tokenizer)).unwrap();
        let texts: Vec<&str> = encoded.iter().filter_map(|prompt| prompt.text.as_deref()).collect();
        assert_eq!(texts, ["[f]hi;>", "hi;>"]);
    }

    #[test]
    fn the_template_of_each_prompt_is_the_one_for_its_tools() {
        let templates = [("default", "plain"), ("tool_use", "{{ tools[0] }}")]
            .map(|(name, template)| serde_json::json!({ "name": name, "template": template }));
        let tokenizer = with_templates(&serde_json::json!(templates));
        let row = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]";
        let text = format!("{row}}}\n{row}, \"tools\": [1]}}\n{row}}}\n{row}, \"tools\": [2]}}\n");
        let encoded = open(&text).unwrap().encode(Some(&tokenizer)).unwrap();
        let texts: Vec<&str> = encoded.iter().filter_map(|prompt| prompt.text.as_deref()).collect();
        assert_eq!(texts, ["plain", "1", "plain", "2"]);
    }

    #[test]
    fn tokens_need_no_tokenizer() {
        let prompts = open("{\"prompt_ids\": [5]}\n").unwrap();
        assert_eq!(prompts.encode(None).unwrap(), [EncodedPrompt { text: None, ids: vec![5] }]);
        let text = open("{\"prompt_ids\": [5]}\n{\"prompt\": \"a\"}\n").unwrap();
        let error = text.encode(None).unwrap_err().to_string();
        assert!(error.contains(":2: expected \"prompt_ids\" for a model without a tokenizer"), "{error}");
    }

    #[test]
    fn an_integer_that_would_lose_its_digits_is_refused() {
        let read = |line: &str| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("p.jsonl");
            std::fs::write(&path, line).unwrap();
            PromptFile::open(&path).map(|prompts| columns_of(&prompts, 0)["n"].to_string())
        };
        for kept in ["18446744073709551615", "-9223372036854775808", "1e+30", "\"18446744073709551616\""] {
            assert_eq!(
                read(&format!(r#"{{"prompt": "a\"99999999999999999999", "n": {kept}}}"#)).unwrap(),
                kept
            );
        }
        for lost in ["18446744073709551617", "-9223372036854775809"] {
            let line = format!(r#"{{"prompt": "a", "n": [1, {lost}]}}"#);
            let error = read(&line).unwrap_err().to_string();
            let want = format!(":1: expected integers of at most 64 bits, found {lost}");
            assert!(error.contains(&want), "{error}");
            #[cfg(feature = "faults")]
            {
                use xtrain_tensor::faults::{self, Fault};
                assert!(faults::with(Fault::RoundedIntegersAccepted, || read(&line)).is_ok());
            }
        }
    }

    #[test]
    fn a_prompt_is_text_a_conversation_or_tokens_and_the_other_fields_are_columns() {
        let text = "{\"prompt\": \"1+1=\", \"answer\": \"2\", \"n\": [1]}\n\n\
                    {\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"answer\": null}\n\
                    {\"prompt\": [{\"role\": \"user\", \"content\": \"ok\"}]}\n{\"prompt_ids\": [97, 98], \"id\": 7}\n";
        let prompts = open(text).unwrap();
        let encoded = prompts.encode(Some(&Tokenizer::byte())).unwrap();
        let texts: Vec<&str> = encoded.iter().filter_map(|prompt| prompt.text.as_deref()).collect();
        let chats = ["user\nhi<|endoftext|>assistant\n", "user\nok<|endoftext|>assistant\n"];
        assert_eq!(texts, ["1+1=", chats[0], chats[1], "ab"]);
        assert_eq!(
            (&encoded[3].ids[..], columns_of(&prompts, 3)),
            (&[97, 98][..], serde_json::json!({"id": 7}))
        );
        assert_eq!(encoded[0].ids, [49, 43, 49, 61]);
        let columns = |at| columns_of(&prompts, at);
        assert_eq!(columns(0), serde_json::json!({"answer": "2", "n": [1]}));
        let messages = serde_json::json!([{"role": "user", "content": "hi"}]);
        assert_eq!(columns(1), serde_json::json!({"answer": null, "messages": messages}));
        assert_eq!(columns(2)["messages"][0]["content"], "ok");
        assert_eq!(prompts.records().iter().map(|record| record.line).collect::<Vec<_>>(), [1, 3, 4, 5]);
    }

    #[test]
    fn text_begins_with_the_bos_token_and_templates_and_ids_are_not_changed() {
        let dir =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tokenizers/llama3_bpe");
        let tokenizer = Tokenizer::load(&dir).unwrap();
        let text = "{\"prompt\": \"a\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n\
                    {\"prompt_ids\": [7]}\n";
        let encoded = open(text).unwrap().encode(Some(&tokenizer)).unwrap();
        let bos = tokenizer.bos_id().unwrap();
        let count = |at: usize| encoded[at].ids.iter().filter(|id| **id == bos).count();
        assert_eq!((count(0), count(1), count(2)), (1, 1, 0), "{encoded:?}");
        assert_eq!((encoded[0].ids[0], encoded[1].ids[0]), (bos, bos));
        assert_eq!(encoded[1].text.as_deref().unwrap().matches("<|begin_of_text|>").count(), 1);
        // what a template does not print is not added
        let tokenizer = tokenizer.with_chat_template("{{ messages[0].content }}").unwrap();
        let encoded = open(text).unwrap().encode(Some(&tokenizer)).unwrap();
        assert_eq!(encoded[1].ids, tokenizer.encode("a").unwrap());
        assert_eq!(encoded[0].ids, [&[bos], &encoded[1].ids[..]].concat());
    }

    #[test]
    fn an_invalid_prompt_is_refused_by_file_and_line() {
        for (text, want) in [
            ("", "expected at least one line with a JSON object"),
            (
                "{\"prompt\": \"a\"}\n{\"prompt\": 5}",
                ":2: expected a string or a list of messages as \"prompt\"",
            ),
            (
                "{\"text\": \"a\"}",
                ":1: expected one of \"prompt\", \"messages\" and \"prompt_ids\", found the field \"text\"",
            ),
            ("{\"prompt\": \"a\", \"messages\": []}", ":1: expected one of"),
            (
                "{\"completion\": \"b\", \"prompt\": \"a\", \"prompt_ids\": [1]}",
                "\"messages\" and \"prompt_ids\", found \"prompt\" and \"prompt_ids\"",
            ),
            (
                "{\"prompt_ids\": [1, -2]}",
                "expected a list of token ids as \"prompt_ids\", found -2 at index 1",
            ),
            ("{\"prompt_ids\": []}", "found an empty list"),
            ("{\"prompt_ids\": \"1\"}", "found a string"),
            ("{\"prompt\": ", ":1: expected a JSON object, found JSON that ends too early at column 11"),
            ("{\"messages\": []}", ":1: expected messages"),
            ("{\"messages\": [{\"content\": \"a\"}]}", ":1: expected messages"),
            (
                "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}",
                "end before an assistant turn",
            ),
            ("[1]", ":1: expected a JSON object"),
        ] {
            let error = open(text).unwrap_err().to_string();
            assert!(error.contains("in.jsonl") && error.contains(want), "{text}: {error}");
        }
        let empty = open("{\"prompt\": \"a\"}\n{\"prompt\": \"\"}").unwrap();
        let error = empty.encode(Some(&Tokenizer::byte())).unwrap_err().to_string();
        assert!(error.contains("in.jsonl:2: expected a prompt of at least one token"), "{error}");
    }
}
