//! Tokens drawn turn by turn that stay on their device until the host looks.
use super::sample::{check_rows, sample_rows};
use super::{SampleRow, Sampled, Undrawable, embedding, shapes};
use crate::{Device, Dtype, Error, Result, Tensor, gpu};

const OP: &str = "Draws";

/// Tokens that rows draw turn by turn: each turn's tokens are what the next one begins with, and nothing of them
/// comes to the host before [`Draws::look`]. On a GPU, so many turns run without waiting for the host.
///
/// A turn is [`Draws::embedding`], what a model makes of it, and [`Draws::draw`] from its logits. The tokens and
/// log-probabilities are those of [`sample_rows`], by bits.
#[derive(Debug)]
pub struct Draws {
    place: Place,
    /// Rows and turns that there is room for.
    room: [usize; 2],
    rows: usize,
    turns: usize,
    /// Ids that a token is one of, once it was drawn; none: tokens of the host.
    vocab: usize,
}

#[derive(Debug)]
enum Place {
    /// The last tokens, and what was drawn.
    Host(Vec<u32>, Vec<Vec<Outcome>>),
    Gpu(gpu::Draws),
}

/// What a row drew, or why it could not.
type Outcome = std::result::Result<Sampled, Undrawable>;

impl Draws {
    /// Room for `turns` turns of `rows` rows.
    ///
    /// # Errors
    /// [`Error::Device`] when the device has no memory for it.
    pub fn new(device: &Device, rows: usize, turns: usize) -> Result<Draws> {
        let place = match device {
            Device::Gpu(gpu) => Place::Gpu(gpu::Draws::new(gpu, rows, turns)?),
            Device::Cpu(_) => Place::Host(Vec::new(), Vec::new()),
        };
        Ok(Draws { place, room: [rows, turns], rows: 0, turns: 0, vocab: 0 })
    }

    /// Rows that there is room for.
    pub fn room(&self) -> usize {
        self.room[0]
    }

    /// Begins anew with the last token of each row, as the host knows it. A device that holds them is sent nothing.
    ///
    /// # Errors
    /// [`Error::Argument`] for more rows than there is room for.
    pub fn begin(&mut self, tokens: &[u32]) -> Result<()> {
        if tokens.len() > self.room[0] {
            let got = format!("{} of {}", tokens.len(), self.room[0]);
            return Err(Error::Argument { op: OP, want: "no more rows than there is room for", got });
        }
        (self.rows, self.turns) = (tokens.len(), 0);
        self.vocab = tokens.iter().max().map_or(0, |&t| t as usize + 1);
        match &mut self.place {
            Place::Host(last, drawn) => {
                *last = tokens.to_vec();
                drawn.clear();
                Ok(())
            }
            Place::Gpu(draws) => draws.begin(tokens),
        }
    }

    /// [`embedding`] of the last token of each row: `w [V, C]` → `[N, C]`.
    ///
    /// # Errors
    /// As [`embedding`].
    pub fn embedding(&self, w: &Tensor, dtype: Dtype) -> Result<Tensor> {
        match (&self.place, w.shape()) {
            (Place::Host(last, _), _) => embedding(w, last, dtype),
            (Place::Gpu(draws), &[v, _]) if self.vocab <= v => draws.embedding(w, dtype),
            _ => Err(Error::Shape { op: OP, want: "w [V, C], a row for each id", got: shapes(&[w]) }),
        }
    }

    /// A token for each row of `logits [N, V]`, which becomes its last. `seen` of a row leaves out what it drew since
    /// [`Draws::begin`]: a penalty adds it.
    ///
    /// # Errors
    /// As [`sample_rows`]; [`Error::Argument`] for more turns than there is room for.
    pub fn draw(&mut self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<()> {
        check_rows(OP, logits, rows)?;
        if self.turns == self.room[1] || rows.len() != self.rows {
            let got = format!("turn {} of {} rows", self.turns + 1, rows.len());
            return Err(Error::Argument { op: OP, want: "a turn of the rows that began", got });
        }
        match &mut self.place {
            Place::Host(last, drawn) => {
                let seen: Vec<Vec<u32>> = (0..rows.len()).map(|n| seen(rows[n].seen, drawn, n)).collect();
                let rows: Vec<_> =
                    rows.iter().zip(&seen).map(|(row, seen)| SampleRow { seen, ..*row }).collect();
                let outcomes = sample_rows(logits, &rows)?;
                *last = outcomes.iter().map(|o| o.map_or(0, |s| s.token)).collect();
                drawn.push(outcomes);
            }
            Place::Gpu(draws) => draws.draw(logits, rows)?,
        }
        (self.vocab, self.turns) = (self.vocab.max(logits.width()), self.turns + 1);
        Ok(())
    }

    /// What the rows drew, turn by turn. A row that could not draw goes on from id 0.
    ///
    /// # Errors
    /// [`Error::Device`] when a device fails.
    pub fn look(&mut self) -> Result<Vec<Vec<Outcome>>> {
        let turns = std::mem::take(&mut self.turns);
        match &mut self.place {
            Place::Host(_, drawn) => Ok(std::mem::take(drawn)),
            Place::Gpu(_) if turns == 0 => Ok(Vec::new()),
            Place::Gpu(draws) => {
                let all = draws.look()?;
                Ok(all.chunks(self.rows.max(1)).map(<[Outcome]>::to_vec).collect())
            }
        }
    }
}

/// The ids that a row has seen, with those of the turns before.
fn seen(before: &[u32], drawn: &[Vec<Outcome>], row: usize) -> Vec<u32> {
    let since = drawn.iter().filter_map(|turn| turn[row].ok()).map(|s| s.token);
    before.iter().copied().chain(since).collect()
}
