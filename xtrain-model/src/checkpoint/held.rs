//! A piece of a tensor in memory, where a file was read to.
use half::bf16;
use xtrain_tensor::ops::Piece;

/// Elements in the type in which they are stored, little-endian until [`Held::values`].
pub(crate) enum Held {
    F32(Vec<f32>),
    BF16(Vec<bf16>),
    /// Of another type, and widened.
    Other(Vec<u8>, Vec<f32>, Box<Widen>),
}

/// Appends the elements of whole blocks.
type Widen = dyn Fn(&[u8], &mut Vec<f32>);

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
    pub(crate) fn other(bytes: usize, widen: impl Fn(&[u8], &mut Vec<f32>) + 'static) -> Held {
        Held::Other(vec![0; bytes], Vec::new(), Box::new(widen))
    }

    /// What the next of `left` bytes are read to; the last piece may be shorter.
    pub(crate) fn bytes(&mut self, left: usize) -> &mut [u8] {
        match self {
            Held::F32(held) => bytes_of(held, left),
            Held::BF16(held) => bytes_of(held, left),
            Held::Other(held, ..) => bytes_of(held, left),
        }
    }

    /// What was read.
    pub(crate) fn values(&mut self) -> Piece<'_> {
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
