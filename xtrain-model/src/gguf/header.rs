//! The header of a GGUF file. Untrusted input: every count, length and offset is checked before use.
use std::collections::HashSet;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use xtrain_tensor::faults::{self, Fault};

use super::metadata::{Metadata, Value};
use crate::checkpoint::{CheckpointError, NamedTensor, PIECE, ReadBuffer, Result, TensorSink};
use crate::quant::{BlockSize, Quant};

pub(super) const VERSION: u32 = 3;
/// The default alignment of tensor offsets.
pub(super) const ALIGNMENT: u64 = 32;
/// The metadata key that overrides the alignment.
const ALIGNMENT_KEY: &str = "general.alignment";

const MAX_VALUES: u64 = 10_000;
/// Maximum number of elements in all lists together.
const MAX_ELEMENTS: u64 = 1 << 20;
/// Maximum length of a key or a tensor name in bytes.
const MAX_NAME: u64 = 512;
/// Maximum length of a string in bytes.
const MAX_TEXT: u64 = 16 << 20;
const MAX_TENSORS: u64 = 100_000;
const MAX_DIMS: u32 = 8;

/// The header entry of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// The element type.
    pub quant: Quant,
    /// The dimensions, rows first: the reverse of their order in the file.
    pub shape: Vec<usize>,
    /// The offset of the data in the file.
    pub offset: u64,
}

/// The header of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// The metadata.
    pub metadata: Metadata,
    /// The tensors, in the order of the file.
    pub tensors: Vec<Entry>,
}

/// Opens a regular file and reads its header.
pub(super) fn open(path: &Path) -> Result<(BufReader<File>, Header)> {
    let about = match std::fs::metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Err(CheckpointError::Missing { path: path.into(), what: "a GGUF file" });
        }
        about => about.map_err(CheckpointError::io("inspect", path))?,
    };
    if !about.is_file() {
        return Err(CheckpointError::NotAFile { path: path.into() });
    }
    let mut file = BufReader::new(File::open(path).map_err(CheckpointError::io("open", path))?);
    let header = read_header(path, &mut file, about.len())?;
    Ok((file, header))
}

/// Reads the header from `from`, the `length` bytes of `file`.
///
/// # Errors
/// [`CheckpointError`] for a header that contradicts itself, the file's length or the limits.
pub fn read_header(file: &Path, from: impl Read, length: u64) -> Result<Header> {
    let mut from = Source { file, from, at: 0, length, elements: 0 };
    let magic = from.bytes(4, "the header ends before the magic")?;
    if magic != b"GGUF" {
        let got = format!("{:?}", String::from_utf8_lossy(&magic));
        return Err(from.key("magic", "GGUF", got));
    }
    let version = from.u32()?;
    // version 2 has the same layout
    if !(2..=VERSION).contains(&version) {
        return Err(CheckpointError::Version { file: file.into(), want: VERSION, got: version });
    }
    let (tensors, values) = (from.u64()?, from.u64()?);
    from.limit("tensors", MAX_TENSORS, tensors)?;
    from.limit("metadata values", MAX_VALUES, values)?;
    let mut metadata = Metadata { file: file.into(), values: Vec::new() };
    let mut names = HashSet::new();
    for _ in 0..values {
        let key = from.string(MAX_NAME)?;
        let value = from.value(&key)?;
        if !names.insert(key.clone()) {
            return Err(CheckpointError::Duplicate { file: file.into(), name: key });
        }
        metadata.values.push((key, value));
    }
    let alignment = metadata.size(ALIGNMENT_KEY)?.map_or(ALIGNMENT, |n| n as u64);
    if !alignment.is_power_of_two() || !(8..=1 << 16).contains(&alignment) {
        return Err(from.key(ALIGNMENT_KEY, "a power of two from 8 to 65536", alignment));
    }
    let mut entries = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..tensors {
        let entry = from.entry(alignment)?;
        if !names.insert(entry.name.clone()) {
            return Err(CheckpointError::Duplicate { file: file.into(), name: entry.name });
        }
        entries.push(entry);
    }
    let aligned = if faults::on(Fault::GgufAlignmentIgnored) { ALIGNMENT } else { alignment };
    let start = from.at.next_multiple_of(aligned);
    resolve_offsets(file, &mut entries, start, length)?;
    Ok(Header { metadata, tensors: entries })
}

