//! A language over a vocabulary.
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::TokenParser;
use llguidance::api::{StopReason, TopLevelGrammar};

use super::error::{GrammarError, one_line};
use super::language::Language;
use super::parsers::{Parsers, Start};
use super::vocabulary::GrammarVocabulary;
use crate::decode::constraint::{Allowed, Constraint, ConstraintState};
use crate::decode::sampler::{SampleError, TokenMask};
use crate::model::third_party::guarded;
use crate::tensor::faults::{self, Fault};

const NO_LOOK_AROUND: &str = "expected one without look-around, found a word boundary, or ^ or $ at another place than its beginning and end";

/// A [`Language`] over the tokens of a tokenizer. It is compiled once and shared by any number of requests.
pub struct CompiledGrammar {
    language: Language,
    vocab: usize,
    parsers: Arc<Mutex<Parsers>>,
}

impl CompiledGrammar {
    /// Compiles `language`.
    ///
    /// # Errors
    /// A language that is malformed, uses unsupported syntax, is too large, or contains no text.
    /// [`GrammarError::Vocabulary`] if the parser library rejects the vocabulary.
    pub fn new(language: Language, vocabulary: &GrammarVocabulary) -> Result<CompiledGrammar, GrammarError> {
        language.check()?;
        let (grammar, error): (_, fn(String) -> GrammarError) = match &language {
            Language::Regex(regex) => (TopLevelGrammar::from_regex(regex), GrammarError::Regex),
            Language::JsonSchema(schema) => {
                let schema = Language::with_whitespace(schema);
                (TopLevelGrammar::from_json_schema(schema), GrammarError::JsonSchema)
            }
        };
        let parsers = vocabulary.parsers(&language)?;
        let compile = || parsers.create_parser(grammar).map_err(|error| error.to_string());
        let parser = guarded(compile).and_then(|parser| parser);
        let looks_around = |message: &str| message.contains("lookarounds not supported");
        let mut parser = parser.map_err(|message| match &language {
            Language::Regex(_) if looks_around(&message) => error(NO_LOOK_AROUND.to_string()),
            _ => error(one_line(&message)),
        })?;
        if let [warning, ..] = &parser.grammar_warnings()[..] {
            return Err(error(one_line(warning)));
        }
        parser.start_without_prompt();
        let parsers = Arc::new(Mutex::new(Parsers::new(parser)));
        let grammar = CompiledGrammar { language, vocab: vocabulary.vocab, parsers };
        match grammar.start() {
            Ok((_, allowed))
                if !allowed.may_end && allowed.text.is_empty() && !faults::on(Fault::EmptySchemaCompiled) =>
            {
                Err(error("expected a language with a text, found one without".into()))
            }
            _ => Ok(grammar),
        }
    }

    /// The language.
    pub fn language(&self) -> &Language {
        &self.language
    }
}

impl Constraint for CompiledGrammar {
    fn start(&self) -> Result<(Box<dyn ConstraintState>, Allowed), SampleError> {
        let start = locked(&self.parsers).start();
        let parsers = self.parsers.clone();
        let mut state = GrammarState { vocab: self.vocab, parsers, tokens: Vec::new(), at: start };
        let allowed = state.or_again(GrammarState::allowed)?;
        Ok((Box::new(state), allowed))
    }
}

/// A grammar after some new tokens.
#[derive(Clone)]
struct GrammarState {
    vocab: usize,
    parsers: Arc<Mutex<Parsers>>,
    tokens: Vec<u32>,
    /// The parser after `tokens`.
    at: Start,
}

impl GrammarState {
    /// The allowed tokens. A parser that can stop and cannot continue has stopped already.
    fn allowed(&mut self) -> Result<Allowed, String> {
        let parser = &mut self.at.parser;
        let mut allowed = Allowed { text: TokenMask::new(self.vocab), may_end: true };
        if parser.stop_reason() == StopReason::NoExtension {
            return Ok(allowed);
        }
        match parser.compute_mask() {
            Ok(mask) => {
                allowed.text.allow_words(mask.as_slice());
                allowed.may_end = mask.is_allowed(parser.token_env.tok_trie().eos_token());
                Ok(allowed)
            }
            Err(_) if parser.stop_reason() == StopReason::NoExtensionBias => {
                Ok(Allowed { may_end: false, ..allowed })
            }
            Err(error) => Err(one_line(&error.to_string())),
        }
    }

