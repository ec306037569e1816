//! The known word that is spelt most like an unknown one.

/// The candidate with the fewest edits (insert, delete, replace, swap of neighbours) from `word`; the
/// first of equals. A dotted candidate is also held against `word` without its section, at the cost of
/// one edit more, and by its initials (`lr` for `train.learning_rate`). None without candidates.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates.into_iter().min_by_key(|candidate| {
        let whole = edits(word, candidate);
        let Some((section, last)) = candidate.rsplit_once('.') else { return whole };
        let short = word.strip_prefix(section).map_or(word, |rest| rest.trim_start_matches('.'));
        let initials: String = last.split('_').filter_map(|part| part.chars().next()).collect();
        let initials = if initials.len() > 1 && short == initials { 1 } else { usize::MAX };
        whole.min(edits(word, last) + 1).min(initials)
    })
}

/// Optimal string alignment distance between `a` and `b`, over characters. `a` is cut at 200
/// characters: the word is a stranger's.
fn edits(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(200).collect();
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let mut best = (above[j] + usize::from(a[i] != b[j])).min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_is_an_insert_a_delete_a_replace_or_a_swap() {
        for (a, b, want) in
            [("", "", 0), ("abc", "", 3), ("", "abc", 3), ("batch", "bacth", 1), ("dim", "dims", 1)]
        {
            assert_eq!(edits(a, b), want, "{a} {b}");
        }
        assert_eq!(edits("kitten", "sitting"), 3);
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