/// Converts offsets within the data section to offsets within the file. Rejects data that overlaps or exceeds the
/// file.
fn resolve_offsets(file: &Path, tensors: &mut [Entry], start: u64, length: u64) -> Result<()> {
    let mut spans = Vec::with_capacity(tensors.len());
    for entry in tensors {
        let bytes = entry.bytes();
        let end = start.checked_add(entry.offset).and_then(|at| at.checked_add(bytes));
        if end.is_none_or(|end| end > length) {
            return Err(CheckpointError::Entry {
                file: file.into(),
                tensor: entry.name.clone(),
                want: format!("{bytes} bytes of data at offset {}", start.saturating_add(entry.offset)),
                got: format!("a file of {length} bytes"),
            });
        }
        entry.offset += start;
        spans.push((entry.offset, bytes, &entry.name));
    }
    spans.sort_unstable();
    for pair in spans.windows(2) {
        let ((at, bytes, before), (next, _, name)) = (pair[0], pair[1]);
        if at + bytes > next {
            return Err(CheckpointError::Entry {
                file: file.into(),
                tensor: name.clone(),
                want: format!("data from offset {}, where {before} ends", at + bytes),
                got: format!("data from offset {next}"),
            });
        }
    }
    Ok(())
}

impl Entry {
    /// The size of the data in bytes. The reader has checked that it fits 64 bits.
    fn bytes(&self) -> u64 {
        let BlockSize { elements, bytes } = self.quant.block();
        self.shape.iter().map(|&n| n as u64).product::<u64>() / elements as u64 * bytes as u64
    }

    /// Reads the elements and widens them to f32.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn read(&self, file: &Path, from: &mut (impl Read + Seek + Send)) -> Result<NamedTensor> {
        let mut tensor = NamedTensor::begin(&self.name, &self.shape);
        self.read_into(file, from, &mut tensor)?;
        Ok(tensor)
    }

    /// Reads the elements, one piece at a time.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn read_into(
        &self,
        file: &Path,
        from: &mut (impl Read + Seek + Send),
        to: &mut dyn TensorSink,
    ) -> Result<()> {
        from.seek(SeekFrom::Start(self.offset)).map_err(CheckpointError::io("seek in", file))?;
        let read = |bytes: &mut [u8]| from.read_exact(bytes);
        ReadBuffer::each(self.quant, PIECE, self.bytes() as usize, read, |piece| to.push(piece))
            .map_err(CheckpointError::io("read", file))
    }
}

/// Reads a file sequentially, never beyond its end.
struct Source<'a, R> {
    file: &'a Path,
    from: R,
    at: u64,
    length: u64,
    /// Number of list elements so far.
    elements: u64,
}

