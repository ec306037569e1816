//! GGUF v3: models of llama.cpp, read and written; architectures `qwen3`, `qwen2` and `llama`.
//!
//! | what | how |
//! |---|---|
//! | types read | F32, F16, BF16, Q8_0, Q4_0, widened to f32; another is refused by its name |
//! | types written | F32, F16, BF16, Q8_0; vectors stay F32, rows that are no whole blocks of 32 become F16 |
//! | `llama` | rows of queries and keys stand in pairs side by side: they are put back |
//! | `rope_freqs.weight` | the divisors of Llama 3's frequencies; the rule is found again where there is one |
//! | tokenizer | a byte-level BPE (`gpt2`), cut as GPT-2, Qwen2 or Llama 3 |
//!
//! A file is untrusted: its header is checked against its length and against the model it describes before
//! any tensor is allocated.
mod config;
mod metadata;
mod names;
mod quant;
mod reader;
#[cfg(test)]
mod tests;
mod tokenizer;
mod writer;

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;

pub use metadata::{Metadata, Value};
pub use quant::Quant;
pub use reader::{Entry, Header, read_header};

use xtrain_tensor::ops::Piece;

use crate::checkpoint::{Begin, CheckpointError, NamedTensor, Sink};
use crate::config::Config;
use crate::error::Error;
use crate::export::ExportSource;
use crate::params::Params;
use crate::store::StoreError;
use crate::tokenizer::Tokenizer;
use config::Arch;
use names::{Heads, gguf_name, interleave, separate};

/// A model as it stands in a file.
#[derive(Debug)]
pub struct Imported<T = NamedTensor> {
    /// Its shape.
    pub config: Config,
    /// Its tensors under our names, in walk order.
    pub tensors: Vec<T>,
    /// Its tokenizer, where the file has one.
    pub tokenizer: Option<Tokenizer>,
    /// The ids that end a text.
    pub eos: Vec<u32>,
}

/// Whether a file begins as GGUF files do.
pub fn recognises(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && &magic == b"GGUF"
}

/// The shape of the model in `path`, held against the file's table of tensors: none of them is read.
///
/// # Errors
/// As [`read`].
pub fn config_of(path: &Path) -> Result<Config, StoreError> {
    let (mut file, length) = reader::open(path)?;
    let header = read_header(path, &mut file, length)?;
    let (cfg, arch) = shape(path, &mut file, &header)?;
    fit(path, &header, (&cfg, arch))?;
    Ok(cfg)
}

fn shape(path: &Path, file: &mut BufReader<File>, header: &Header) -> Result<(Config, Arch), StoreError> {
    let arch = Arch::read(&header.metadata)?;
    let divisors = match config::divisors_of(header, arch) {
        // a head has at most 128 pairs: what is longer is refused as a shape, by `fit`
        Some(entry) if entry.shape.len() == 1 && entry.shape[0] <= 128 => Some(entry.read(path, file)?.data),
        _ => None,
    };
    Ok((config::read(header, arch, divisors)?, arch))
}

/// Reads the model in `path`.
///
/// # Errors
/// [`StoreError`], naming the file, and the key or tensor where one is concerned.
pub fn read(path: &Path) -> Result<Imported, StoreError> {
    read_into(path, &NamedTensor::begin)
}

/// [`read`], but `begin` says what takes each tensor, by our names.
///
/// # Errors
/// As [`read`].
pub fn read_into<T: Sink>(path: &Path, begin: Begin<'_, T>) -> Result<Imported<T>, StoreError> {
    let (mut file, length) = reader::open(path)?;
    let header = read_header(path, &mut file, length)?;
    let (cfg, arch) = shape(path, &mut file, &header)?;
    let wanted = fit(path, &header, (&cfg, arch))?;
    let (tokenizer, eos) = words(&header, &cfg)?;
    let mut tensors = Vec::with_capacity(wanted.len());
    for (name, entry) in wanted {
        let mut tensor = begin(&name, &entry.shape);
        let row = entry.shape.get(1).copied().unwrap_or(1);
        let mut heads = Separate::of(&mut tensor, cfg.head_dim, row);
        let turned = arch == Arch::Llama && Heads::of(&name) != Heads::Others;
        let to: &mut dyn Sink = if turned { &mut heads } else { heads.to };
        let mut finite = Finite { to, elements: 0, first: None };
        entry.read_into(path, &mut file, &mut finite)?;
        if let Some((at, got)) = finite.first {
            let (file, tensor) = (path.into(), entry.name.clone());
            return Err(CheckpointError::NotFinite { file, tensor, at, got }.into());
        }
        tensors.push(tensor);
    }
    Ok(Imported { config: cfg, tensors, tokenizer, eos })
}