    /// Runs `step`. If it fails, computes the state again from `tokens`: with the lexer of the sequences that start
    /// now, if that is another one, and then with a lexer of its own. The number of states of a lexer is limited, so a
    /// step may fail because of other sequences; with a lexer of its own it fails because of its tokens only.
    fn or_again(
        &mut self,
        step: impl FnOnce(&mut GrammarState) -> Result<Allowed, String>,
    ) -> Result<Allowed, SampleError> {
        let found = self.guarded(step);
        if found.is_ok() || faults::on(Fault::LexerNotRenewed) {
            return found;
        }
        let shared = locked(&self.parsers).start();
        if shared.lexer != self.at.lexer {
            self.at = shared;
            if let Ok(allowed) = self.guarded(GrammarState::repeated) {
                return Ok(allowed);
            }
        }
        let separate = locked(&self.parsers).separate();
        self.at = separate.clone();
        let allowed = self.guarded(GrammarState::repeated)?;
        locked(&self.parsers).share(separate);
        Ok(allowed)
    }

    /// Appends `tokens` to a parser that is at its start.
    fn repeated(&mut self) -> Result<Allowed, String> {
        for &token in &self.tokens {
            consume(&mut self.at.parser, token)?;
        }
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

fn consume(parser: &mut TokenParser, token: u32) -> Result<(), String> {
    let consumed = parser.consume_token(token).and_then(|_| parser.check_stop());
    consumed.map(|_| ()).map_err(|error| one_line(&error.to_string()))
}

fn locked(parsers: &Mutex<Parsers>) -> MutexGuard<'_, Parsers> {
    parsers.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConstraintState for GrammarState {
    fn advance(&mut self, token: u32) -> Result<Allowed, SampleError> {
        self.tokens.push(token);
        self.or_again(|state| {
            consume(&mut state.at.parser, token)?;
            state.allowed()
        })
    }

    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }
}

impl fmt::Debug for GrammarState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarState").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

impl fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledGrammar").field("language", &self.language).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tokenizer::Tokenizer;

    /// What `constraint` allows after each of `text` before it fails.
    fn walk(constraint: &CompiledGrammar, text: &[u8]) -> Vec<Allowed> {
        let Ok((mut state, allowed)) = constraint.start() else { return Vec::new() };
        let mut all = vec![allowed];
        all.extend(text.iter().map_while(|&byte| state.advance(byte.into()).ok()));
        all
    }

    #[test]
    fn json_may_have_a_space_or_a_line_break_and_up_to_16_spaces_between_its_tokens() {
        let tokenizer = Tokenizer::byte();
        let vocabulary = GrammarVocabulary::new(&tokenizer, 257).unwrap();
        let schema =
            Language::json_schema("{\"type\": \"array\", \"items\": {\"type\": \"boolean\"}}").unwrap();
        let compiled = CompiledGrammar::new(schema, &vocabulary).unwrap();
        let accepts = |text: &str| {
            let (mut state, mut allowed) = compiled.start().unwrap();
            for byte in text.bytes() {
                if !allowed.text.allows(byte.into()) {
                    return false;
                }
                allowed = state.advance(byte.into()).unwrap();
            }
            allowed.may_end
        };
        let broken = |spaces: usize| format!("[true,\n{}false]", " ".repeat(spaces));
        for text in ["[]", "[true]", "[true,false]", "[ true , false ]", &broken(0), &broken(1), &broken(16)]
        {
            assert!(accepts(text), "{text:?}");
        }
        for text in [" []", "[true", "[true,  false]", "[true,\n\nfalse]", "[true,\tfalse]", &broken(17)] {
            assert!(!accepts(text), "{text:?}");
        }
    }

