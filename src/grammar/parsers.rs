//! The parsers of a compiled language. Those that are cloned from one another share a lexer.
use llguidance::TokenParser;

/// Parsers before the first token.
pub(super) struct Parsers {
    /// Has a lexer without a state. It is never advanced.
    unused: TokenParser,
    /// Shares its lexer with the sequences that start.
    start: Start,
}

/// A parser before the first token, and the number of its lexer.
#[derive(Clone)]
pub(super) struct Start {
    pub(super) parser: TokenParser,
    pub(super) lexer: u64,
}

impl Parsers {
    pub(super) fn new(start: TokenParser) -> Parsers {
        Parsers { unused: start.deep_clone(), start: Start { parser: start, lexer: 0 } }
    }

    /// The parser of a new sequence.
    pub(super) fn start(&self) -> Start {
        self.start.clone()
    }

    /// A parser whose lexer no other sequence uses.
    pub(super) fn separate(&self) -> Start {
        Start { parser: self.unused.deep_clone(), lexer: self.start.lexer + 1 }
    }

    /// Lets the sequences that start from now on share the lexer of `start`.
    pub(super) fn share(&mut self, start: Start) {
        self.start = start;
    }
}