/// [`read`] without the tensors: they are held against the file's table alone.
///
/// # Errors
/// As [`read`].
pub fn describe(path: &Path) -> Result<Imported<()>, StoreError> {
    let (mut file, length) = reader::open(path)?;
    let header = read_header(path, &mut file, length)?;
    let (config, arch) = shape(path, &mut file, &header)?;
    fit(path, &header, (&config, arch))?;
    let (tokenizer, eos) = words(&header, &config)?;
    Ok(Imported { config, tensors: Vec::new(), tokenizer, eos })
}

/// The tokenizer, which has no more tokens than the model has rows, and the ids that end a text.
fn words(header: &Header, cfg: &Config) -> Result<(Option<Tokenizer>, Vec<u32>), StoreError> {
    let tokenizer = tokenizer::read(&header.metadata)?;
    if let Some(tokens) = tokenizer.as_ref().map(|t| t.vocab_size()).filter(|&n| n > cfg.vocab) {
        let want = format!("at most {}, as the model has rows", cfg.vocab);
        return Err(header.metadata.bad("tokenizer.ggml.tokens", &want, tokens).into());
    }
    Ok((tokenizer, tokenizer::ends(&header.metadata)?))
}

/// Looks at elements on their way.
struct Finite<'a> {
    to: &'a mut dyn Sink,
    elements: usize,
    /// The first that is not finite, and its place.
    first: Option<(usize, f32)>,
}

impl Sink for Finite<'_> {
    fn push(&mut self, piece: Piece<'_>) {
        if let (None, Some((at, got))) = (self.first, piece.first_non_finite()) {
            self.first = Some((self.elements + at, got));
        }
        self.elements += piece.count();
        self.to.push(piece);
    }
}

/// Puts the rows of heads back, one head at a time.
struct Separate<'a> {
    to: &'a mut dyn Sink,
    head_dim: usize,
    row: usize,
    /// Of the head that is being read.
    head: Vec<f32>,
}

impl<'a> Separate<'a> {
    fn of(to: &'a mut dyn Sink, head_dim: usize, row: usize) -> Separate<'a> {
        Separate { to, head_dim, row, head: Vec::new() }
    }
}

impl Sink for Separate<'_> {
    fn push(&mut self, piece: Piece<'_>) {
        piece.widen(&mut self.head);
        let whole = self.head.len() - self.head.len() % (self.head_dim * self.row);
        if whole > 0 {
            self.to.push(Piece::F32(&separate(&self.head[..whole], self.head_dim, self.row)));
            self.head.drain(..whole);
        }
    }
}

/// The tokenizer of a file alone.
///
/// # Errors
/// As [`read`]; [`CheckpointError::Missing`] for a file without one.
pub fn tokenizer_of(path: &Path) -> Result<Tokenizer, StoreError> {
    let (mut file, length) = reader::open(path)?;
    let header = read_header(path, &mut file, length)?;
    let none = CheckpointError::Missing { path: path.into(), what: "a tokenizer in its metadata" };
    tokenizer::read(&header.metadata)?.ok_or_else(|| none.into())
}

/// The tensors of the file for the parameters of the model, by our names: each is there with its shape, and
/// no other.
fn fit<'h>(
    path: &Path,
    header: &'h Header,
    (cfg, arch): (&Config, Arch),
) -> Result<Vec<(String, &'h Entry)>, StoreError> {
    let mut left: std::collections::HashMap<&str, &Entry> =
        header.tensors.iter().map(|entry| (entry.name.as_str(), entry)).collect();
    let shape = |entry: &Entry, want: Vec<usize>| match entry.shape == want {
        true => Ok(()),
        false => Err(CheckpointError::Shape {
            file: path.into(),
            tensor: entry.name.clone(),
            want,
            got: entry.shape.clone(),
        }),
    };
    let mut wanted = Vec::new();
    for (name, want) in Params::shapes(cfg)? {
        let tensor = gguf_name(&name);
        let Some(entry) = left.remove(tensor.as_str()) else {
            return Err(CheckpointError::MissingTensor { file: path.into(), tensor }.into());
        };
        shape(entry, want)?;
        wanted.push((name, entry));
    }
    if let Some(entry) = config::divisors_of(header, arch) {
        shape(entry, vec![cfg.head_dim / 2])?;
        left.remove(entry.name.as_str());
    }
    match header.tensors.iter().find(|entry| left.contains_key(entry.name.as_str())) {
        Some(entry) => {
            Err(CheckpointError::UnexpectedTensor { file: path.into(), tensor: entry.name.clone() }.into())
        }
        None => Ok(wanted),
    }
}