    /// A byte-pair vocabulary of nested arrays: most tokens can follow an opening bracket.
    fn brackets() -> Tokenizer {
        let mut random = 1u64;
        let mut draw = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % n
        };
        let mut word = || {
            let (mut text, mut open) = ("[".to_string(), 1);
            while text.len() < 16 {
                let after_value = text.ends_with(']');
                if open > 0 && draw(2) == 0 {
                    text.push(']');
                    open -= 1;
                } else {
                    text.push_str(if after_value { ",[" } else { "[" });
                    open += 1;
                }
            }
            text
        };
        let words: Vec<String> = (0..20_000).map(|_| word()).collect();
        Tokenizer::train_bpe(words.into_iter(), 8000, &[]).unwrap()
    }

    #[test]
    fn a_mask_of_many_nested_tokens_is_within_the_limit() {
        let tokenizer = brackets();
        let vocabulary = GrammarVocabulary::new(&tokenizer, tokenizer.vocab_size()).unwrap();
        let any = CompiledGrammar::new(Language::json_schema("{}").unwrap(), &vocabulary).unwrap();
        let (mut state, _) = any.start().unwrap();
        let opening = tokenizer.encode("[").unwrap()[0];
        for depth in 1..=20 {
            let allowed = state.advance(opening).unwrap_or_else(|error| panic!("{depth}: {error}"));
            let count = (0..tokenizer.vocab_size() as u32).filter(|&id| allowed.text.allows(id)).count();
            assert!(count > 2500, "{depth}: {count}");
        }
    }

    #[test]
    fn a_schema_without_a_text_is_refused() {
        let vocabulary = GrammarVocabulary::new(&Tokenizer::byte(), 257).unwrap();
        let compiled = |schema: &str| {
            CompiledGrammar::new(Language::json_schema(schema).unwrap(), &vocabulary).map(|_| ())
        };
        for schema in [
            r##"{"$ref": "#"}"##,
            r##"{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}"##,
        ] {
            assert!(compiled(schema).unwrap_err().to_string().contains("found one without"), "{schema}");
            #[cfg(feature = "faults")]
            assert_eq!(faults::with(Fault::EmptySchemaCompiled, || compiled(schema)), Ok(()), "{schema}");
        }
        assert_eq!(compiled(r#"{"const": ""}"#), Ok(()));
    }

    #[test]
    fn a_full_lexer_does_not_end_other_sequences() {
        let tokenizer = Tokenizer::byte();
        let compiled = |states| {
            let vocabulary = GrammarVocabulary::with_lexer_states(&tokenizer, 256, states).unwrap();
            CompiledGrammar::new(Language::Regex("[ab]*a[ab]{9}".into()), &vocabulary).unwrap()
        };
        let mut random = 1u64;
        let texts: Vec<Vec<u8>> = (0..40)
            .map(|_| {
                let letter = |_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    b'a' + (random >> 63) as u8
                };
                (0..100).map(letter).collect()
            })
            .collect();
        let unlimited = compiled(250_000);
        let want: Vec<_> = texts.iter().map(|text| walk(&unlimited, text)).collect();
        assert!(want.iter().all(|all| all.len() == 101));
        // one sequence has at most 101 states of its own; all together have up to 2^10
        let limited = compiled(300);
        let got: Vec<_> = texts.iter().map(|text| walk(&limited, text)).collect();
        assert!(got == want, "{:?} of 101", got.iter().map(Vec::len).collect::<Vec<_>>());
        assert!(locked(&limited.parsers).start().lexer >= 2);
        // too small for one sequence: it ends after the same tokens as without the others
        let small = compiled(60);
        for text in &texts {
            let (among_others, alone) = (walk(&small, text), walk(&compiled(60), text));
            assert!((1..101).contains(&alone.len()), "{}", alone.len());
            assert_eq!(among_others.len(), alone.len());
        }
        #[cfg(feature = "faults")]
        faults::with(Fault::LexerNotRenewed, || {
            let limited = compiled(300);
            assert!(texts.iter().any(|text| walk(&limited, text).len() < 101));
        });
    }
}
