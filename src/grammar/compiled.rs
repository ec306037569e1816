//! A language over a vocabulary.
use std::fmt;
use std::sync::{Mutex, PoisonError};

use llguidance::TokenParser;
use llguidance::api::{StopReason, TopLevelGrammar};

use super::error::{GrammarError, one_line};
use super::language::Language;
use super::vocabulary::GrammarVocabulary;
use crate::decode::constraint::{Allowed, Constraint, ConstraintState};
use crate::decode::sampler::{SampleError, TokenMask};
use crate::model::third_party::guarded;

/// A [`Language`] over the tokens of a tokenizer. It is compiled once and shared by any number of requests.
pub struct CompiledGrammar {
    language: Language,
    vocab: usize,
    /// The parser before the first token.
    start: Mutex<TokenParser>,
}

impl CompiledGrammar {
    /// Compiles `language`.
    ///
    /// # Errors
    /// A language that is malformed, uses unsupported syntax, is too large, or contains no text.
    pub fn new(language: Language, vocabulary: &GrammarVocabulary) -> Result<CompiledGrammar, GrammarError> {
        language.check()?;
        let (grammar, error): (_, fn(String) -> GrammarError) = match &language {
            Language::Regex(regex) => (TopLevelGrammar::from_regex(regex), GrammarError::Regex),
            Language::JsonSchema(schema) => {
                let schema = Language::with_whitespace(schema);
                (TopLevelGrammar::from_json_schema(schema), GrammarError::JsonSchema)
            }
        };
        let compile = || vocabulary.parsers.create_parser(grammar).map_err(|error| error.to_string());
        let parser = guarded(compile).and_then(|parser| parser);
        let mut parser = parser.map_err(|message| error(one_line(&message)))?;
        if let [warning, ..] = &parser.grammar_warnings()[..] {
            return Err(error(one_line(warning)));
        }
        parser.start_without_prompt();
        Ok(CompiledGrammar { language, vocab: vocabulary.vocab, start: Mutex::new(parser) })
    }

    /// The language.
    pub fn language(&self) -> &Language {
        &self.language
    }
}

impl Constraint for CompiledGrammar {
    fn start(&self) -> Result<(Box<dyn ConstraintState>, Allowed), SampleError> {
        let parser = self.start.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut state = GrammarState { parser, vocab: self.vocab };
        let allowed = state.guarded(GrammarState::allowed)?;
        Ok((Box::new(state), allowed))
    }
}

/// A grammar after some new tokens.
#[derive(Clone)]
struct GrammarState {
    parser: TokenParser,
    vocab: usize,
}

impl GrammarState {
    /// The allowed tokens. A parser that can stop and cannot continue has stopped already.
    fn allowed(&mut self) -> Result<Allowed, String> {
        let mut allowed = Allowed { text: TokenMask::new(self.vocab), may_end: true };
        if self.parser.stop_reason() == StopReason::NoExtension {
            return Ok(allowed);
        }
        match self.parser.compute_mask() {
            Ok(mask) => {
                allowed.text.allow_words(mask.as_slice());
                allowed.may_end = mask.is_allowed(self.parser.token_env.tok_trie().eos_token());
                Ok(allowed)
            }
            Err(_) if self.parser.stop_reason() == StopReason::NoExtensionBias => {
                Ok(Allowed { may_end: false, ..allowed })
            }
            Err(error) => Err(one_line(&error.to_string())),
        }
    }

    fn consume(&mut self, token: u32) -> Result<Allowed, String> {
        let consumed = self.parser.consume_token(token).and_then(|_| self.parser.check_stop());
        consumed.map_err(|error| one_line(&error.to_string()))?;
        self.allowed()
    }

    fn guarded(
        &mut self,
        run: impl FnOnce(&mut GrammarState) -> Result<Allowed, String>,
    ) -> Result<Allowed, SampleError> {
        let found = guarded(|| run(self)).and_then(|found| found);
        found.map_err(|what| SampleError::Constraint { what })
    }
}

impl ConstraintState for GrammarState {
    fn advance(&mut self, token: u32) -> Result<Allowed, SampleError> {
        self.guarded(|state| state.consume(token))
    }

    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }
}

impl fmt::Debug for GrammarState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarState").field("tokens", &self.parser.num_tokens()).finish_non_exhaustive()
    }
}

impl fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledGrammar").field("language", &self.language).finish_non_exhaustive()
    }
}
