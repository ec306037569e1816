//! A small grammar of English sentences.

const NOUNS: [(&str, &str); 16] = [
    ("cat", "cats"),
    ("dog", "dogs"),
    ("bird", "birds"),
    ("horse", "horses"),
    ("fox", "foxes"),
    ("mouse", "mice"),
    ("child", "children"),
    ("farmer", "farmers"),
    ("teacher", "teachers"),
    ("baker", "bakers"),
    ("sailor", "sailors"),
    ("woman", "women"),
    ("man", "men"),
    ("goose", "geese"),
    ("sheep", "sheep"),
    ("neighbour", "neighbours"),
];
const VERBS: [(&str, &str); 12] = [
    ("sees", "see"),
    ("likes", "like"),
    ("follows", "follow"),
    ("finds", "find"),
    ("feeds", "feed"),
    ("watches", "watch"),
    ("hears", "hear"),
    ("helps", "help"),
    ("calls", "call"),
    ("carries", "carry"),
    ("meets", "meet"),
    ("knows", "know"),
];
const ADJECTIVES: [&str; 12] = [
    "small", "old", "young", "red", "white", "quiet", "happy", "clever", "angry", "tired", "brave", "honest",
];
const PLACES: [&str; 12] = [
    "in the garden",
    "near the river",
    "under the tree",
    "behind the house",
    "on the hill",
    "at the market",
    "by the sea",
    "in the rain",
    "on the old bridge",
    "across the road",
    "in the morning",
    "before the storm",
];

/// One sentence, such as `The old farmer feeds two white geese near the river.` `draw(n)` returns a random number
/// below `n`. The verb agrees with its subject, `a` and `an` with the following word.
pub(super) fn sentence(draw: &mut impl FnMut(usize) -> usize) -> String {
    let (subject, number) = noun_phrase(draw);
    let (singular, plural) = VERBS[draw(VERBS.len())];
    let verb = if number == Number::One { singular } else { plural };
    let (object, _) = noun_phrase(draw);
    let mut text = format!("{subject} {verb} {object}");
    if draw(2) == 0 {
        text = format!("{text} {}", PLACES[draw(PLACES.len())]);
    }
    text.replace_range(..1, &text[..1].to_ascii_uppercase());
    text + "."
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Number {
    One,
    Many,
}

fn noun_phrase(draw: &mut impl FnMut(usize) -> usize) -> (String, Number) {
    let (singular, plural) = NOUNS[draw(NOUNS.len())];
    let number = if draw(2) == 0 { Number::One } else { Number::Many };
    let noun = if number == Number::One { singular } else { plural };
    let rest = match draw(2) {
        0 => noun.to_string(),
        _ => format!("{} {noun}", ADJECTIVES[draw(ADJECTIVES.len())]),
    };
    let article = match (number, draw(3)) {
        (_, 0) => "the",
        (Number::One, 1) if begins_with_a_vowel(&rest) => "an",
        (Number::One, 1) => "a",
        (Number::One, _) => "every",
        (Number::Many, 1) => "two",
        (Number::Many, _) => "some",
    };
    (format!("{article} {rest}"), number)
}

/// Whether the pronunciation starts with a vowel. Of the words above, only `honest` has a silent h.
fn begins_with_a_vowel(text: &str) -> bool {
    text.starts_with(['a', 'e', 'i', 'o', 'u']) || text.starts_with("honest")
}
