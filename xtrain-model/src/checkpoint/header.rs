//! The header of a safetensors file. Untrusted input: every length and offset is checked before use.
use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo as Written};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::checksum::ChecksummedReader;
use super::error::{CheckpointError, Result};
use super::json;
use crate::quant::Quant;

/// Maximum size of a header in bytes.
const MAX_HEADER: u64 = 16 << 20;
pub(super) const MAX_TENSORS: usize = 100_000;
pub(super) const MAX_DIMS: usize = 8;
/// Maximum length of a tensor's name in bytes.
pub(super) const MAX_NAME: usize = 512;

/// A named f32 tensor to be saved, row-major.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// The name; for model tensors, the one used in Hugging Face checkpoints.
    pub name: &'a str,
    /// The dimensions, none of them zero.
    pub shape: &'a [usize],
    /// The elements; their number is the product of `shape`.
    pub data: &'a [f32],
}

/// The header entry of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name.
    pub name: String,
    /// The element type in the file: F32, BF16 or F16, which widen to f32 without rounding.
    pub dtype: Quant,
    /// The dimensions: at most eight, none zero.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The name and shape of each of `tensors`, for [`super::require_shapes`].
    pub fn shapes(tensors: &[TensorInfo]) -> impl Iterator<Item = (&str, &[usize])> + Clone {
        tensors.iter().map(|info| (&*info.name, &*info.shape))
    }
}

/// One entry in the form of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// All entries in the order of the text, including repeated names. Entries beyond the limit are only counted.
struct Entries {
    entries: Vec<(String, Entry)>,
    count: u64,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Entries, D::Error> {
        struct Walk;
        impl<'de> Visitor<'de> for Walk {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut found = Entries { entries: Vec::new(), count: 0 };
                let mut described = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        if std::mem::replace(&mut described, true) {
                            return Err(A::Error::custom("__metadata__ occurs twice"));
                        }
                        map.next_value::<std::collections::HashMap<String, String>>()?;
                        continue;
                    }
                    found.count += 1;
                    if found.entries.len() < MAX_TENSORS {
                        found.entries.push((name, map.next_value()?));
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(found)
            }
        }
        from.deserialize_map(Walk)
    }
}

/// Reads the header of `file` from its start. Returns the tensors in the order of their data, which follows the
/// header without gaps to the end of the file. Afterwards `from` is at the data of the first tensor. Rejects a header
/// that contradicts itself, the file's length or the limits. Allocates nothing larger than the header before the
/// whole header is checked.
pub(super) fn read(file: &Path, from: &mut ChecksummedReader<'_>) -> Result<Vec<TensorInfo>> {
    let text = read_text(file, from)?;
    let limit = |what, max, got| CheckpointError::Limit { file: file.into(), what, max, got };
    let Entries { entries, count } = json::decode(file, &text)?;
    if count > MAX_TENSORS as u64 {
        return Err(limit("tensors", MAX_TENSORS as u64, count));
    }
    check_names(file, &entries)?;
    check_data(file, entries, from.file.length() - 8 - text.len() as u64)
}

/// Reads the text of the header from the start of `file`. Rejects a length above the limit or beyond the file.
pub(super) fn read_text(file: &Path, from: &mut ChecksummedReader<'_>) -> Result<Vec<u8>> {
    let length = from.file.length();
    let too_short = |what, want| CheckpointError::Length { file: file.into(), what, want, got: length };
    if length < 8 {
        return Err(too_short("length prefix of the header", 8));
    }
    let mut prefix = [0; 8];
    from.read(&mut prefix).map_err(CheckpointError::io("read", file))?;
    let header = u64::from_le_bytes(prefix);
    if header > MAX_HEADER {
        let (what, max) = ("length of the header in the first 8 bytes of a safetensors file", MAX_HEADER);
        return Err(CheckpointError::Limit { file: file.into(), what, max, got: header });
    }
    if header > length - 8 {
        return Err(too_short("end of the header", 8 + header));
    }
    let mut text = vec![0; header as usize];
    from.read(&mut text).map_err(CheckpointError::io("read", file))?;
    Ok(text)
}

fn check_names(file: &Path, entries: &[(String, Entry)]) -> Result<()> {
    let mut names = HashSet::with_capacity(entries.len());
    for (name, _) in entries {
        if name.len() > MAX_NAME {
            let (what, max, got) = ("bytes of a tensor's name", MAX_NAME as u64, name.len() as u64);
            return Err(CheckpointError::Limit { file: file.into(), what, max, got });
        }
        if !names.insert(name) {
            return Err(CheckpointError::Duplicate { file: file.into(), name: name.clone() });
        }
    }
    Ok(())
}

