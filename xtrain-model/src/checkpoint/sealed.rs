//! A single file that verifies itself: a safetensors file whose header has a manifest with the checksum of each tensor.
//!
//! The key `xtrain` of `__metadata__` is the JSON text of the manifest: the format version, the kind of the file, its
//! content besides the tensors, and the name, type, shape and checksum of each tensor, under a checksum of its own. The
//! header of a valid file is a function of its manifest, so that no byte of it can change.
use std::collections::HashSet;
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo as Written};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::Piece;

use super::checksum::{ChecksummedReader, ChecksummedWriter, hex};
use super::dir_ops::{rename, sync_dir};
use super::error::{CheckpointError, Result};
use super::fs::{FileSystem, Kind};
use super::header::{self, MAX_DIMS, MAX_NAME, MAX_TENSORS, TensorInfo};
use super::json;
use super::load::open;
use super::read_ahead::PIECE;
use super::tensors::{self, NewSink, NonFinite, TensorSink};
use crate::durable;
use crate::quant::Quant;
use crate::temporary::temporary_path;

const VERSION: u32 = 1;

/// A tensor of a file to be saved: f32 or bf16, row-major.
#[derive(Debug, Clone)]
pub struct SealedTensor<'a> {
    /// The name.
    pub name: String,
    /// The dimensions, none of them zero.
    pub shape: Vec<usize>,
    /// The elements; their number is the product of `shape`.
    pub data: Piece<'a>,
}

/// The manifest in the form of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SealedManifest<C> {
    pub(super) format_version: u32,
    pub(super) kind: String,
    pub(super) content: C,
    /// The tensors in the order of their data.
    pub(super) tensors: Vec<SealedRecord>,
    /// CRC-32C of the manifest's text with zero in place of this checksum.
    #[serde(with = "hex")]
    pub(super) checksum: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SealedRecord {
    pub(super) name: String,
    /// F32 or BF16.
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    /// The checksum of the tensor's bytes.
    #[serde(with = "hex")]
    pub(super) crc32c: u32,
}

impl SealedRecord {
    /// The tensor, if its type, name and shape are within the limits.
    fn info(&self) -> Option<TensorInfo> {
        let dtype = [Quant::F32, Quant::BF16].into_iter().find(|quant| quant.to_string() == self.dtype)?;
        let dims = 1..=MAX_DIMS;
        let plain = dims.contains(&self.shape.len()) && !self.shape.contains(&0);
        let named = self.name.len() <= MAX_NAME && self.name != "__metadata__";
        let info = TensorInfo { name: self.name.clone(), dtype, shape: self.shape.clone() };
        Some(info).filter(|_| plain && named)
    }
}

/// The number of bytes of a tensor. `None`: more than 64 bits.
fn bytes_of(info: &TensorInfo) -> Option<usize> {
    info.shape.iter().try_fold(info.dtype.block().bytes, |product, &dim| product.checked_mul(dim))
}

impl<C: Serialize> SealedManifest<C> {
    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers always serialize")
    }

    /// Sets the checksum.
    pub(super) fn seal(&mut self) {
        self.checksum = 0;
        self.checksum = crc32c::crc32c(self.text().as_bytes());
    }

    /// The header of the file with these `tensors`, whose names differ.
    fn header(&self, tensors: &[TensorInfo]) -> Result<Vec<u8>> {
        let mut end = 0;
        let entry = |info: &TensorInfo| {
            let begin = end;
            end += info.elements() * info.dtype.block().bytes;
            let dtype = match info.dtype {
                Quant::BF16 => safetensors::Dtype::BF16,
                _ => safetensors::Dtype::F32,
            };
            (info.name.clone(), Written { dtype, shape: info.shape.clone(), data_offsets: (begin, end) })
        };
        let entries = tensors.iter().map(entry).collect();
        let metadata = Metadata::new(Some([("xtrain".to_owned(), self.text())].into()), entries)
            .expect("offsets ascend without gaps, and shapes fit the data");
        header::framed(&metadata)
    }
}

