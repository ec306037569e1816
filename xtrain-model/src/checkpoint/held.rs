//! A piece of a tensor in memory, where a file was read to.
use std::panic::resume_unwind;
use std::sync::mpsc::sync_channel;
use std::thread;

use half::bf16;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::Piece;

/// Elements in the type in which they are stored, little-endian until [`Held::values`].
pub(crate) enum Held {
    F32(Vec<f32>),
    BF16(Vec<bf16>),
    /// Of another type, and widened.
    Other(Vec<u8>, Vec<f32>, Box<Widen>),
}

/// Appends the elements of whole blocks.
type Widen = dyn Fn(&[u8], &mut Vec<f32>) + Send;

/// Bytes of a tensor that is long enough to be read ahead.
const LONG: usize = 4 << 20;
/// Pieces of a long tensor that are in memory.
const AHEAD: usize = 3;

impl Held {
    /// Room for so many bytes of f32.
    pub(crate) fn f32(bytes: usize) -> Held {
        Held::F32(vec![0.0; bytes / 4])
    }

    /// Room for so many bytes of bf16.
    pub(crate) fn bf16(bytes: usize) -> Held {
        Held::BF16(vec![bf16::ZERO; bytes / 2])
    }

    /// Room for so many bytes of what `widen` reads.
    pub(crate) fn other(bytes: usize, widen: impl Fn(&[u8], &mut Vec<f32>) + Send + 'static) -> Held {
        Held::Other(vec![0; bytes], Vec::new(), Box::new(widen))
    }

    /// Gives `take` the elements of `left` bytes in their order, a piece at a time: `begin` makes room for one, `read`
    /// fills it with the next bytes. Of a long tensor the next pieces are read meanwhile, by a thread of their own
    /// unless the system refuses one.
    ///
    /// # Errors
    /// Those of `read`, after which nothing more is taken.
    pub(crate) fn each<E: Send>(
        begin: impl Fn() -> Held,
        mut left: usize,
        mut read: impl FnMut(&mut [u8]) -> Result<(), E> + Send,
        mut take: impl FnMut(Piece<'_>),
    ) -> Result<(), E> {
        let (long, mut more) = (left >= LONG, left > 0);
        let mut next = move |held: &mut Held| {
            let bytes = held.bytes(left);
            left -= bytes.len();
            read(bytes).map(|()| left > 0)
        };
        if long && let Some(done) = Held::ahead(&begin, &mut next, &mut take) {
            return done;
        }
        let mut held = begin();
        while more {
            more = next(&mut held)?;
            take(held.values());
        }
        Ok(())
    }

    /// Gives `take` every piece while a thread fills the next ones by `next`, which says whether there are more.
    /// Nothing where the system refuses a thread.
    fn ahead<E: Send>(
        begin: &impl Fn() -> Held,
        next: &mut (impl FnMut(&mut Held) -> Result<bool, E> + Send),
        take: &mut impl FnMut(Piece<'_>),
    ) -> Option<Result<(), E>> {
        thread::scope(|scope| {
            let ((give, full), (back, free)) = (sync_channel(AHEAD), sync_channel(AHEAD));
            for _ in 0..AHEAD {
                back.send(begin()).expect("room for every piece");
            }
            let fill = move || {
                let mut more = true;
                // a channel is closed where `take` has panicked: nobody wants what comes
                while more && let Ok(mut held) = free.recv() {
                    more = next(&mut held)?;
                    more &= give.send(held).is_ok();
                }
                Ok(())
            };
            let reader = thread::Builder::new().spawn_scoped(scope, fill).ok()?;
            let late = faults::on(Fault::FirstPieceComesLast).then(|| full.recv().ok()).flatten();
            for mut held in full.into_iter().chain(late) {
                take(held.values());
                // refused once everything was read
                let _ = back.send(held);
            }
            Some(reader.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }

    /// What the next of `left` bytes are read to; the last piece may be shorter.
    fn bytes(&mut self, left: usize) -> &mut [u8] {
        match self {
            Held::F32(held) => bytes_of(held, left),
            Held::BF16(held) => bytes_of(held, left),
            Held::Other(held, ..) => bytes_of(held, left),
        }
    }

    /// What was read.
    fn values(&mut self) -> Piece<'_> {
        match self {
            Held::F32(held) => {
                held.iter_mut().for_each(|x| *x = f32::from_bits(u32::from_le(x.to_bits())));
                Piece::F32(held)
            }
            Held::BF16(held) => {
                held.iter_mut().for_each(|x| *x = bf16::from_bits(u16::from_le(x.to_bits())));
                Piece::BF16(held)
            }
            Held::Other(held, wide, widen) => {
                wide.clear();
                widen(held, wide);
                Piece::F32(wide)
            }
        }
    }
}

fn bytes_of<T: bytemuck::Pod>(held: &mut Vec<T>, left: usize) -> &mut [u8] {
    held.truncate(left / size_of::<T>());
    bytemuck::cast_slice_mut(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values 0, 1, 2, ... of `n` elements in pieces of 1000, where reading fails at `bad`.
    fn taken(n: usize, bad: Option<usize>) -> (Vec<f32>, Result<(), usize>) {
        let (mut at, mut got) = (0, Vec::new());
        let read = |bytes: &mut [u8]| {
            for x in bytes.as_chunks_mut().0 {
                *x = (at as f32).to_le_bytes();
                at += 1;
            }
            bad.filter(|bad| at > *bad).map_or(Ok(()), Err)
        };
        let done = Held::each(|| Held::f32(4000), 4 * n, read, |piece| piece.widen(&mut got));
        (got, done)
    }

    #[test]
    fn short_and_long_tensors_come_whole_and_in_order() {
        for n in [0, 1, 1000, 2001, LONG / 4 - 1, LONG / 4, LONG / 4 + 1001] {
            let (got, done) = taken(n, None);
            assert_eq!((got.len(), done), (n, Ok(())));
            assert!(got.iter().enumerate().all(|(i, &x)| x == i as f32), "{n} elements");
        }
    }

    #[test]
    fn what_cannot_be_read_ends_it_after_the_pieces_before() {
        for n in [5000, LONG / 4 + 5000] {
            assert_eq!(taken(n, Some(3500)), ((0..3000).map(|i| i as f32).collect(), Err(3500)));
            // at once: the reader may end before anything is taken
            for _ in 0..200 {
                assert_eq!(taken(n, Some(0)), (vec![], Err(0)));
            }
        }
    }

    #[test]
    fn a_panic_of_who_takes_does_not_leave_the_reader_waiting() {
        let take = |_: Piece<'_>| panic!("full");
        let ends =
            std::panic::catch_unwind(|| Held::each(|| Held::bf16(4000), LONG, |_| Ok::<_, ()>(()), take));
        assert!(ends.is_err());
    }
}
