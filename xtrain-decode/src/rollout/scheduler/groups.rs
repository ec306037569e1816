//! Completions that share one prompt: the prompt runs once, and its logits serve all of them.
use std::collections::BTreeMap;
use std::sync::Arc;

/// The groups in which at least one sequence has no token yet, by the index of their first sequence.
#[derive(Debug, Default)]
pub(super) struct PromptGroups {
    groups: BTreeMap<usize, Group>,
}

#[derive(Debug)]
struct Group {
    fresh: usize,
    /// The logits after the prompt, once they are computed.
    logits: Option<Arc<[f32]>>,
}

impl PromptGroups {
    /// Adds a group of `size` sequences without a token.
    pub(super) fn insert(&mut self, group: usize, size: usize) {
        self.groups.insert(group, Group { fresh: size, logits: None });
    }

    /// Sequences of `group` still need the prompt.
    pub(super) fn contains(&self, group: usize) -> bool {
        self.groups.contains_key(&group)
    }

    /// The logits after the prompt of `group`. `None`: not computed yet, or no longer needed.
    pub(super) fn logits(&self, group: usize) -> Option<Arc<[f32]>> {
        self.groups.get(&group)?.logits.clone()
    }

    /// A sequence of `group` got its first token, sampled from `logits` or from the stored ones.
    pub(super) fn first_token(&mut self, group: usize, logits: Option<Arc<[f32]>>) {
        if let Some(entry) = self.groups.get_mut(&group)
            && entry.logits.is_none()
        {
            entry.logits = logits;
        }
        self.leave(group);
    }

    /// A sequence of `group` no longer needs the prompt.
    pub(super) fn leave(&mut self, group: usize) {
        if let Some(entry) = self.groups.get_mut(&group) {
            entry.fresh -= 1;
            if entry.fresh == 0 {
                self.groups.remove(&group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_forgotten_when_no_sequence_needs_its_prompt() {
        let mut groups = PromptGroups::default();
        groups.insert(3, 2);
        groups.insert(5, 2);
        let logits: Arc<[f32]> = Arc::from([1.0]);
        groups.first_token(3, Some(logits.clone()));
        assert_eq!((groups.contains(3), groups.contains(4), groups.contains(5)), (true, false, true));
        assert_eq!((groups.logits(3), groups.logits(5)), (Some(logits), None));
        groups.leave(3);
        assert_eq!((groups.contains(3), groups.logits(3)), (false, None));
        assert!(groups.contains(5));
    }
}
