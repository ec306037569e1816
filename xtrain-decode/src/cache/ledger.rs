//! The lengths of the sequences in a cache, and the position checks for the rows of a pass.
use xtrain_model::{Error, Result, Rows};

#[derive(Debug)]
pub(super) struct Ledger {
    n_layers: usize,
    capacity: usize,
    /// Number of positions that every layer holds, by sequence.
    len: Vec<u32>,
    /// Lengths after the current pass.
    ahead: Vec<u32>,
    /// The sequence and the position of each row of the current pass.
    rows: Vec<(u32, u32)>,
    /// The layer that the current pass must extend next.
    next: usize,
}

impl Ledger {
    pub(super) fn new(n_layers: usize, sequences: usize, capacity: usize) -> Ledger {
        let [len, ahead] = [vec![0; sequences], vec![0; sequences]];
        Ledger { n_layers, capacity, len, ahead, rows: Vec::new(), next: 0 }
    }

    pub(super) fn sequences(&self) -> usize {
        self.len.len()
    }

    /// Maximum number of positions of a sequence.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
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
    pub(super) fn pass(&self) -> impl Iterator<Item = (u32, usize)> {
        let first_rows = self.rows.iter().filter(|&&(seq, pos)| pos == self.len[seq as usize]);
        first_rows.map(|&(seq, _)| (seq, self.ahead[seq as usize] as usize))
    }

    /// Abandons the current pass, and sets the length of `seq`.
    pub(super) fn set_len(&mut self, seq: u32, len: usize) {
        self.next = 0;
        self.len[seq as usize] = len as u32;
        self.ahead[seq as usize] = len as u32;
    }

    /// Checks that `rows` follow their sequences in `layer`. Layer 0 starts a pass, every other layer gets the rows of
    /// layer 0. Until [`leave`](Self::leave), only layer 0 can be next: a pass that fails is abandoned.
    pub(super) fn enter(&mut self, layer: usize, rows: &Rows) -> Result<()> {
        let want = std::mem::take(&mut self.next);
        match layer {
            0 => self.start(rows),
            got if got != want => Err(Error::CacheLayer { want, got }),
            _ => self.check_same(layer, rows),
        }
    }

    /// Records that the pass is written in `layer`. After the last layer, the sequences have their new lengths.
    pub(super) fn leave(&mut self, layer: usize) {
        self.next = (layer + 1) % self.n_layers;
        if self.next == 0 {
            self.rows.iter().for_each(|&(seq, _)| self.len[seq as usize] = self.ahead[seq as usize]);
        }
    }

    fn start(&mut self, rows: &Rows) -> Result<()> {
        for (seq, _) in self.rows.drain(..) {
            self.ahead[seq as usize] = self.len[seq as usize];
        }
        for (&seq, &pos) in rows.seq.iter().zip(&rows.pos) {
            let want = self.ahead.get_mut(seq as usize).ok_or(Error::CacheFull { seq, pos })?;
            if *want != pos {
                return Err(Error::CachePosition { layer: 0, seq, want: *want, got: pos });
            }
            *want += 1;
            self.rows.push((seq, pos));
            self.check_fits(seq, pos as usize + 1)?;
        }
        Ok(())
    }

    /// Checks that `rows` are those of layer 0.
    fn check_same(&self, layer: usize, rows: &Rows) -> Result<()> {
        for (n, (&seq, &pos)) in rows.seq.iter().zip(&rows.pos).enumerate() {
            if self.rows.get(n) != Some(&(seq, pos)) {
                let len = *self.len.get(seq as usize).ok_or(Error::CacheFull { seq, pos })?;
                let want = len + rows.seq[..n].iter().filter(|&&s| s == seq).count() as u32;
                return Err(Error::CachePosition { layer, seq, want, got: pos });
            }
        }
        match self.rows.get(rows.len()) {
            Some(&(seq, got)) => {
                Err(Error::CachePosition { layer, seq, want: self.ahead[seq as usize], got })
            }
            None => Ok(()),
        }
    }

    /// Checks that `seq` is a sequence of this cache and can have `len` positions.
    pub(super) fn check_fits(&self, seq: u32, len: usize) -> Result<()> {
        match self.len.get(seq as usize).map(|_| self.capacity) {
            Some(capacity) if len <= capacity => Ok(()),
            capacity => Err(Error::CacheFull { seq, pos: capacity.unwrap_or(0) as u32 }),
        }
    }

    /// Checks that `seq` holds at least `len` positions.
    pub(super) fn check_held(&self, seq: u32, len: usize) -> Result<()> {
        self.check_fits(seq, 0)?;
        let want = self.len(seq);
        if len > want {
            return Err(Error::CachePosition { layer: 0, seq, want: want as u32, got: len as u32 });
        }
        Ok(())
    }
}
