//! The elements of tensors on their way to and from a safetensors file, a small piece at a time.
use std::collections::HashMap;
use std::path::Path;

use half::f16;
use xtrain_tensor::ops::Piece;

use super::checksum::{Counted, Summed};
use super::error::{CheckpointError, Result};
use super::header::{StoredDtype, TensorInfo};
use super::held::Held;
use super::options::NonFinite;
use super::snapshot::TensorView;

/// Bytes that are read and written at a time.
const PIECE: usize = 256 << 10;

/// A tensor that was loaded, widened to f32 without rounding.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    /// Its name.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements, row-major.
    pub data: Vec<f32>,
}

/// What becomes of a tensor while it is read: it takes pieces of its elements in their order, bf16 as they are and
/// others widened to f32.
pub trait Sink {
    /// The next elements.
    fn push(&mut self, piece: Piece<'_>);
}

/// Begins to take the tensor of a name and a shape.
pub type Begin<'a, T> = &'a dyn Fn(&str, &[usize]) -> T;

impl NamedTensor {
    /// A tensor of which nothing was read yet.
    pub fn begin(name: &str, shape: &[usize]) -> NamedTensor {
        let data = Vec::with_capacity(shape.iter().product());
        NamedTensor { name: name.into(), shape: shape.to_vec(), data }
    }
}

impl Sink for NamedTensor {
    fn push(&mut self, piece: Piece<'_>) {
        piece.widen(&mut self.data);
    }
}

/// Nobody takes it.
impl Sink for () {
    fn push(&mut self, _: Piece<'_>) {}
}

/// The checksum of a tensor's bytes, and whether its elements are finite or need not be.
pub(super) type Found = (u32, Result<()>);

/// Reads the elements of `info` from where `from` stands, a piece at a time, and looks at each while it is in the
/// processor's cache.
///
/// # Errors
/// [`CheckpointError::Io`] if the file ends early or cannot be read.
pub(super) fn read(
    file: &Path,
    info: &TensorInfo,
    (from, allowed): (&mut Summed<'_>, NonFinite),
    to: &mut dyn Sink,
) -> Result<Found> {
    let length = info.elements() * info.dtype.bytes();
    let most = PIECE.min(length);
    let begin = || match info.dtype {
        StoredDtype::F32 => Held::f32(most),
        StoredDtype::BF16 => Held::bf16(most),
        StoredDtype::F16 => Held::other(most, |bytes, to| {
            to.extend(bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()));
        }),
    };
    let (mut crc, mut finite, mut before) = (0, Ok(()), 0);
    let read = |bytes: &mut [u8]| {
        crc = from.read_within(bytes, crc)?;
        Ok(())
    };
    let take = |piece: Piece<'_>| {
        if finite.is_ok() && allowed == NonFinite::Refuse {
            finite = check_finite(file, &info.name, (piece, before));
        }
        before += piece.count();
        to.push(piece);
    };
    Held::each(begin, length, read, take).map_err(CheckpointError::io("read", file))?;
    from.append(crc, length);
    Ok((crc, finite))
}

/// Appends the elements of `tensor`; returns the checksum of their bytes.
pub(super) fn write(tensor: &TensorView<'_>, to: &mut Counted) -> std::io::Result<u32> {
    let mut piece = Vec::with_capacity(PIECE.min(4 * tensor.data.len()));
    let mut crc = 0;
    for elements in tensor.data.chunks(PIECE / 4) {
        piece.clear();
        piece.extend(elements.iter().flat_map(|x| x.to_le_bytes()));
        crc = crc32c::crc32c_append(crc, &piece);
        to.write(&piece)?;
    }
    Ok(crc)
}

/// Refuses a NaN or an infinity in a piece of `tensor` that has `before` elements before it.
fn check_finite(file: &Path, tensor: &str, (piece, before): (Piece<'_>, usize)) -> Result<()> {
    let Some((at, got)) = piece.first_non_finite() else { return Ok(()) };
    let (file, tensor) = (file.into(), tensor.into());
    Err(CheckpointError::NotFinite { file, tensor, at: before + at, got })
}

/// Compares the tensors of `file` with those that a model has, before any of them is read: each name of
/// `want` is there with its shape, and no other.
///
/// # Errors
/// [`CheckpointError::MissingTensor`], [`CheckpointError::Shape`], [`CheckpointError::UnexpectedTensor`].
pub fn require_shapes(file: &Path, want: &[(String, Vec<usize>)], got: &[TensorInfo]) -> Result<()> {
    let mut left: HashMap<&str, &TensorInfo> = got.iter().map(|info| (info.name.as_str(), info)).collect();
    for (name, shape) in want {
        let (file, tensor) = (file.to_owned(), name.clone());
        match left.remove(name.as_str()) {
            None => return Err(CheckpointError::MissingTensor { file, tensor }),
            Some(info) if info.shape != *shape => {
                let (want, got) = (shape.clone(), info.shape.clone());
                return Err(CheckpointError::Shape { file, tensor, want, got });
            }
            Some(_) => {}
        }
    }
    match got.iter().find(|info| left.contains_key(info.name.as_str())) {
        Some(info) => Err(CheckpointError::UnexpectedTensor { file: file.into(), tensor: info.name.clone() }),
        None => Ok(()),
    }
}
