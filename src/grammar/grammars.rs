//! The compiled languages of a command.
use std::collections::HashMap;
use std::sync::Arc;

use super::compiled::CompiledGrammar;
use super::error::GrammarError;
use super::language::Language;
use super::vocabulary::GrammarVocabulary;
use crate::decode::constraint::SharedConstraint;
use crate::model::tokenizer::Tokenizer;

/// Compiles each language once.
#[derive(Debug)]
pub struct Grammars {
    vocabulary: GrammarVocabulary,
    /// By the language as JSON.
    compiled: HashMap<String, SharedConstraint>,
}

impl Grammars {
    /// No languages yet, for a model with a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// As [`GrammarVocabulary::new`].
    pub fn new(tokenizer: &Tokenizer, vocab: usize) -> Result<Grammars, GrammarError> {
        Ok(Grammars { vocabulary: GrammarVocabulary::new(tokenizer, vocab)?, compiled: HashMap::new() })
    }

    /// The constraint of a language.
    ///
    /// # Errors
    /// As [`CompiledGrammar::new`].
    pub fn constraint(&mut self, language: &Language) -> Result<SharedConstraint, GrammarError> {
        let key = serde_json::to_string(language).expect("strings and JSON values are JSON");
        if let Some(found) = self.compiled.get(&key) {
            return Ok(found.clone());
        }
        let compiled = CompiledGrammar::new(language.clone(), &self.vocabulary)?;
        let shared = SharedConstraint(Arc::new(compiled));
        self.compiled.insert(key, shared.clone());
        Ok(shared)
    }
}
