//! The chat template of a tokenizer.
use super::error::ChatError;
use super::template::{ChatTemplate, Options};
use crate::tokenizer::Tokenizer;

/// The template for a tokenizer without one: a turn is its role, a line break, its text and the end-of-text token. A
/// model that ends its turn this way stops without a special chat token.
///
/// ```text
/// user
/// What is 2 + 2?<|endoftext|>assistant
/// 4<|endoftext|>
/// ```
pub const BUILT_IN: &str = "\
{%- if eos_token is not defined %}{{ raise_exception('the tokenizer has no token that ends a text') }}{% endif -%}
{%- for message in messages -%}
{%- if message.content is not string %}{{ raise_exception('content has to be text') }}{% endif -%}
{{- message.role + '\\n' -}}
{%- if message.role == 'assistant' -%}
{%- generation %}{{- message.content + eos_token }}{% endgeneration -%}
{%- else %}{{- message.content + eos_token }}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{- 'assistant\\n' }}{% endif -%}
";

const DEFAULT: &str = "default";
const WITH_TOOLS: &str = "tool_use";

impl ChatTemplate {
    /// The chat template `name` of `tokenizer`. `None`: `tool_use` if `options` has tools and the template exists,
    /// else the default template, or [`BUILT_IN`] if the tokenizer has no templates.
    ///
    /// # Errors
    /// [`ChatError::Missing`] for an unknown name; as [`ChatTemplate::parse`].
    pub fn of(
        tokenizer: &Tokenizer,
        name: Option<&str>,
        options: &Options,
    ) -> Result<ChatTemplate, ChatError> {
        let all = tokenizer.chat_templates();
        let find = |wanted: &str| all.iter().find(|(name, _)| name == wanted).map(|(_, text)| text);
        let tools = options.tools.as_ref().and_then(|_| find(WITH_TOOLS));
        let text = match name {
            Some(name) => find(name),
            None => tools.or_else(|| find(DEFAULT)),
        };
        match text {
            Some(text) => ChatTemplate::parse_file(text, tokenizer.chat_template_file()),
            None if name.is_none() && all.is_empty() => Ok(ChatTemplate::parse(BUILT_IN)?.of_text_only()),
            None => {
                let known = all.iter().map(|(name, _)| name.clone()).collect();
                Err(ChatError::Missing { name: name.unwrap_or(DEFAULT).into(), known })
            }
        }
    }
}

impl Options {
    /// Options with the special tokens of `tokenizer`. For [`BUILT_IN`], the end-of-text token is included even if
    /// the tokenizer does not name it.
    pub fn of(tokenizer: &Tokenizer) -> Options {
        let mut special_tokens = tokenizer.special_tokens().to_vec();
        let named = special_tokens.iter().any(|(name, _)| name == "eos_token");
        let built_in = tokenizer.chat_templates().is_empty();
        if let (true, false, [eos, ..]) = (built_in, named, tokenizer.eos_ids()) {
            special_tokens.push(("eos_token".into(), tokenizer.decode(&[*eos])));
        }
        Options { special_tokens, ..Options::default() }
    }
}
