//! Shrinks a failing case: fewer and shorter sequences and fewer layers, as long as it still fails.
use super::case::{Case, Driver};
use super::outcome::Difference;

/// Maximum number of smaller cases to check.
const MAX_CHECKS: usize = 200;

/// The smallest failing case found, and its difference.
pub(super) fn shrink(
    mut case: Case,
    mut difference: Difference,
    fails: &dyn Fn(&Case) -> Option<Difference>,
) -> (Case, Difference) {
    let mut tried = 0;
    'smaller: loop {
        for smaller in candidates(&case) {
            tried += 1;
            if tried > MAX_CHECKS {
                break 'smaller;
            }
            if let Some(found) = fails(&smaller) {
                (case, difference) = (smaller, found);
                continue 'smaller;
            }
        }
        break;
    }
    (case, difference)
}

fn candidates(case: &Case) -> Vec<Case> {
    let n = case.seqs.len();
    let mut all = Vec::new();
    if n > 1 {
        all.push(keep(case, &|s| s < n / 2));
        all.push(keep(case, &|s| s >= n / 2));
        all.extend((0..n).map(|out| keep(case, &|s| s != out)));
    }
    let mut with = |change: &dyn Fn(&mut Case)| {
        let mut smaller = case.clone();
        change(&mut smaller);
        all.push(smaller);
    };
    if case.cfg.n_layers > 1 {
        with(&|c| {
            c.cfg.n_layers = 1;
            c.windows.truncate(1);
        });
    }
    if case.windows.iter().any(Option::is_some) {
        with(&|c| c.windows.fill(None));
    }
    if case.threads > 1 {
        with(&|c| c.threads = 1);
    }
    for s in (0..n).filter(|&s| case.seqs[s].len > 2) {
        with(&|c| cut(c, s, c.seqs[s].len / 2));
        with(&|c| cut(c, s, c.seqs[s].len - 1));
    }
    all
}

/// The case with the sequences for which `keeps` is true.
fn keep(case: &Case, keeps: &dyn Fn(usize) -> bool) -> Case {
    let mut smaller = case.clone();
    let kept: Vec<usize> = (0..case.seqs.len()).filter(|&s| keeps(s)).collect();
    smaller.seqs = kept.iter().map(|&s| case.seqs[s].clone()).collect();
    for seq in &mut smaller.seqs {
        let moved = |(of, len)| kept.iter().position(|&s| s == of).map(|of| (of, len));
        seq.prefix = seq.prefix.and_then(moved);
    }
    if let Driver::Engine { group, max_batch, .. } = &mut smaller.driver {
        *group = (0..*group).filter(|&s| keeps(s)).count().max(1);
        *max_batch = (*max_batch).min(smaller.seqs.len()).max(1);
    }
    smaller
}

/// Truncates sequence `s` to `len` positions. All completions of one prompt are truncated to the same length.
fn cut(case: &mut Case, s: usize, len: usize) {
    let len = len.max(2);
    let group = match case.driver {
        Driver::Engine { group, .. } if s < group => 0..group,
        _ => s..s + 1,
    };
    for s in group {
        case.seqs[s].len = len;
        case.seqs[s].prompt = case.seqs[s].prompt.min(len - 1);
    }
    for s in 0..case.seqs.len() {
        if let Some((of, shared)) = case.seqs[s].prefix {
            let max = case.seqs[of].len.min(case.seqs[s].len - 1);
            case.seqs[s].prefix = Some((of, shared.min(max)));
        }
    }
}