impl<R: Read> Source<'_, R> {
    fn key(&self, key: &str, want: &str, got: impl Display) -> CheckpointError {
        CheckpointError::field(self.file, key, format!("{want} before byte {}", self.at), got)
    }

    fn limit(&self, what: &'static str, max: u64, got: u64) -> Result<()> {
        if got > max {
            return Err(CheckpointError::Limit { file: self.file.into(), what, max, got });
        }
        Ok(())
    }

    fn bytes(&mut self, n: u64, what: &'static str) -> Result<Vec<u8>> {
        if n > self.length - self.at {
            let (file, want) = (self.file.into(), self.at.saturating_add(n));
            return Err(CheckpointError::Length { file, what, want, got: self.length });
        }
        let mut bytes = vec![0; n as usize];
        self.from.read_exact(&mut bytes).map_err(CheckpointError::io("read", self.file))?;
        self.at += n;
        Ok(bytes)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.bytes(N as u64, "the header is truncated")?;
        Ok(bytes.try_into().expect("`bytes` returns the requested number of bytes"))
    }

    fn u32(&mut self) -> Result<u32> {
        self.number().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.number().map(u64::from_le_bytes)
    }

    fn string(&mut self, max: u64) -> Result<String> {
        let length = self.u64()?;
        if length <= self.length - self.at {
            self.limit("bytes of a string", max, length)?;
        }
        let bytes = self.bytes(length, "a string in the header is truncated")?;
        String::from_utf8(bytes).map_err(|error| self.key("a string", "UTF-8", error))
    }

    /// Reads a type and a value of it, possibly a list.
    fn value(&mut self, key: &str) -> Result<Value> {
        match self.u32()? {
            9 => {
                let (kind, count) = (self.u32()?, self.u64()?);
                self.list(key, kind, count)
            }
            kind => self.scalar(key, kind),
        }
    }

    fn scalar(&mut self, key: &str, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Int(self.number().map(u8::from_le_bytes)?.into()),
            1 => Value::Int(self.number().map(i8::from_le_bytes)?.into()),
            2 => Value::Int(self.number().map(u16::from_le_bytes)?.into()),
            3 => Value::Int(self.number().map(i16::from_le_bytes)?.into()),
            4 => Value::Int(self.u32()?.into()),
            5 => Value::Int(self.number().map(i32::from_le_bytes)?.into()),
            6 => Value::Float(self.number().map(f32::from_le_bytes)?.into()),
            7 => match self.number::<1>()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(self.key(key, "true or false", other)),
            },
            8 => Value::String(self.string(MAX_TEXT)?),
            10 => {
                let n = self.u64()?;
                Value::Int(i64::try_from(n).map_err(|_| self.key(key, "below 2^63", n))?)
            }
            11 => Value::Int(self.number().map(i64::from_le_bytes)?),
            12 => Value::Float(self.number().map(f64::from_le_bytes)?),
            other => return Err(self.key(key, "a type from 0 to 12", format!("type {other}"))),
        })
    }

    fn list(&mut self, key: &str, kind: u32, count: u64) -> Result<Value> {
        let min_bytes = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            other => {
                return Err(self.key(key, "a list of numbers or strings", format!("a list of type {other}")));
            }
        };
        let what = "a list in the header is truncated";
        if count.checked_mul(min_bytes).is_none_or(|bytes| bytes > self.length - self.at) {
            let want = self.at.saturating_add(count.saturating_mul(min_bytes));
            return Err(CheckpointError::Length { file: self.file.into(), what, want, got: self.length });
        }
        self.elements = self.elements.saturating_add(count);
        self.limit("elements of all lists", MAX_ELEMENTS, self.elements)?;
        let (mut ints, mut floats, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..count {
            match self.scalar(key, kind)? {
                Value::Int(n) => ints.push(n),
                Value::Bool(b) => ints.push(b.into()),
                Value::Float(x) => floats.push(x),
                Value::String(text) => texts.push(text),
                Value::Ints(_) | Value::Floats(_) | Value::Strings(_) => {}
            }
        }
        Ok(match kind {
            8 => Value::Strings(texts),
            6 | 12 => Value::Floats(floats),
            _ => Value::Ints(ints),
        })
    }

    /// Reads one tensor entry. Its offset is relative to the start of the data section.
    fn entry(&mut self, alignment: u64) -> Result<Entry> {
        let (name, file) = (self.string(MAX_NAME)?, self.file);
        let refuse = |want: String, got: String| {
            Err(CheckpointError::Entry { file: file.into(), tensor: name.clone(), want, got })
        };
        let dims = self.u32()?;
        if dims == 0 || dims > MAX_DIMS {
            return refuse(format!("1 to {MAX_DIMS} dimensions"), dims.to_string());
        }
        let shape = (0..dims).map(|_| self.u64()).collect::<Result<Vec<_>>>()?;
        let (number, offset) = (self.u32()?, self.u64()?);
        let quant = match Quant::of(number) {
            Ok(quant) => quant,
            Err(name) => return refuse(Quant::names(), name),
        };
        if shape.contains(&0) {
            return refuse("no dimension of zero".into(), format!("shape {shape:?}"));
        }
        // 2^56: with four bytes per element, no sum of offsets overflows 64 bits
        let elements = shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim)).filter(|&n| n < 1 << 56);
        // with 32-bit addresses, a larger dimension cannot be stored
        let sizes: Option<Vec<usize>> = shape.iter().rev().map(|&dim| usize::try_from(dim).ok()).collect();
        let (Some(_), Some(sizes)) = (elements, sizes) else {
            return refuse("fewer than 2^56 elements".into(), format!("shape {shape:?}"));
        };
        let block = quant.block().elements as u64;
        if shape[0] % block != 0 {
            return refuse(format!("rows of whole blocks of {block}"), format!("shape {shape:?}"));
        }
        if offset % alignment != 0 {
            return refuse(format!("an offset that is a multiple of {alignment}"), offset.to_string());
        }
        Ok(Entry { name, quant, shape: sizes, offset })
    }
}
