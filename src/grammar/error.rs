//! The errors of a grammar.
use regex_syntax::Error as Syntax;
use thiserror::Error;

/// Why a language cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A regular expression that is not one, or uses an unsupported feature.
    #[error("regular expression: {0}")]
    Regex(String),
    /// A JSON schema that is not one, or uses an unsupported keyword.
    #[error("JSON schema: {0}")]
    JsonSchema(String),
    /// A vocabulary that cannot be used.
    #[error("tokenizer: {0}")]
    Vocabulary(String),
}

impl GrammarError {
    /// A regular expression that is malformed, with the character at which it is.
    pub(super) fn syntax(error: &Syntax) -> GrammarError {
        let (what, span) = match error {
            Syntax::Parse(error) => (error.kind().to_string(), error.span()),
            Syntax::Translate(error) => (error.kind().to_string(), error.span()),
            other => return GrammarError::Regex(one_line(&other.to_string())),
        };
        GrammarError::Regex(format!("{what}, at character {} of line {}", span.start.column, span.start.line))
    }
}

/// The message of another crate in one line.
pub(super) fn one_line(message: &str) -> String {
    let lines = message.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "<non-verbose/>");
    lines.collect::<Vec<_>>().join("; ")
}
