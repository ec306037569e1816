//! Which template a tokenizer has.
use super::{ChatError, ChatTemplate, Options};
use crate::tokenizer::Tokenizer;

/// The template of a tokenizer that has none: a turn is its role, a line end, its text and the token that
/// ends a text. A model that ends its turn so stops by itself, whatever its vocabulary.
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

const USUAL: &str = "default";
const WITH_TOOLS: &str = "tool_use";

impl ChatTemplate {
    /// The template of `tokenizer` named `name`; without a name the usual one, or `tool_use` where `options`
    /// has tools and there is one; [`BUILT_IN`] where there is none at all.
    ///
    /// # Errors
    /// [`ChatError::Missing`] for a name that is not there; as [`ChatTemplate::parse`].
    pub fn of(
        tokenizer: &Tokenizer,
        name: Option<&str>,
        options: &Options,
    ) -> Result<ChatTemplate, ChatError> {
        let all = tokenizer.chat_templates();
        let find = |wanted: &str| all.iter().find(|(name, _)| name == wanted).map(|(_, text)| text);
        let tools = options.tools.as_ref().and_then(|_| find(WITH_TOOLS));
        match (name, tools.or_else(|| find(USUAL))) {
            (None, Some(text)) => ChatTemplate::parse(text),
            (None, None) if all.is_empty() => ChatTemplate::parse(BUILT_IN),
            (name, _) => {
                let name = name.unwrap_or(USUAL);
                let known = || all.iter().map(|(name, _)| name.clone()).collect();
                let text =
                    find(name).ok_or_else(|| ChatError::Missing { name: name.into(), known: known() })?;
                ChatTemplate::parse(text)
            }
        }
    }
}

impl Options {
    /// The options whose special tokens are those of `tokenizer`; for [`BUILT_IN`], the end of a text is one
    /// even where the tokenizer does not name it.
    pub fn of(tokenizer: &Tokenizer) -> Options {
        let mut special_tokens = tokenizer.special_tokens().to_vec();
        let named = special_tokens.iter().any(|(name, _)| name == "eos_token");
        if let (true, false, [end, ..]) = (tokenizer.chat_templates().is_empty(), named, tokenizer.eos_ids())
        {
            special_tokens.push(("eos_token".into(), tokenizer.decode(&[*end])));
        }
        Options { special_tokens, ..Options::default() }
    }
}
