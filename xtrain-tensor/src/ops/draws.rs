//! Sampling whose tokens stay on the device.
use super::sample::check_rows;
use super::shapes;
use crate::device::Device;
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::operands::{Outcome, SampleRing, SampleRow, Weight};
use crate::tensor::Tensor;

const OP: &str = "DeviceSampler";

/// Index lists per step.
const LISTS: usize = 2;

/// Tokens that rows draw turn by turn: each turn's tokens are what the next one begins with, and nothing of them
/// comes to the host before [`DeviceSampler::look`]. On a GPU, so many turns run without waiting for the host.
///
/// A turn is [`DeviceSampler::embedding`], what a model makes of it, and [`DeviceSampler::draw`] from its logits. The tokens and
/// log-probabilities are those of [`sample_rows`](super::sample_rows), by bits.
#[derive(Debug)]
pub struct DeviceSampler {
    ring: Box<dyn SampleRing>,
    /// Rows and turns that there is room for.
    room: [usize; 2],
    rows: usize,
    turns: usize,
    /// Every last token is below it.
    vocab: usize,
}

impl DeviceSampler {
    /// Room for `turns` turns of `rows` rows.
    ///
    /// # Errors
    /// [`Error::Device`] when the device has no memory for it; [`Error::Argument`] when no memory could be so large.
    pub fn new(device: &Device, rows: usize, turns: usize) -> Result<DeviceSampler> {
        let ring = backend(device).sample_ring(rows, turns)?;
        Ok(DeviceSampler { ring, room: [rows, turns], rows: 0, turns: 0, vocab: 0 })
    }

    /// Rows that there is room for.
    pub fn room(&self) -> usize {
        self.room[0]
    }

    /// Begins anew with the last token of each row, as the host knows it. A device that holds them is not sent them.
    ///
    /// `lists[t]` are lists of as many indices as there are rows, positions and slots, that operations will take in
    /// turn `t`, as far as they are known: up to two. A GPU is sent those of all turns here, in one copy, and nothing
    /// between.
    ///
    /// # Errors
    /// [`Error::Argument`] for more rows, turns or lists than there is room for, and for lists that are not alike in
    /// all turns.
    pub fn begin(&mut self, tokens: &[u32], lists: Vec<Vec<Vec<u32>>>) -> Result<()> {
        if tokens.len() > self.room[0] {
            let got = format!("{} of {}", tokens.len(), self.room[0]);
            return Err(Error::Argument { op: OP, want: "no more rows than there is room for", got });
        }
        let most = lists.first().map_or(0, Vec::len);
        let alike =
            |turn: &Vec<Vec<u32>>| turn.len() == most && turn.iter().all(|list| list.len() == tokens.len());
        if lists.len() > self.room[1] || most > LISTS || !lists.iter().all(alike) {
            let got = format!("{} turns of {most}", lists.len());
            return Err(Error::Argument { op: OP, want: "up to two lists a turn, an index a row", got });
        }
        (self.rows, self.turns) = (tokens.len(), 0);
        self.vocab = tokens.iter().max().map_or(0, |&t| t as usize + 1);
        self.ring.stage(tokens, lists)
    }

    /// [`embedding`](super::embedding) of the last token of each row: `w [V, C]` → `[N, C]`.
    ///
    /// # Errors
    /// As [`embedding`](super::embedding).
    pub fn embedding(&self, w: &Tensor, dtype: Dtype) -> Result<Tensor> {
        match w.shape() {
            &[v, _] if self.vocab <= v && w.dtype() == Dtype::F32 => self.ring.embedding(w, dtype),
            _ => Err(Error::Shape { op: OP, want: "w [V, C] in f32, a row for each id", got: shapes(&[w]) }),
        }
    }