/// Saves `content` and `tensors` in the file `path`, which appears, or is replaced, when it is complete and durable.
/// `kind` says what the file is for.
///
/// # Errors
/// [`CheckpointError::Io`], [`CheckpointError::NotAFile`] if `path` is no regular file,
/// [`CheckpointError::Argument`] for a tensor or a header beyond the limits.
pub fn save_sealed<C: Serialize>(
    fs: &dyn FileSystem,
    path: &Path,
    (kind, content): (&str, &C),
    tensors: &[SealedTensor<'_>],
) -> Result<()> {
    if !matches!(fs.kind(path).map_err(CheckpointError::io("inspect", path))?, Kind::File | Kind::Missing) {
        return Err(CheckpointError::NotAFile { path: path.into() });
    }
    let records = tensors.iter().map(record).collect();
    let mut manifest = SealedManifest {
        format_version: VERSION,
        kind: kind.to_owned(),
        content,
        tensors: records,
        checksum: 0,
    };
    manifest.seal();
    let infos = checked_infos(path, &manifest.tensors)?;
    let header = manifest.header(&infos)?;
    let temporary = temporary_path(path);
    let file = fs.create(&temporary).map_err(CheckpointError::io("create", &temporary))?;
    let mut file = ChecksummedWriter { file, length: 0, crc: 0 };
    let written = file.write(&header).and_then(|()| {
        tensors.iter().try_for_each(|tensor| each_piece(tensor.data, |bytes| file.write(bytes)))?;
        file.file.sync()
    });
    let written = written.map_err(CheckpointError::io("write", &temporary));
    if let Err(error) = written.and_then(|()| rename(fs, &temporary, path)) {
        // the first error is the one to report
        let _ = fs.remove_file(&temporary);
        return Err(error);
    }
    sync_dir(fs, durable::parent(path))
}

fn record(tensor: &SealedTensor<'_>) -> SealedRecord {
    let mut crc32c = 0;
    let summed: Result<(), ()> = each_piece(tensor.data, |bytes| {
        crc32c = crc32c::crc32c_append(crc32c, bytes);
        Ok(())
    });
    let dtype = match (tensor.data, summed) {
        (Piece::BF16(_), _) => Quant::BF16,
        _ => Quant::F32,
    };
    SealedRecord { name: tensor.name.clone(), dtype: dtype.to_string(), shape: tensor.shape.clone(), crc32c }
}

/// Passes the little-endian bytes of `data` to `take`, in pieces.
fn each_piece<E>(data: Piece<'_>, mut take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let mut bytes = Vec::new();
    match data {
        Piece::F32(values) => values.chunks(PIECE / 4).try_for_each(|values| {
            bytes.clear();
            bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
            take(&bytes)
        }),
        Piece::BF16(values) => values.chunks(PIECE / 2).try_for_each(|values| {
            bytes.clear();
            bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
            take(&bytes)
        }),
        Piece::Blocks(..) => Ok(()),
    }
}

/// Checks what a reader needs of a file: the program's version of the format, its kind, its content, and the tensors.
pub type SealedCheck<'a, C> = &'a dyn Fn(&C, &[TensorInfo]) -> Result<()>;

/// Loads a file of [`save_sealed`] and verifies every byte. `check` accepts or rejects it before a tensor is read;
/// `begin` creates the sink of each tensor.
///
/// # Errors
/// [`CheckpointError`], naming the file and, where one is involved, the tensor; those of `check`.
pub fn load_sealed<C: Serialize + DeserializeOwned, T: TensorSink>(
    fs: &dyn FileSystem,
    path: &Path,
    kind: &str,
    check: SealedCheck<'_, C>,
    begin: NewSink<'_, T>,
) -> Result<(C, Vec<T>)> {
    let mut file = open(fs, path, "expected a file that xtrain has saved")?;
    read(path, &mut ChecksummedReader::new(&mut *file), kind, check, begin)
}

pub(super) fn read<C: Serialize + DeserializeOwned, T: TensorSink>(
    path: &Path,
    from: &mut ChecksummedReader<'_>,
    kind: &str,
    check: SealedCheck<'_, C>,
    begin: NewSink<'_, T>,
) -> Result<(C, Vec<T>)> {
    let text = header::read_text(path, from)?;
    let manifest: SealedManifest<C> = decode(path, &text, kind)?;
    let infos = checked_infos(path, &manifest.tensors)?;
    let length = infos.iter().try_fold(8 + text.len(), |sum, info| sum.checked_add(bytes_of(info)?));
    let (want, got) = (length.unwrap_or(usize::MAX) as u64, from.file.length());
    if want != got {
        let what = "header and data of all tensors together";
        return Err(CheckpointError::Length { file: path.into(), what, want, got });
    }
    if manifest.header(&infos)?[8..] != text {
        let detail = "its header differs from its manifest: the file is damaged".into();
        return Err(CheckpointError::Malformed { file: path.into(), detail, source: None });
    }
    check(&manifest.content, &infos)?;
    let mut sinks = Vec::with_capacity(infos.len());
    for (info, record) in infos.iter().zip(&manifest.tensors) {
        let mut sink = begin(&info.name, &info.shape);
        let (want, got) = (record.crc32c, tensors::read(path, info, NonFinite::Allow, from, &mut sink)?.crc);
        if want != got && !faults::on(Fault::TensorChecksumNotCompared) {
            let (file, tensor) = (path.into(), Some(info.name.clone()));
            return Err(CheckpointError::Checksum { file, tensor, want, got });
        }
        sinks.push(sink);
    }
    Ok((manifest.content, sinks))
}

/// Decodes the manifest in the text of a header. The version is decoded first, independently of the other fields.
fn decode<C: Serialize + DeserializeOwned>(
    path: &Path,
    text: &[u8],
    kind: &str,
) -> Result<SealedManifest<C>> {
    #[derive(Deserialize)]
    struct Described {
        #[serde(rename = "__metadata__", default)]
        metadata: Keys,
    }
    #[derive(Default, Deserialize)]
    struct Keys {
        xtrain: Option<String>,
    }
    #[derive(Deserialize)]
    struct Version {
        format_version: u32,
        kind: String,
    }
    let Described { metadata: Keys { xtrain } } = json::decode(path, text)?;
    let Some(text) = xtrain else {
        let detail =
            "expected a file that xtrain has saved, found a safetensors file without a manifest".into();
        return Err(CheckpointError::Malformed { file: path.into(), detail, source: None });
    };
    let found: Version = json::decode(path, text.as_bytes())?;
    if found.format_version != VERSION {
        let (want, got) = (VERSION, found.format_version);
        return Err(CheckpointError::Version { file: path.into(), want, got });
    }
    if found.kind != kind {
        return Err(CheckpointError::field(path, "kind", kind, found.kind));
    }
    let mut manifest: SealedManifest<C> = json::decode(path, text.as_bytes())?;
    let want = manifest.checksum;
    manifest.seal();
    if manifest.checksum != want {
        let got = manifest.checksum;
        return Err(CheckpointError::Checksum { file: path.into(), tensor: None, want, got });
    }
    Ok(manifest)
}

/// The tensors of a manifest, if each is within the limits and has a name of its own.
fn checked_infos(path: &Path, records: &[SealedRecord]) -> Result<Vec<TensorInfo>> {
    if records.len() > MAX_TENSORS {
        let (what, max, got) = ("tensors", MAX_TENSORS as u64, records.len() as u64);
        return Err(CheckpointError::Limit { file: path.into(), what, max, got });
    }
    let mut names = HashSet::with_capacity(records.len());
    let check = |record: &SealedRecord| {
        let file = || path.to_owned();
        if !names.insert(record.name.clone()) {
            return Err(CheckpointError::Duplicate { file: file(), name: record.name.clone() });
        }
        record.info().filter(|info| bytes_of(info).is_some()).ok_or_else(|| CheckpointError::Entry {
            file: file(),
            tensor: record.name.chars().take(MAX_NAME).collect(),
            want: format!("F32 or BF16 with 1 to {MAX_DIMS} dimensions, none of them zero"),
            got: format!("{} of shape {:?}", record.dtype, record.shape),
        })
    };
    records.iter().map(check).collect()
}
