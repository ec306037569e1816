//! Prompt lookup: the tokens that followed the last tokens of a sequence when they occurred before.

/// Shortest suffix that is looked up.
const MIN_MATCH: usize = 3;
/// Longest suffix that is compared.
const MAX_MATCH: usize = 16;

/// Appends up to `n` tokens to `draft`: those that follow the latest of the longest earlier occurrences of the last
/// tokens of `tokens`, a suffix of 3 to 16 tokens. If the occurrence overlaps the end, the draft repeats it. Without
/// such an occurrence, appends nothing.
pub(in crate::rollout) fn look_up(tokens: &[u32], n: usize, draft: &mut Vec<u32>) {
    let Some((&last, before)) = tokens.split_last() else { return };
    let mut best = (MIN_MATCH - 1, 0);
    for end in (MIN_MATCH..=before.len()).rev() {
        if before[end - 1] != last {
            continue;
        }
        let pairs = tokens[..end].iter().rev().zip(tokens.iter().rev());
        let len = pairs.take(MAX_MATCH).take_while(|(a, b)| a == b).count();
        if len > best.0 {
            best = (len, end);
            if len == MAX_MATCH {
                break;
            }
        }
    }
    let (_, end) = best;
    if end > 0 {
        draft.extend(tokens[end..].iter().cycle().take(n));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(tokens: &[u32], n: usize, want: &[u32]) {
        let mut draft = Vec::new();
        look_up(tokens, n, &mut draft);
        assert_eq!(draft, want, "{tokens:?}");
    }

    #[test]
    fn the_tokens_after_an_earlier_occurrence_are_drafted() {
        check(&[1, 2, 3, 4, 5, 6, 1, 2, 3], 2, &[4, 5]);
        check(&[1, 2, 3, 4, 5, 6, 1, 2, 3], 9, &[4, 5, 6, 1, 2, 3, 4, 5, 6]);
        check(&[9, 2, 3, 4, 1, 2, 3], 2, &[]);
        check(&[1, 2, 3], 2, &[]);
        check(&[], 2, &[]);
    }

    #[test]
    fn the_longest_suffix_decides_and_then_the_latest_occurrence() {
        check(&[0, 1, 2, 3, 7, 5, 1, 2, 3, 8, 0, 1, 2, 3], 1, &[7]);
        check(&[1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3], 1, &[8]);
    }

    #[test]
    fn a_period_is_continued() {
        check(&[5, 5, 5, 5], 3, &[5, 5, 5]);
        check(&[1, 2, 1, 2, 1], 4, &[2, 1, 2, 1]);
    }

    #[test]
    fn every_draft_continues_an_earlier_occurrence_of_the_last_tokens() {
        let draw = |t: u32| (t.wrapping_mul(2_654_435_761) >> 27) % 3;
        for n in 0..300u32 {
            let tokens: Vec<u32> = (n..n + n % 60).map(draw).collect();
            let mut draft = Vec::new();
            look_up(&tokens, 1, &mut draft);
            let suffix = |len: usize, end: usize| tokens[..end].ends_with(&tokens[tokens.len() - len..]);
            let found = |len| (len..tokens.len()).rev().find(|&end| suffix(len, end));
            let longest = (3..=tokens.len().min(16)).rev().find_map(found);
            assert_eq!(draft.first().copied(), longest.map(|end| tokens[end]), "{tokens:?}");
        }
    }
}