    /// [`weight_rows`](super::weight_rows) of the last token of each row.
    ///
    /// # Errors
    /// As [`weight_rows`](super::weight_rows).
    pub fn weight_rows(&self, w: &Weight) -> Result<Tensor> {
        if self.vocab > w.out_features() {
            let got = vec![vec![w.out_features(), w.in_features()]];
            return Err(Error::Shape { op: OP, want: "w [V, C], a row for each id", got });
        }
        self.ring.weight_rows(w)
    }

    /// A token for each row of `logits [N, V]`, which becomes its last. `seen` of a row leaves out what it drew since
    /// [`DeviceSampler::begin`]: a penalty adds it.
    ///
    /// # Errors
    /// As [`sample_rows`](super::sample_rows); [`Error::Argument`] for more turns than there is room for.
    pub fn draw(&mut self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<()> {
        check_rows(OP, logits, rows)?;
        if self.turns == self.room[1] || rows.len() != self.rows {
            let got = format!("turn {} of {} rows", self.turns + 1, rows.len());
            return Err(Error::Argument { op: OP, want: "a turn of the rows that began", got });
        }
        if !rows.is_empty() {
            self.ring.sample(logits, rows)?;
        }
        (self.vocab, self.turns) = (self.vocab.max(logits.width()), self.turns + 1);
        Ok(())
    }

    /// What the rows drew, turn by turn. A row that could not draw goes on from id 0.
    ///
    /// # Errors
    /// [`Error::Device`] when a device fails.
    pub fn look(&mut self) -> Result<Vec<Vec<Outcome>>> {
        match std::mem::take(&mut self.turns) {
            0 => Ok(Vec::new()),
            turns if self.rows == 0 => Ok(vec![Vec::new(); turns]),
            _ => self.ring.read_back(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Schedule;
    use crate::testing::{self, arbitrary};

    const VOCAB: usize = 150;

    /// What was drawn in each turn, and what each of its two lists took from a table, by bits.
    type Turns = (Vec<Vec<[u32; 3]>>, Vec<Vec<u32>>);

    /// Turns of a chain whose next logits are a row of a table.
    fn turns(device: &Device, dtype: Dtype) -> Result<Turns> {
        let table: Vec<f32> = arbitrary(VOCAB * VOCAB, 4).iter().map(|x| 6.0 * x).collect();
        let w = Tensor::new(device, &[VOCAB, VOCAB], table)?;
        let (mut draws, mut all, mut bits_taken) =
            (DeviceSampler::new(device, 6, 5)?, Vec::new(), Vec::new());
        let mut last: Vec<u32> = vec![7, 149, 0, 31, 8];
        for look in 0..3 {
            let list = |turn: u32, step: u32| -> Vec<u32> {
                (0..last.len() as u32).map(|n| (n * step + 11 * turn + look) % VOCAB as u32).collect()
            };
            let turns = [5, 1, 4][look as usize];
            draws.begin(&last, (0..turns).map(|turn| vec![list(turn, 7), list(turn, 31)]).collect())?;
            let mut taken = Vec::new();
            for turn in 0..turns {
                let logits = draws.embedding(&w, dtype)?;
                for step in [7, 31] {
                    taken.push(super::super::gather_rows(&w, &list(turn, step))?);
                }
                let row = |n: usize| SampleRow {
                    seed: 3,
                    id: n as u64,
                    position: 10 * look + turn,
                    temperature: [1.0, 0.0, 0.7, 1.2, 0.0][n],
                    top_k: [0, 0, 20, 0, 0][n],
                    top_p: [1.0, 1.0, 1.0, 0.9, 1.0][n],
                    min_p: 0.0,
                    penalty: [1.0, 2.5, 1.0, 3.0, 1.0][n],
                    seen: &last,
                };
                draws.draw(&logits, &(0..last.len()).map(row).collect::<Vec<_>>())?;
            }
            let drawn = draws.look()?;
            for rows in taken {
                bits_taken.push(rows.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect());
            }
            let next = drawn.last().expect("there are turns");
            last = next.iter().map(|o| o.expect("a token").token).collect();
            let bits = |o: Outcome| {
                let s = o.expect("a token");
                [s.token, s.log_prob.to_bits(), s.processed.to_bits()]
            };
            all.extend(drawn.iter().map(|turn| turn.iter().map(|&o| bits(o)).collect()));
            // the third time with fewer rows: the device has to be told
            last.truncate(5 - look as usize);
        }
        Ok((all, bits_taken))
    }

    #[test]
    fn what_stays_on_a_gpu_is_what_a_processor_draws() {
        for dtype in [Dtype::F32, Dtype::BF16] {
            let want = turns(&Device::cpu(), dtype).unwrap();
            assert_eq!([want.0.len(), want.1.len()], [10, 20]);
            let schedules =
                [Schedule::Forward, Schedule::Backward, Schedule::Random(3), Schedule::Priorities(4)];
            let devices = testing::gpus(&schedules).into_iter().chain(testing::checked(Schedule::Random(2)));
            for device in devices {
                assert_eq!(turns(&device, dtype).unwrap(), want, "{device}");
            }
        }
    }

    #[cfg(feature = "faults")]
    #[test]
    fn lists_of_the_turn_before_are_seen_in_what_they_take() {
        let want = turns(&Device::cpu(), Dtype::F32).unwrap();
        for device in testing::gpus(&[Schedule::Forward]) {
            let with = || turns(&device, Dtype::F32);
            let seen = crate::faults::with(crate::faults::Fault::ListsOfTheTurnBefore, with).unwrap();
            assert_eq!(seen.0, want.0, "{device}: what is drawn does not read the lists");
            assert_eq!(seen.1[..2], want.1[..2], "{device}: the first turn has no turn before");
            assert_eq!(seen.1[2..4], want.1[..2], "{device}: the second takes the lists of the first");
            assert_ne!(seen.1[2..4], want.1[2..4], "{device}: which are not its own");
        }
    }

    #[test]
    fn turns_of_no_rows_are_turns_without_tokens() {
        for device in testing::gpus(&[Schedule::Forward]).into_iter().chain([Device::cpu()]) {
            let mut draws = DeviceSampler::new(&device, 2, 3).unwrap();
            let logits = Tensor::new(&device, &[0, VOCAB], Vec::<f32>::new()).unwrap();
            for turns in [2, 0, 3] {
                draws.begin(&[], Vec::new()).unwrap();
                (0..turns).for_each(|_| draws.draw(&logits, &[]).unwrap());
                assert_eq!(draws.look().unwrap(), vec![Vec::new(); turns], "{device}");
            }
        }
    }

    #[test]
    fn room_that_no_memory_has_is_refused() {
        for device in testing::gpus(&[Schedule::Forward]) {
            for (rows, turns) in [(usize::MAX / 8, 1), (1 << 20, usize::MAX >> 20), (1 << 40, 1 << 20)] {
                let refused = DeviceSampler::new(&device, rows, turns).map(|_| ());
                assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
            }
        }
    }

    #[test]
    fn rows_and_turns_beyond_the_room_are_refused() {
        let cpu = Device::cpu();
        let mut draws = DeviceSampler::new(&cpu, 2, 1).unwrap();
        assert!(matches!(draws.begin(&[1, 2, 3], Vec::new()), Err(Error::Argument { .. })));
        for lists in [vec![vec![]; 2], vec![vec![vec![4, 5]]], vec![vec![vec![4]; 3]]] {
            assert!(matches!(draws.begin(&[1], lists), Err(Error::Argument { .. })));
        }
        draws.begin(&[1], vec![vec![vec![4]; 2]]).unwrap();
        let row = SampleRow {
            seed: 0,
            id: 0,
            position: 0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            penalty: 1.0,
            seen: &[],
        };
        let logits = Tensor::new(&cpu, &[1, 2], vec![1f32, 2.0]).unwrap();
        draws.draw(&logits, &[row]).unwrap();
        assert!(draws.draw(&logits, &[row]).is_err());
        assert_eq!(draws.look().unwrap().len(), 1);
    }
}
