//! Reading a tensor in pieces, with a reader thread that reads ahead of use.
use std::panic::resume_unwind;
use std::sync::mpsc::sync_channel;
use std::thread;

use half::bf16;
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{Piece, QuantBlock, QuantFormat};

use crate::quant::Quant;

/// A buffer for one piece of a tensor: elements in their stored type, little-endian until [`ReadBuffer::values`].
pub(crate) enum ReadBuffer {
    F32(Vec<f32>),
    BF16(Vec<bf16>),
    /// A quantized type: the stored bytes, their blocks and the type.
    Blocks(Vec<u8>, Vec<QuantBlock>, Quant, QuantFormat),
    /// Another type: the stored bytes, the widened values and the type.
    Other(Vec<u8>, Vec<f32>, Quant),
}

/// Number of bytes read or written at a time.
pub(crate) const PIECE: usize = 256 << 10;
/// Minimum size in bytes of a tensor that is read ahead.
const READ_AHEAD_MIN: usize = 4 << 20;
/// Number of buffers used to read ahead.
const BUFFERS: usize = 3;

impl ReadBuffer {
    /// A buffer for `bytes` bytes of `quant`.
    fn new(quant: Quant, bytes: usize) -> ReadBuffer {
        match quant {
            Quant::F32 => ReadBuffer::F32(vec![0.0; bytes / 4]),
            Quant::BF16 => ReadBuffer::BF16(vec![bf16::ZERO; bytes / 2]),
            _ => match quant.format() {
                Some(format) => ReadBuffer::Blocks(vec![0; bytes], Vec::new(), quant, format),
                None => ReadBuffer::Other(vec![0; bytes], Vec::new(), quant),
            },
        }
    }

