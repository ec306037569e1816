//! The input of a forward pass.
use xtrain_tensor::ops::Samples;

/// The rows of one forward pass: row `n` is token `id[n]`, at position `pos[n]` of sequence `seq[n]`.
///
/// A training batch, a chunk of a prompt and a decode step are all rows. The forward pass is the same for all of
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    /// The token of each row.
    pub id: Vec<u32>,
    /// The sequence of each row. Attention is limited to the sequence.
    pub seq: Vec<u32>,
    /// The position of each row in its sequence.
    pub pos: Vec<u32>,
}

impl Rows {
    /// Adds one row.
    pub fn push(&mut self, seq: u32, pos: u32, id: u32) {
        self.id.push(id);
        self.seq.push(seq);
        self.pos.push(pos);
    }

    /// Whole sequences from position 0, one after another.
    pub fn whole<S: AsRef<[u32]>>(seqs: &[S]) -> Rows {
        let mut rows = Rows::default();
        for (s, seq) in seqs.iter().enumerate() {
            for (t, &id) in seq.as_ref().iter().enumerate() {
                rows.push(s as u32, t as u32, id);
            }
        }
        rows
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.id.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.id.is_empty()
    }

    /// Samples of one sequence each, for rows created by [`Rows::whole`].
    pub fn samples(&self) -> Samples {
        let runs = self.seq.chunk_by(|a, b| a == b);
        Samples::of_lengths(runs.map(<[u32]>::len))
    }
}
