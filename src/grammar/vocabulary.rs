//! The tokens of a tokenizer as a prefix tree of bytes.
use std::fmt;
use std::sync::{Arc, OnceLock};

use llguidance::ParserFactory;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use super::error::GrammarError;
use super::language::{JSON_TEXT, Language};
use crate::model::third_party::guarded;
use crate::model::tokenizer::Tokenizer;

/// Maximum length of a token in bytes: that of a path in the tree.
const MAX_TOKEN: usize = 1024;
/// A byte that no UTF-8 text contains. In the tree it begins special tokens.
const NO_TEXT: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// The text tokens of a tokenizer, for all grammars over them.
pub struct GrammarVocabulary {
    tokens: TokEnv,
    /// Maximum number of states of a lexer. A state has 1 to 2 kB.
    lexer_states: usize,
    /// What creates the parsers of languages without free text, and with free text.
    parsers: [OnceLock<ParserFactory>; 2],
    /// Size of the vocabulary of the model.
    pub(super) vocab: usize,
}

impl GrammarVocabulary {
    /// The text tokens of `tokenizer`, for a model with a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`] for a token that is too long.
    pub fn new(tokenizer: &Tokenizer, vocab: usize) -> Result<GrammarVocabulary, GrammarError> {
        GrammarVocabulary::with_lexer_states(tokenizer, vocab, 250_000)
    }

    /// [`GrammarVocabulary::new`] with the maximum number of states of a lexer.
    pub(super) fn with_lexer_states(
        tokenizer: &Tokenizer,
        vocab: usize,
        lexer_states: usize,
    ) -> Result<GrammarVocabulary, GrammarError> {
        let ids = vocab.max(tokenizer.vocab_size());
        let text = |id: usize| tokenizer.text_token(id as u32).filter(|bytes| !bytes.contains(&NO_TEXT));
        let mut words: Vec<Vec<u8>> = (0..ids).map(|id| text(id).unwrap_or_default().to_vec()).collect();
        if let Some((id, word)) = words.iter().enumerate().find(|(_, word)| word.len() > MAX_TOKEN) {
            let message = format!("token {id} has {} bytes, expected at most {MAX_TOKEN}", word.len());
            return Err(GrammarError::Vocabulary(message));
        }
        // the end of the text is a token of its own behind all ids, so that it is no id of the tokenizer
        words.push([&[NO_TEXT][..], b"<|end|>"].concat());
        let info = TokRxInfo::new(words.len() as u32, ids as u32);
        let tree = guarded(|| TokTrie::from(&info, &words)).map_err(GrammarError::Vocabulary)?;
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(tree));
        Ok(GrammarVocabulary { tokens, lexer_states, parsers: Default::default(), vocab })
    }

    /// What creates the parsers of `language`.
    pub(super) fn parsers(&self, language: &Language) -> Result<&ParserFactory, GrammarError> {
        let has_free_text = language.has_free_text();
        let parsers = &self.parsers[usize::from(has_free_text)];
        if parsers.get().is_none() {
            let lengths: &[&str] = if has_free_text { &["{1,10}", "+"] } else { &[] };
            let created = self.with_prefix_trees(lengths)?;
            parsers.get_or_init(|| created);
        }
        Ok(parsers.get().expect("it was set above"))
    }

    /// Creates parsers with a prefix tree of the tokens in free text for each of `lengths`: tokens of at most 10
    /// characters for texts with a maximum length, tokens of any length for others. If a language allows all tokens of
    /// a tree, they are in the mask at once. Masks do not depend on the trees, whose construction takes time.
    fn with_prefix_trees(&self, lengths: &[&str]) -> Result<ParserFactory, GrammarError> {
        let slices: Vec<String> = lengths.iter().map(|length| format!("{JSON_TEXT}{length}")).collect();
        let build = || ParserFactory::new(&self.tokens, InferenceCapabilities::default(), &slices);
        let found = guarded(build).and_then(|found| found.map_err(|error| error.to_string()));
        let mut parsers = found.map_err(GrammarError::Vocabulary)?;
        parsers.quiet();
        let limits = parsers.limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = self.lexer_states;
        limits.step_lexer_fuel *= 10;
        limits.step_max_items *= 10;
        Ok(parsers)
    }
}

impl fmt::Debug for GrammarVocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarVocabulary").field("vocab", &self.vocab).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_1024_bytes_is_accepted_and_a_longer_one_is_refused() {
        // each merge doubles the longest token
        let tokenizer =
            |merges: usize| Tokenizer::train_bpe(["a".repeat(4096)].into_iter(), 257 + merges, &[]).unwrap();
        let longest = |tokenizer: &Tokenizer| (0..300).map(|id| tokenizer.token_bytes(id).len()).max();
        let [accepted, refused] = [tokenizer(10), tokenizer(11)];
        assert_eq!([longest(&accepted), longest(&refused)], [Some(1024), Some(2048)]);
        assert!(GrammarVocabulary::new(&accepted, accepted.vocab_size()).is_ok());
        let error = GrammarVocabulary::new(&refused, refused.vocab_size()).unwrap_err().to_string();
        assert!(error.contains("token 267 has 2048 bytes, expected at most 1024"), "{error}");
    }
}
