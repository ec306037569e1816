//! The rows of a forward pass and the sequences that they form.
use std::ops::Range;

use xtrain_tensor::faults::{self, Fault};

use crate::error::{Error, Result};
use crate::example::TrainingExample;
use crate::prefix_tree::{BranchRows, PrefixTree};
use crate::rows::Rows;

/// The rows of the examples so far.
#[derive(Default)]
pub(super) struct Layout {
    pub(super) rows: Rows,
    /// The row of each position of each sequence.
    pub(super) table: Vec<Vec<u32>>,
}

impl Layout {
    /// Adds the rows of an example without branches and returns them.
    pub(super) fn push_documents(&mut self, example: &TrainingExample) -> Result<Range<u32>> {
        let first = self.rows.len() as u32;
        let (mut rest, mut from) = (&example.inputs[..], 0);
        let starts = if faults::on(Fault::CrossDocumentAttention) { &[] } else { &example.starts[..] };
        for &start in starts {
            let length = start.checked_sub(from).filter(|&n| n > 0 && n < rest.len());
            let (document, others) = rest.split_at(length.ok_or_else(|| Error::Documents {
                starts: example.starts.clone(),
                tokens: example.inputs.len(),
            })?);
            self.push_sequence(Vec::new(), document);
            (rest, from) = (others, start);
        }
        self.push_sequence(Vec::new(), rest);
        Ok(first..self.rows.len() as u32)
    }

    /// Adds the rows of a prompt, then those of its branches that no earlier branch has. Returns for each branch the
    /// last row of the prompt and the rows of its tokens.
    pub(super) fn push_tree(&mut self, example: &TrainingExample) -> Vec<Vec<u32>> {
        let prompt: Vec<u32> = (self.rows.len() as u32..).take(example.inputs.len()).collect();
        let last = *prompt.last().expect("an example with branches has inputs");
        self.push_sequence(Vec::new(), &example.inputs);
        let mut tree = PrefixTree::default();
        let branch = |inputs: &Vec<u32>| {
            let BranchRows { rows, shared } = tree.insert(last, inputs, self.rows.len() as u32);
            if shared < inputs.len() {
                self.push_sequence([&prompt[..], &rows[..shared]].concat(), &inputs[shared..]);
            }
            [&[last], &rows[..]].concat()
        };
        example.branches.iter().map(|branch| &branch.inputs).map(branch).collect()
    }

    /// Adds the rows of a sequence that continues the rows `table`.
    fn push_sequence(&mut self, mut table: Vec<u32>, ids: &[u32]) {
        let seq = self.table.len() as u32;
        let first = if faults::on(Fault::BranchAtFirstPosition) { 0 } else { table.len() as u32 };
        for (pos, &id) in (first..).zip(ids) {
            table.push(self.rows.len() as u32);
            self.rows.push(seq, pos, id);
        }
        self.table.push(table);
    }
}
