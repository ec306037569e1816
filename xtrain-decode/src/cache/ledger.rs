//! The lengths of the sequences in a cache, and the position checks for the rows of a pass.
use xtrain_model::{Error, Result, Rows};

/// The lengths of the sequences, and the current pass.
#[derive(Debug)]
pub(super) struct Ledger {
    n_layers: usize,
    /// Number of positions that every layer holds, by sequence.
    len: Vec<u32>,
    /// Lengths after the current pass, for the sequences in `touched`.
    ahead: Vec<u32>,
    /// The sequences of the current pass.
    touched: Vec<u32>,
    /// Number of rows in the current pass.
    n_rows: usize,
    /// The layer that the current pass must extend next.
    next: usize,
    /// Scratch: the next position of each sequence.
    due: Vec<u32>,
}

impl Ledger {
    pub(super) fn new(n_layers: usize, sequences: usize) -> Ledger {
        let zeros = || vec![0; sequences];
        let (len, ahead, due) = (zeros(), zeros(), zeros());
        Ledger { n_layers, len, ahead, touched: Vec::new(), n_rows: 0, next: 0, due }
    }

    /// Number of sequences.
    pub(super) fn sequences(&self) -> usize {
        self.len.len()
    }

    /// Number of positions that every layer holds. 0 for a sequence that does not exist.
    pub(super) fn len(&self, seq: u32) -> usize {
        self.len.get(seq as usize).map_or(0, |&n| n as usize)
    }

    /// Sum of the lengths of all sequences.
    pub(super) fn positions(&self) -> usize {
        self.len.iter().map(|&n| n as usize).sum()
    }

    /// The sequences of the current pass and their lengths after it.
    pub(super) fn ahead(&self) -> impl Iterator<Item = (u32, usize)> {
        (0..self.n_touched()).map(|n| self.touched(n))
    }

    /// Number of sequences in the current pass.
    pub(super) fn n_touched(&self) -> usize {
        self.touched.len()
    }

    /// The `n`-th sequence of the current pass and its length after it.
    pub(super) fn touched(&self, n: usize) -> (u32, usize) {
        let seq = self.touched[n];
        (seq, self.ahead[seq as usize] as usize)
    }

    /// Abandons the current pass, and sets the length of `seq`.
    pub(super) fn set_len(&mut self, seq: u32, len: usize) {
        self.abandon();
        self.len[seq as usize] = len as u32;
    }

    /// Abandons the current pass, and sets the length of `seq` to 0.
    pub(super) fn clear(&mut self, seq: u32) {
        if self.check_exists(seq).is_ok() {
            self.set_len(seq, 0);
        }
    }

    /// Ends the current pass. Its rows do not count.
    pub(super) fn abandon(&mut self) {
        self.next = 0;
    }

    /// Checks that `rows` follow their sequences in `layer`. Layer 0 starts a pass and abandons an unfinished one.
    pub(super) fn enter(&mut self, layer: usize, rows: &Rows) -> Result<()> {
        if layer == 0 {
            self.next = 0;
        }
        if layer != self.next {
            let want = self.next;
            self.abandon();
            return Err(Error::CacheLayer { want, got: layer });
        }
        self.check(layer, rows).inspect_err(|_| self.abandon())
    }

    /// Records that the rows of the pass are written in `layer`. After the last layer, the sequences have their new
    /// lengths.
    pub(super) fn leave(&mut self, layer: usize) {
        self.next = layer + 1;
        if self.next == self.n_layers {
            self.next = 0;
            self.touched.iter().for_each(|&s| self.len[s as usize] = self.ahead[s as usize]);
        }
    }

    fn check(&mut self, layer: usize, rows: &Rows) -> Result<()> {
        for (&seq, &pos) in rows.seq.iter().zip(&rows.pos) {
            let len = *self.len.get(seq as usize).ok_or(Error::CacheFull { seq, pos })?;
            self.due[seq as usize] = len;
        }
        if layer == 0 {
            self.touched.clear();
            self.n_rows = rows.len();
        }
        self.touched.iter().for_each(|&s| self.due[s as usize] = self.len[s as usize]);
        for (&seq, &pos) in rows.seq.iter().zip(&rows.pos) {
            let (at, want) = (seq as usize, self.due[seq as usize]);
            // every layer gets the rows of layer 0
            let beyond = layer > 0 && pos >= self.ahead[at];
            if want != pos || beyond {
                return Err(Error::CachePosition { layer, seq, want, got: pos });
            }
            if layer == 0 {
                if pos == self.len[at] {
                    self.touched.push(seq);
                }
                self.ahead[at] = pos + 1;
            }
            self.due[at] = pos + 1;
        }
        if rows.len() != self.n_rows {
            let short = self.touched.iter().find(|&&s| self.due[s as usize] < self.ahead[s as usize]);
            let seq = *short.expect("with fewer rows than in layer 0 one sequence is short");
            let (want, got) = (self.ahead[seq as usize], self.due[seq as usize]);
            return Err(Error::CachePosition { layer, seq, want, got });
        }
        Ok(())
    }

    /// Checks that `seq` is a sequence of this cache.
    pub(super) fn check_exists(&self, seq: u32) -> Result<()> {
        if (seq as usize) < self.len.len() { Ok(()) } else { Err(Error::CacheFull { seq, pos: 0 }) }
    }

    /// Checks that `seq` holds at least `len` positions.
    pub(super) fn check_held(&self, seq: u32, len: usize) -> Result<()> {
        self.check_exists(seq)?;
        let want = self.len(seq);
        if len > want {
            return Err(Error::CachePosition { layer: 0, seq, want: want as u32, got: len as u32 });
        }
        Ok(())
    }
}
