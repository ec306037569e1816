//! Which positions a cache holds, and whether the rows of a pass follow them.
use xtrain_model::{Error, Result, Rows};

/// The lengths of sequences, and the pass under way.
#[derive(Debug)]
pub(super) struct Ledger {
    n_layers: usize,
    /// Positions that every layer holds.
    len: Vec<u32>,
    /// The same with the rows of the pass under way, for the sequences in `touched`.
    ahead: Vec<u32>,
    /// The sequences of the pass under way.
    touched: Vec<u32>,
    /// Its rows.
    n_rows: usize,
    /// The layer whose turn it is.
    next: usize,
    /// Scratch: the position that is due.
    due: Vec<u32>,
}

impl Ledger {
    pub(super) fn new(n_layers: usize, sequences: usize) -> Ledger {
        let zeros = || vec![0; sequences];
        let (len, ahead, due) = (zeros(), zeros(), zeros());
        Ledger { n_layers, len, ahead, touched: Vec::new(), n_rows: 0, next: 0, due }
    }

    /// Sequences.
    pub(super) fn sequences(&self) -> usize {
        self.len.len()
    }

    /// Positions that every layer holds.
    pub(super) fn len(&self, seq: u32) -> usize {
        self.len.get(seq as usize).map_or(0, |&n| n as usize)
    }

    /// The lengths of all sequences added up.
    pub(super) fn positions(&self) -> usize {
        self.len.iter().map(|&n| n as usize).sum()
    }

    /// The sequences of the pass under way and the lengths they will have.
    pub(super) fn ahead(&self) -> impl Iterator<Item = (u32, usize)> {
        (0..self.n_touched()).map(|n| self.touched(n))
    }

    /// Sequences of the pass under way.
    pub(super) fn n_touched(&self) -> usize {
        self.touched.len()
    }

    /// The `n`-th sequence of the pass under way and the length it will have.
    pub(super) fn touched(&self, n: usize) -> (u32, usize) {
        let seq = self.touched[n];
        (seq, self.ahead[seq as usize] as usize)
    }

    /// Ends the pass under way without its rows, and sets the length of `seq`.
    pub(super) fn set_len(&mut self, seq: u32, len: usize) {
        self.abandon();
        self.len[seq as usize] = len as u32;
    }

    /// Ends the pass under way without its rows; `seq` holds nothing.
    pub(super) fn forget(&mut self, seq: u32) {
        if self.check_exists(seq).is_ok() {
            self.set_len(seq, 0);
        }
    }

    /// Ends the pass under way without its rows.
    pub(super) fn abandon(&mut self) {
        self.next = 0;
    }

    /// Takes `rows` for `layer` if each stands where its sequence ends. Layer 0 begins a pass; one that
    /// was left unfinished is forgotten then.
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

    /// The rows are in `layer`; after the last one they count.
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
            // A later layer must get the rows of layer 0, no others.
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
            let seq = *short.expect("fewer rows than layer 0 had leave one sequence short");
            let (want, got) = (self.ahead[seq as usize], self.due[seq as usize]);
            return Err(Error::CachePosition { layer, seq, want, got });
        }
        Ok(())
    }

    /// Refuses a sequence that there is no place for.
    pub(super) fn check_exists(&self, seq: u32) -> Result<()> {
        match self.len.get(seq as usize) {
            Some(_) => Ok(()),
            None => Err(Error::CacheFull { seq, pos: 0 }),
        }
    }

    /// Refuses a mark beyond what `seq` holds.
    pub(super) fn check_held(&self, seq: u32, len: usize) -> Result<()> {
        self.check_exists(seq)?;
        let want = self.len(seq);
        if len > want {
            return Err(Error::CachePosition { layer: 0, seq, want: want as u32, got: len as u32 });
        }
        Ok(())
    }
}
