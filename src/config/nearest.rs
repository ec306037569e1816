//! Suggestions for misspelled names.

/// Longest prefix of a name that is compared, in characters: the name is untrusted input.
const MAX_CHARS: usize = 200;

/// Returns the candidate with the smallest optimal string alignment distance from `name`; the first one of a tie.
/// `None`: there are no candidates.
///
/// A dotted candidate also matches without its section, at the cost of one edit, and by its initials (`lr` for
/// `train.learning_rate`).
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name: String = name.chars().take(MAX_CHARS).collect();
    candidates.into_iter().min_by_key(|candidate| {
        let whole = strsim::osa_distance(&name, candidate);
        let Some((section, last)) = candidate.rsplit_once('.') else { return whole };
        let short = name.strip_prefix(section).map_or(name.as_str(), |rest| rest.trim_start_matches('.'));
        let initials: String = last.split('_').filter_map(|part| part.chars().next()).collect();
        let initials = if initials.len() > 1 && short == initials { 1 } else { usize::MAX };
        whole.min(strsim::osa_distance(&name, last) + 1).min(initials)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_edits_win_and_a_swap_is_one_edit() {
        assert_eq!(nearest("bacth", ["match", "batch"]), Some("batch"));
        assert_eq!(nearest("dims", ["dim", "ids"]), Some("dim"));
        assert_eq!(nearest("", ["abc", "a"]), Some("a"));
        assert_eq!(nearest(&"x".repeat(10_000), ["abc"]), Some("abc"));
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
