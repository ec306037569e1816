//! The elements of tensors on their way to and from a safetensors file, a small piece at a time.
use std::collections::HashMap;
use std::path::Path;

use half::{bf16, f16};

use super::checksum::{Counted, Summed};
use super::error::{CheckpointError, Result};
use super::header::{StoredDtype, TensorInfo};
use super::options::NonFinite;
use super::snapshot::TensorView;

/// Bytes that are converted at a time.
const PIECE: usize = 64 << 10;

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

/// What becomes of a tensor while it is read: it takes pieces of its elements, widened to f32, in their order.
pub trait Sink {
    /// The next elements.
    fn push(&mut self, piece: &[f32]);
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
    fn push(&mut self, piece: &[f32]) {
        self.data.extend_from_slice(piece);
    }
}

/// Nobody takes it.
impl Sink for () {
    fn push(&mut self, _: &[f32]) {}
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
    let mut left = info.elements() * info.dtype.bytes();
    let mut piece = vec![0; PIECE.min(left)];
    let mut elements = Vec::with_capacity(piece.len() / info.dtype.bytes());
    let (mut crc, mut finite, mut before) = (0, Ok(()), 0);
    while left > 0 {
        let bytes = piece.len().min(left);
        let bytes = &mut piece[..bytes];
        crc = from.read_within(bytes, crc).map_err(CheckpointError::io("read", file))?;
        elements.clear();
        widen(bytes, info.dtype, &mut elements);
        if finite.is_ok() && allowed == NonFinite::Refuse {
            finite = check_finite(file, &info.name, (&elements, before));
        }
        to.push(&elements);
        before += elements.len();
        left -= bytes.len();
    }
    from.append(crc, info.elements() * info.dtype.bytes());
    Ok((crc, finite))
}

/// Appends the elements in `bytes`.
fn widen(bytes: &[u8], dtype: StoredDtype, to: &mut Vec<f32>) {
    match dtype {
        StoredDtype::F32 => to.extend(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))),
        StoredDtype::BF16 => to.extend(bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32())),
        StoredDtype::F16 => to.extend(bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32())),
    }
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
fn check_finite(file: &Path, tensor: &str, (piece, before): (&[f32], usize)) -> Result<()> {
    // a search that may stop anywhere is not done in lanes, a conjunction is
    if piece.iter().fold(true, |all, x| all & x.is_finite()) {
        return Ok(());
    }
    let at = piece.iter().position(|x| !x.is_finite()).expect("one of them is not finite");
    let (file, tensor, got) = (file.into(), tensor.into(), piece[at]);
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