    /// Passes the `left` bytes of a tensor to `take` in order, in pieces of whole blocks and at most `piece` bytes.
    /// `read` fills a buffer with the next bytes. After an error of `read`, `take` is not called again. For tensors
    /// of at least [`READ_AHEAD_MIN`] bytes a separate thread reads the next pieces meanwhile, if the system can
    /// start one.
    pub(crate) fn each<E: Send>(
        quant: Quant,
        piece: usize,
        mut left: usize,
        mut read: impl FnMut(&mut [u8]) -> Result<(), E> + Send,
        mut take: impl FnMut(Piece<'_>),
    ) -> Result<(), E> {
        let (block, long, mut more) = (quant.block().bytes, left >= READ_AHEAD_MIN, left > 0);
        let whole = if faults::on(Fault::QuantBlockSplit) { piece } else { piece / block * block };
        let size = left.min(whole);
        let begin = || ReadBuffer::new(quant, size);
        let mut next = move |buffer: &mut ReadBuffer| {
            let bytes = buffer.bytes(left);
            left -= bytes.len();
            read(bytes).map(|()| left > 0)
        };
        if long && let Some(done) = ReadBuffer::read_ahead(&begin, &mut next, &mut take) {
            return done;
        }
        let mut buffer = begin();
        while more {
            more = next(&mut buffer)?;
            take(buffer.values());
        }
        Ok(())
    }

    /// Passes every piece to `take` while a thread fills the next buffers with `next`, which returns whether more
    /// bytes follow. `None`: the system could not start a thread.
    fn read_ahead<E: Send>(
        begin: &impl Fn() -> ReadBuffer,
        next: &mut (impl FnMut(&mut ReadBuffer) -> Result<bool, E> + Send),
        take: &mut impl FnMut(Piece<'_>),
    ) -> Option<Result<(), E>> {
        thread::scope(|scope| {
            let ((full_tx, full_rx), (free_tx, free_rx)) = (sync_channel(BUFFERS), sync_channel(BUFFERS));
            for _ in 0..BUFFERS {
                free_tx.send(begin()).expect("the channel has a place for every buffer");
            }
            let fill = move || {
                let mut more = true;
                // the channels are closed if `take` panicked
                while more && let Ok(mut buffer) = free_rx.recv() {
                    more = next(&mut buffer)?;
                    more &= full_tx.send(buffer).is_ok();
                }
                Ok(())
            };
            let reader = thread::Builder::new().spawn_scoped(scope, fill).ok()?;
            let late = faults::on(Fault::PrefetchedPieceReordered).then(|| full_rx.recv().ok()).flatten();
            for mut buffer in full_rx.into_iter().chain(late) {
                take(buffer.values());
                // fails after the reader has read everything and ended
                let _ = free_tx.send(buffer);
            }
            Some(reader.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }

    /// The memory that the next of `left` bytes are read into. The last piece may be shorter.
    fn bytes(&mut self, left: usize) -> &mut [u8] {
        match self {
            ReadBuffer::F32(elements) => bytes_of(elements, left),
            ReadBuffer::BF16(elements) => bytes_of(elements, left),
            ReadBuffer::Blocks(bytes, ..) | ReadBuffer::Other(bytes, ..) => bytes_of(bytes, left),
        }
    }

    /// The elements that were read.
    fn values(&mut self) -> Piece<'_> {
        match self {
            ReadBuffer::F32(elements) => {
                for x in elements.iter_mut() {
                    *x = f32::from_bits(u32::from_le(x.to_bits()));
                }
                Piece::F32(elements)
            }
            ReadBuffer::BF16(elements) => {
                for x in elements.iter_mut() {
                    *x = bf16::from_bits(u16::from_le(x.to_bits()));
                }
                Piece::BF16(elements)
            }
            ReadBuffer::Blocks(bytes, blocks, quant, format) => {
                blocks.clear();
                quant.unpack(bytes, blocks);
                Piece::Blocks(*format, blocks)
            }
            ReadBuffer::Other(bytes, wide, quant) => {
                wide.clear();
                quant.widen(bytes, wide);
                Piece::F32(wide)
            }
        }
    }
}

fn bytes_of<T: bytemuck::Pod>(elements: &mut Vec<T>, left: usize) -> &mut [u8] {
    elements.truncate(left / size_of::<T>());
    bytemuck::cast_slice_mut(elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `n` elements with the values 0, 1, 2, ... in pieces of 1000. Reading fails at `bad`.
    fn taken(n: usize, bad: Option<usize>) -> (Vec<f32>, Result<(), usize>) {
        let (mut at, mut got) = (0, Vec::new());
        let read = |bytes: &mut [u8]| {
            for x in bytes.as_chunks_mut().0 {
                *x = (at as f32).to_le_bytes();
                at += 1;
            }
            bad.filter(|bad| at > *bad).map_or(Ok(()), Err)
        };
        let done = ReadBuffer::each(Quant::F32, 4000, 4 * n, read, |piece| piece.widen(&mut got));
        (got, done)
    }

    #[test]
    fn short_and_long_tensors_are_read_completely_and_in_order() {
        for n in [0, 1, 1000, 2001, READ_AHEAD_MIN / 4 - 1, READ_AHEAD_MIN / 4, READ_AHEAD_MIN / 4 + 1001] {
            let (got, done) = taken(n, None);
            assert_eq!((got.len(), done), (n, Ok(())));
            assert!(got.iter().enumerate().all(|(i, &x)| x == i as f32), "{n} elements");
        }
    }

    #[test]
    fn a_read_error_ends_the_tensor_after_the_pieces_before_it() {
        for n in [5000, READ_AHEAD_MIN / 4 + 5000] {
            assert_eq!(taken(n, Some(3500)), ((0..3000).map(|i| i as f32).collect(), Err(3500)));
            // fails in the first piece: the reader may end before `take` is called
            for _ in 0..200 {
                assert_eq!(taken(n, Some(0)), (vec![], Err(0)));
            }
        }
    }

    #[test]
    fn a_panic_in_take_does_not_block_the_reader() {
        let take = |_: Piece<'_>| panic!("full");
        let read = |_: &mut [u8]| Ok::<_, ()>(());
        let done =
            std::panic::catch_unwind(|| ReadBuffer::each(Quant::BF16, 4000, READ_AHEAD_MIN, read, take));
        assert!(done.is_err());
    }
}
