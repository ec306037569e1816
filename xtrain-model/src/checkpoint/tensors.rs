//! The elements of tensors on their way to and from a safetensors file, a small piece at a time.
use std::collections::HashMap;
use std::path::Path;

use half::{bf16, f16};

use super::checksum::{Counted, Summed};
use super::error::{CheckpointError, Result};
use super::header::{StoredDtype, TensorInfo};
use super::load::NonFinite;
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

/// Reads the elements of `info` from where `from` stands; returns them with the checksum of their bytes.
///
/// # Errors
/// [`CheckpointError::Io`] if the file ends early or cannot be read.
pub(super) fn read(file: &Path, info: TensorInfo, from: &mut Summed<'_>) -> Result<(NamedTensor, u32)> {
    let width = info.dtype.bytes();
    let elements = info.elements();
    let mut data = Vec::with_capacity(elements);
    let mut piece = vec![0; PIECE.min(elements * width)];
    let mut crc = 0;
    while data.len() < elements {
        let bytes = piece.len().min((elements - data.len()) * width);
        let bytes = &mut piece[..bytes];
        from.read(bytes).map_err(CheckpointError::io("read", file))?;
        crc = crc32c::crc32c_append(crc, bytes);
        match info.dtype {
            StoredDtype::F32 => data.extend(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))),
            StoredDtype::BF16 => {
                data.extend(bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()))
            }
            StoredDtype::F16 => {
                data.extend(bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()))
            }
        }
    }
    Ok((NamedTensor { name: info.name, shape: info.shape, data }, crc))
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

/// Refuses a tensor with a NaN or an infinity in it, unless they are allowed.
pub(super) fn check_finite(file: &Path, tensor: &NamedTensor, allowed: NonFinite) -> Result<()> {
    let NamedTensor { name, data, .. } = tensor;
    match data.iter().position(|x| !x.is_finite()) {
        Some(at) if allowed == NonFinite::Refuse => {
            Err(CheckpointError::NotFinite { file: file.into(), tensor: name.clone(), at, got: data[at] })
        }
        _ => Ok(()),
    }
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
