//! Constrained output: completions whose text matches a regular expression or a JSON schema.
//!
//! | file | contents |
//! |---|---|
//! | `language` | the regular expression or schema as the caller writes it |
//! | `vocabulary` | the tokens of a tokenizer as a prefix tree of bytes |
//! | `grammars` | the compiled languages of a command |
//! | `parsers` | parsers that share a lexer, and new lexers |
//! | `compiled` | a language over a vocabulary: a [`Constraint`](crate::decode::constraint::Constraint) |
//!
//! The crate `llguidance` computes which tokens may follow. Only this module uses it.
mod compiled;
mod error;
mod grammars;
mod language;
mod parsers;
mod vocabulary;

pub use compiled::CompiledGrammar;
pub use error::GrammarError;
pub use grammars::Grammars;
pub use language::Language;
pub use vocabulary::GrammarVocabulary;
