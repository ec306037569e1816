//! The sampler state of backends on the host.
use std::fmt;

use crate::backend::Backend;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::operands::{Outcome, SampleRing, SampleRow, StepLists, Weight};
use crate::tensor::Tensor;

/// The last token of each row, and the outcomes of the steps since they were staged.
#[derive(Debug)]
pub(crate) struct HostRing<B> {
    backend: B,
    last: Vec<u32>,
    outcomes: Vec<Vec<Outcome>>,
}

impl<B> HostRing<B> {
    pub(crate) fn new(backend: B) -> HostRing<B> {
        HostRing { backend, last: Vec::new(), outcomes: Vec::new() }
    }

    /// The ids that the repetition penalty of a row covers: `before`, and the tokens sampled since.
    fn seen(&self, before: &[u32], row: usize) -> Vec<u32> {
        let since = self.outcomes.iter().filter_map(|step| step[row].ok()).map(|s| s.token);
        before.iter().copied().chain(since).collect()
    }
}

impl<B: Backend + fmt::Debug + Send> SampleRing for HostRing<B> {
    fn stage(&mut self, tokens: &[u32], _lists: StepLists) -> Result<()> {
        self.last = tokens.to_vec();
        self.outcomes.clear();
        Ok(())
    }

    fn embedding(&self, w: &Tensor, dtype: Dtype) -> Result<Tensor> {
        self.backend.embedding(w, &self.last, dtype)
    }

    fn weight_rows(&self, w: &Weight) -> Result<Tensor> {
        self.backend.weight_rows(w, &self.last)
    }

    fn sample(&mut self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<()> {
        let seen: Vec<Vec<u32>> = rows.iter().enumerate().map(|(n, row)| self.seen(row.seen, n)).collect();
        let rows: Vec<_> = rows.iter().zip(&seen).map(|(row, seen)| SampleRow { seen, ..*row }).collect();
        let outcomes = self.backend.sample_rows(logits, &rows)?;
        self.last = outcomes.iter().map(|o| o.map_or(0, |s| s.token)).collect();
        self.outcomes.push(outcomes);
        Ok(())
    }

    fn read_back(&mut self) -> Result<Vec<Vec<Outcome>>> {
        Ok(std::mem::take(&mut self.outcomes))
    }
}
