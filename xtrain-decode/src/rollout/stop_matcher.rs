//! The search for stop texts in a text that arrives in pieces.
use xtrain_tensor::faults::{self, Fault};

/// Finds the first of several texts in a stream of text.
///
/// The first match is the one that ends first; of several that end at one place, the longest. So the result does not
/// depend on how the text is split into pieces. The end of the text that can be the beginning of a match is held back.
#[derive(Debug, Clone)]
pub(super) struct StopMatcher {
    held: String,
    found: bool,
}

impl StopMatcher {
    pub(super) fn new() -> StopMatcher {
        StopMatcher { held: String::new(), found: false }
    }

    /// Whether a text was found.
    pub(super) fn found(&self) -> bool {
        self.found
    }

    /// Takes the next piece. Returns the text that is certain: it precedes the first match and is not part of one.
    /// Nothing after a match. `stops` are the same in each call; none of them is empty.
    pub(super) fn push(&mut self, piece: &str, stops: &[String]) -> String {
        let mut certain = String::new();
        if faults::on(Fault::StopTextWithinToken) {
            certain.push_str(&std::mem::take(&mut self.held));
        }
        for c in piece.chars() {
            if self.found {
                break;
            }
            self.held.push(c);
            let longest = stops.iter().filter(|stop| self.held.ends_with(*stop)).map(String::len).max();
            if let Some(len) = longest {
                self.found = true;
                self.held.truncate(self.held.len() - len);
                certain.push_str(&std::mem::take(&mut self.held));
            } else {
                let certain_len = self.held.len() - self.open_len(stops);
                certain.extend(self.held.drain(..certain_len));
            }
        }
        certain
    }

    /// The text that is still held back, at the end of the stream.
    pub(super) fn finish(&mut self) -> String {
        if faults::on(Fault::HeldTextLost) { String::new() } else { std::mem::take(&mut self.held) }
    }

    /// The length of the longest end of the held text that a stop text begins with.
    fn open_len(&self, stops: &[String]) -> usize {
        let begins = |end: &str| stops.iter().any(|stop| stop.starts_with(end));
        let ends = self.held.char_indices().map(|(at, _)| &self.held[at..]);
        ends.into_iter().find(|end| begins(end)).map_or(0, str::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The certain text after each piece, the held text at the end, and whether a stop text was found.
    #[track_caller]
    fn check(stops: &[&str], pieces: &[&str], want: &[&str], held: &str, found: bool) {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let mut matcher = StopMatcher::new();
        let got: Vec<String> = pieces.iter().map(|piece| matcher.push(piece, &stops)).collect();
        assert_eq!(
            (got, matcher.found()),
            (want.iter().map(ToString::to_string).collect(), found),
            "{pieces:?}"
        );
        assert_eq!(matcher.finish(), held, "{pieces:?}");
    }

    #[test]
    fn a_stop_text_is_found_across_pieces_and_within_one() {
        check(&["stop"], &["a", "s", "to", "pb", "c"], &["a", "", "", "", ""], "", true);
        check(&["stop"], &["a stop b"], &["a "], "", true);
        check(&["stop"], &["a", " st", "ay"], &["a", " ", "stay"], "", false);
        check(&["stop"], &["a st", "o"], &["a ", ""], "sto", false);
    }

    #[test]
    fn a_beginning_inside_a_beginning_is_kept() {
        check(&["aab"], &["a", "a", "a", "b"], &["", "", "a", ""], "", true);
        check(&["abac"], &["aba", "bac"], &["", "ab"], "", true);
    }

    #[test]
    fn the_match_that_ends_first_wins_and_the_longest_of_them() {
        check(&["abcd", "bc"], &["xabcd"], &["xa"], "", true);
        check(&["bc", "abc"], &["xabc"], &["x"], "", true);
        check(&["bc", "abc"], &["x", "a", "b", "c"], &["x", "", "", ""], "", true);
        check(&["b", "ab", "cab"], &["xca", "b"], &["x", ""], "", true);
    }

    #[test]
    fn characters_of_several_bytes_are_not_split() {
        check(&["é!"], &["ée", "é", "!"], &["ée", "", ""], "", true);
        check(&["\u{fffd}"], &["a\u{fffd}b"], &["a"], "", true);
        check(&["→→"], &["→", "←"], &["", "→←"], "", false);
    }

    #[test]
    fn without_stop_texts_every_piece_is_certain() {
        check(&[], &["a", "", "b"], &["a", "", "b"], "", false);
    }
}