/// Writes `model` as a GGUF file: matrices as `quant`, vectors in F32.
///
/// # Errors
/// A model or a tokenizer that GGUF has no words for, a weight beyond the range of `quant`, by name; the file
/// system.
pub fn write(
    to: &mut dyn Write,
    subject: &ExportSource<'_>,
    (name, quant): (&str, Quant),
) -> Result<(), StoreError> {
    let ExportSource { model, tokenizer, eos } = *subject;
    let cfg = model.config();
    let arch = Arch::of(cfg)?;
    let text = |text: &str| Value::String(text.to_string());
    let mut values = vec![
        ("general.architecture".to_string(), text(arch.name())),
        ("general.type".to_string(), text("model")),
        ("general.name".to_string(), text(name)),
        ("general.file_type".to_string(), Value::Int(file_type(quant)?)),
        ("general.quantization_version".to_string(), Value::Int(2)),
    ];
    values.extend(config::write(cfg, arch));
    if let Some(tokenizer) = tokenizer {
        values.extend(tokenizer::write(tokenizer, cfg.vocab)?);
    }
    values.extend(tokenizer::write_ends(eos)?);
    let mut tensors: Vec<(String, Vec<usize>, Quant)> = Vec::new();
    let divisors = config::divisors(cfg)?;
    if let Some(divisors) = &divisors {
        tensors.push((config::DIVISORS.into(), vec![divisors.len()], Quant::F32));
    }
    for p in model.params.iter() {
        let shape = p.shape();
        tensors.push((gguf_name(p.name()), shape.to_vec(), quant_of(shape, quant)));
    }
    let io = |e| StoreError::from(CheckpointError::Io { op: "write", path: name.into(), source: e });
    to.write_all(&writer::header(&values, &tensors)).map_err(io)?;
    if let Some(divisors) = &divisors {
        let bytes: Vec<u8> = divisors.iter().flat_map(|x| x.to_le_bytes()).collect();
        writer::data(to, &bytes).map_err(io)?;
    }
    for p in model.params.iter() {
        let host = p.value()?.to_host().map_err(Error::from)?;
        let (shape, data) = (host.shape(), host.data::<f32>().map_err(Error::from)?);
        let turned = match (arch, Heads::of(p.name())) {
            (Arch::Llama, Heads::Queries | Heads::Keys) => {
                interleave(data, cfg.head_dim, shape.get(1).copied().unwrap_or(1))
            }
            _ => data.to_vec(),
        };
        let (quant, mut bytes) = (quant_of(shape, quant), Vec::new());
        if !quant.narrow(&turned, &mut bytes) {
            let (name, want) = (p.name().into(), format!("weights within the range of {quant}"));
            return Err(Error::Parameter { name, want, got: "one beyond it".into() }.into());
        }
        writer::data(to, &bytes).map_err(io)?;
    }
    Ok(())
}

/// The type of a tensor of that shape in a file of `quant`.
fn quant_of(shape: &[usize], quant: Quant) -> Quant {
    match shape {
        [_] => Quant::F32,
        [.., row] if row % quant.block().0 != 0 => Quant::F16,
        _ => quant,
    }
}

/// The number of a type among those of whole files.
fn file_type(quant: Quant) -> Result<i64, Error> {
    match quant {
        Quant::F32 => Ok(0),
        Quant::F16 => Ok(1),
        Quant::Q8_0 => Ok(7),
        Quant::BF16 => Ok(32),
        Quant::Q4_0 => {
            let (field, want) = ("type", "F32, F16, BF16 or Q8_0 of a file that is written");
            Err(Error::Config { field, want, got: quant.to_string() })
        }
    }
}