/// Checks every entry, then that all entries together cover the `length` bytes of data.
fn check_data(file: &Path, entries: Vec<(String, Entry)>, length: u64) -> Result<Vec<TensorInfo>> {
    let check =
        |(name, entry): (String, Entry)| Ok((entry.data_offsets, check_entry(file, name, entry, length)?));
    let mut found = entries.into_iter().map(check).collect::<Result<Vec<_>>>()?;
    found.sort_by_key(|((begin, _), _)| *begin);
    let (mut covered, mut before) = (0, "the header");
    for ((begin, end), info) in &found {
        if *begin != covered {
            return Err(CheckpointError::Entry {
                file: file.into(),
                tensor: info.name.clone(),
                want: format!("data from offset {covered}, where {before} ends"),
                got: format!("data from offset {begin}"),
            });
        }
        (covered, before) = (*end, &info.name);
    }
    if covered != length {
        let what = "data of all tensors together";
        return Err(CheckpointError::Length { file: file.into(), what, want: covered, got: length });
    }
    Ok(found.into_iter().map(|(_, info)| info).collect())
}

/// Checks one entry: its type, its shape, and that its offsets enclose the right number of bytes within the data.
fn check_entry(file: &Path, name: String, entry: Entry, length: u64) -> Result<TensorInfo> {
    let Entry { dtype, shape, data_offsets: (begin, end) } = entry;
    let refuse = |want: String, got: String| {
        Err(CheckpointError::Entry { file: file.into(), tensor: name.clone(), want, got })
    };
    let supported =
        [Quant::F32, Quant::BF16, Quant::F16].into_iter().find(|quant| quant.to_string() == dtype);
    let Some(dtype) = supported else { return refuse("F32, BF16 or F16".into(), dtype) };
    if shape.len() > MAX_DIMS {
        return refuse(format!("at most {MAX_DIMS} dimensions"), format!("{}", shape.len()));
    }
    if shape.contains(&0) {
        return refuse("no dimension of zero".into(), format!("shape {shape:?}"));
    }
    let width = dtype.block().bytes as u64;
    let bytes = shape.iter().try_fold(width, |product, &dim| product.checked_mul(dim));
    let Some(bytes) = bytes else {
        return refuse("a shape whose size fits 64 bits".into(), format!("shape {shape:?}"));
    };
    if begin > end || end - begin != bytes {
        let want = format!("{bytes} bytes for {dtype:?} of shape {shape:?}");
        return refuse(want, format!("offsets {begin} to {end}"));
    }
    if end > length {
        return refuse(format!("{end} bytes of data"), format!("{length}"));
    }
    let shape: Result<Vec<usize>, _> = shape.iter().map(|&dim| usize::try_from(dim)).collect();
    match shape {
        Ok(shape) => Ok(TensorInfo { name, dtype, shape }),
        Err(_) => refuse("dimensions that fit usize".into(), format!("{bytes} bytes")),
    }
}

/// Encodes the header of a file that stores `tensors` in order as `quant` (F32, F16 or BF16): the length prefix and
/// the text padded to a multiple of eight bytes. The tensors have passed the checks of a snapshot. Rejects a header
/// above the limit of the reader, and other types.
pub(crate) fn encode(tensors: &[TensorView<'_>], quant: Quant) -> Result<Vec<u8>> {
    let dtype = match quant {
        Quant::F32 => Dtype::F32,
        Quant::F16 => Dtype::F16,
        Quant::BF16 => Dtype::BF16,
        _ => {
            return Err(CheckpointError::argument("type of a safetensors file", "F32, F16 or BF16", quant));
        }
    };
    let mut end = 0;
    let entry = |tensor: &TensorView<'_>| {
        let begin = end;
        end += quant.block().bytes * tensor.data.len();
        let info = Written { dtype, shape: tensor.shape.to_vec(), data_offsets: (begin, end) };
        (tensor.name.to_owned(), info)
    };
    let entries = tensors.iter().map(entry).collect();
    let metadata = Metadata::new(Some([("format".to_owned(), "pt".to_owned())].into()), entries)
        .expect("offsets ascend without gaps, and shapes fit the data");
    framed(&metadata)
}

/// A header in the form of the file: the length prefix and the text, padded to a multiple of eight bytes. Rejects a
/// header above the limit of the reader.
pub(super) fn framed(metadata: &Metadata) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec(metadata).expect("strings and numbers are JSON");
    text.resize(text.len().next_multiple_of(8), b' ');
    if text.len() as u64 > MAX_HEADER {
        let (want, got) = ("a header of at most 16 MiB", format!("{} bytes", text.len()));
        return Err(CheckpointError::argument("names and shapes of all tensors", want, got));
    }
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    Ok(bytes)
}
