//! Suggestions for misspelled names.

/// Longest prefix of a name that is compared, in characters: the name is untrusted input.
const MAX_CHARS: usize = 200;

/// Returns the candidate with the smallest optimal string alignment distance from `name`; the first one of a tie.
/// `None`: no candidate is near, that is within one edit and another one for every four characters of `name`, at most
/// three. A candidate that begins with `name` is near if `name` has at least three characters.
///
/// A dotted candidate also matches without its section, at the cost of half an edit, and by its initials (`lr` for
/// `train.learning_rate`).
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name: String = name.chars().take(MAX_CHARS).collect();
    let length = name.chars().count();
    let allowed = if length == 0 { 0 } else { (1 + length / 4).min(3) };
    // twice the distance
    let distance = |candidate: &str| {
        let whole = 2 * strsim::osa_distance(&name, candidate);
        let begins = if length >= 3 && candidate.starts_with(&name) { 2 } else { usize::MAX };
        let Some((section, last)) = candidate.rsplit_once('.') else { return whole.min(begins) };
        let short = name.strip_prefix(section).map_or(name.as_str(), |rest| rest.trim_start_matches('.'));
        let initials: String = last.split('_').filter_map(|part| part.chars().next()).collect();
        let initials = if initials.len() > 1 && short == initials { 2 } else { usize::MAX };
        whole.min(2 * strsim::osa_distance(&name, last) + 1).min(initials).min(begins)
    };
    let found = candidates.into_iter().map(|candidate| (distance(candidate), candidate));
    let (distance, candidate) = found.min_by_key(|(distance, _)| *distance)?;
    (distance <= 2 * allowed).then_some(candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_edits_win_and_a_swap_is_one_edit() {
        assert_eq!(nearest("bacth", ["match", "batch"]), Some("batch"));
        assert_eq!(nearest("dims", ["dim", "ids"]), Some("dim"));
    }

    #[test]
    fn one_edit_and_another_for_every_four_characters_are_near() {
        for (name, most) in
            [("abc", 1), ("abcd", 2), ("abcdefg", 2), ("abcdefgh", 3), ("abcdefghijklmnop", 3)]
        {
            let edited = |edits: usize| "#".repeat(edits) + &name[edits..];
            let near = |edits| nearest(name, [edited(edits).as_str()]).is_some();
            assert_eq!((near(most), near(most + 1)), (true, false), "{name}");
        }
    }

    #[test]
    fn a_name_that_is_not_near_has_no_suggestion() {
        assert_eq!(nearest("", ["abc", "a"]), None);
        assert_eq!(nearest(&"x".repeat(10_000), ["abc"]), None);
        assert_eq!(nearest("foo", ["model.dim", "sample.top_p", "train.eps"]), None);
        assert_eq!(nearest("nothing", ["sums", "sorting", "counting"]), None);
        assert_eq!(nearest("tiny", ["huge", "tiny-1m"]), Some("tiny-1m"));
        assert_eq!(nearest("ti", ["tiny-1m"]), None);
    }

    #[test]
    fn a_key_without_its_section_is_found_in_it() {
        let keys = ["model.dim", "train.steps", "train.learning_rate"];
        assert_eq!(nearest("lerning_rate", keys), Some("train.learning_rate"));
        assert_eq!(nearest("train.step", keys), Some("train.steps"));
        assert_eq!(nearest("modle.dim", keys), Some("model.dim"));
        assert_eq!(nearest("lr", keys), Some("train.learning_rate"));
        assert_eq!(nearest("train.lr", keys), Some("train.learning_rate"));
        assert_eq!(nearest("x", []), None);
    }
}
