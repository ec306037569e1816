//! Regular expressions of the cases.
use crate::rng::CaseRng;

/// Classes, repetitions, alternatives with common beginnings, characters of several bytes, flags, and JSON.
const REGEXES: &[&str] = &[
    "[0-9]{1,3}",
    "(yes|no|maybe)",
    "a*b+c?",
    "(ab|a)(bc|c)*",
    "^[a-c]{2,6}x?$",
    "é+[ü-ÿ]{1,2}",
    "日本(語|人)?",
    r#"\{"n": (-?[1-9][0-9]{0,2}|0)(, "s": "[^"\\\x00-\x1f]{0,6}")?\}"#,
    "(the |a )?(cat|car|dog)s?( sat)?",
    r"(\w+ ){1,3}\w+",
    ".{0,12}",
    "x{0,4}y",
    "(?i)hello( world)?",
    r"[^a-y\n]{1,5}",
    "(0|1)*1",
    r"\d{4}-(0[1-9]|1[0-2])",
    r"(?s).{3,9}",
    r"\p{Lu}\p{Ll}*(🙂|🙃)?",
];

/// One of them, or a random one.
pub(super) fn regex(rng: &mut CaseRng) -> String {
    if rng.one_in(2) { rng.choose(REGEXES).to_string() } else { random(rng, 3) }
}

/// A random expression of at most this depth.
fn random(rng: &mut CaseRng, depth: usize) -> String {
    const LITERALS: [&str; 12] =
        ["a", "b", "the", " ", "0", "12", "é", "[a-d]", "[^a-z]", "語", r"\.", r#"[",:]"#];
    match if depth == 0 { 0 } else { rng.below(5) } {
        0 => rng.choose(&LITERALS).to_string(),
        1 => format!("({}|{})", random(rng, depth - 1), random(rng, depth - 1)),
        2 => {
            let low = rng.below(3);
            format!("({}){{{low},{}}}", random(rng, depth - 1), low + 1 + rng.below(3))
        }
        3 => format!("({}){}", random(rng, depth - 1), rng.choose(&["*", "+", "?"])),
        _ => format!("{}{}", random(rng, depth - 1), random(rng, depth - 1)),
    }
}
