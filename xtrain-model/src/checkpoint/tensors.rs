//! Reading and writing the elements of a safetensors file, one small piece at a time.
use std::collections::HashMap;
use std::path::Path;

use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::Piece;

use super::checksum::{ChecksummedReader, ChecksummedWriter};
use super::error::{CheckpointError, Result};
use super::header::{TensorInfo, TensorView};
use super::read_ahead::{PIECE, ReadBuffer};

/// A loaded tensor, widened to f32 without rounding.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    /// The name.
    pub name: String,
    /// The dimensions.
    pub shape: Vec<usize>,
    /// The elements, row-major.
    pub data: Vec<f32>,
}

/// Receives the elements of a tensor while it is read: pieces in order, bf16 unchanged and other types widened to
/// f32.
pub trait TensorSink {
    /// Receives the next elements.
    fn push(&mut self, piece: Piece<'_>);
}

/// Creates the sink of a tensor from its name and shape.
pub type NewSink<'a, T> = &'a dyn Fn(&str, &[usize]) -> T;

impl NamedTensor {
    /// A tensor without elements yet.
    pub fn begin(name: &str, shape: &[usize]) -> NamedTensor {
        let data = Vec::with_capacity(shape.iter().product());
        NamedTensor { name: name.into(), shape: shape.to_vec(), data }
    }
}

impl TensorSink for NamedTensor {
    fn push(&mut self, piece: Piece<'_>) {
        piece.widen(&mut self.data);
    }
}

impl TensorSink for () {
    fn push(&mut self, _: Piece<'_>) {}
}

/// How to treat weights that are NaN or infinite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NonFinite {
    /// Return an error that names the tensor.
    #[default]
    Refuse,
    /// Load them.
    Allow,
}

pub(super) struct TensorCheck {
    pub(super) crc: u32,
    /// An error if an element is not finite and must be.
    pub(super) finite: Result<()>,
}

/// Reads the elements of `info` from the current position of `from`, one piece at a time, and checks each piece while
/// it is in the CPU's cache.
pub(super) fn read(
    file: &Path,
    info: &TensorInfo,
    allowed: NonFinite,
    from: &mut ChecksummedReader<'_>,
    to: &mut dyn TensorSink,
) -> Result<TensorCheck> {
    let length = info.elements() * info.dtype.block().bytes;
    let (mut crc, mut finite, mut before) = (0, Ok(()), 0);
    let read = |bytes: &mut [u8]| {
        crc = from.read_section(bytes, crc)?;
        Ok(())
    };
    let take = |piece: Piece<'_>| {
        if finite.is_ok()
            && allowed == NonFinite::Refuse
            && let Some((at, got)) = piece.first_non_finite()
        {
            let (file, tensor) = (file.into(), info.name.clone());
            let before = if faults::on(Fault::NonFiniteIndexInPiece) { 0 } else { before };
            finite = Err(CheckpointError::NotFinite { file, tensor, at: before + at, got });
        }
        before += piece.count();
        to.push(piece);
    };
    ReadBuffer::each(info.dtype, PIECE, length, read, take).map_err(CheckpointError::io("read", file))?;
    from.append(crc, length);
    Ok(TensorCheck { crc, finite })
}

/// Appends the elements of `tensor`. Returns the checksum of their bytes.
pub(super) fn write(tensor: &TensorView<'_>, to: &mut ChecksummedWriter) -> std::io::Result<u32> {
    let mut piece = Vec::with_capacity(PIECE.min(4 * tensor.data.len()));
    let mut crc = 0;
    for elements in tensor.data.chunks(PIECE / 4) {
        piece.clear();
        piece.extend(elements.iter().flat_map(|x| x.to_le_bytes()));
        let before = if faults::on(Fault::ChecksumOfLastPiece) { 0 } else { crc };
        crc = crc32c::crc32c_append(before, &piece);
        to.write(&piece)?;
    }
    Ok(crc)
}

/// Compares the tensors of `file` with those of a model before any tensor is read: `got` must contain exactly the
/// names of `want`, each with its shape.
///
/// # Errors
/// [`CheckpointError::MissingTensor`], [`CheckpointError::Shape`], [`CheckpointError::UnexpectedTensor`].
pub fn require_shapes<'a>(
    file: &Path,
    want: &[(String, Vec<usize>)],
    got: impl Iterator<Item = (&'a str, &'a [usize])> + Clone,
) -> Result<()> {
    let mut left: HashMap<&str, &[usize]> = got.clone().collect();
    for (name, shape) in want {
        let (file, tensor) = (file.to_owned(), name.clone());
        match left.remove(name.as_str()) {
            None => return Err(CheckpointError::MissingTensor { file, tensor }),
            Some(got) if got != shape => {
                let (want, got) = (shape.clone(), got.to_vec());
                return Err(CheckpointError::Shape { file, tensor, want, got });
            }
            Some(_) => {}
        }
    }
    match got.map(|(name, _)| name).find(|name| left.contains_key(name)) {
        Some(name) => Err(CheckpointError::UnexpectedTensor { file: file.into(), tensor: name.into() }),
        None => Ok(()),
    }
}
