//! Reading a model from a GGUF file.
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use xtrain_tensor::ops::{Piece, QuantBlock};

use super::config::{self, Arch};
use super::header::{self, Entry, Header};
use super::names::{gguf_name, is_interleaved, separate};
use super::tokenizer;
use crate::block_quants::BLOCK;
use crate::checkpoint::{CheckpointError, NamedTensor, NewSink, TensorSink, require_shapes};
use crate::config::Config;
use crate::kept_fields::KeptFields;
use crate::params::Params;
use crate::quant::Quant;
use crate::store_error::{StoreError, found};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// A model read from a file.
#[derive(Debug)]
pub struct Imported<T = NamedTensor> {
    /// The config.
    pub config: Config,
    /// The tensors under their Hugging Face names, in walk order.
    pub tensors: Vec<T>,
    /// The tokenizer. `None`: the file contains none that is supported.
    pub tokenizer: Option<Tokenizer>,
    /// Why the tokenizer of the file is not supported.
    pub unsupported_tokenizer: Option<TokenizerError>,
    /// The end-of-text ids.
    pub eos: Vec<u32>,
    /// The ids of the tokens that begin and pad a text.
    pub kept_fields: KeptFields,
}

/// Whether a file starts with the magic of GGUF.
pub fn recognises(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && &magic == b"GGUF"
}

/// The config of the model in `path`, checked against the file's table of tensors. Reads no tensor.
///
/// # Errors
/// As [`read`].
pub fn config_of(path: &Path) -> Result<Config, StoreError> {
    let (mut file, header) = header::open(path)?;
    Ok(read_config(path, &mut file, &header)?.0)
}

/// The names of a model's parameters, each with its tensor in the file.
type Matched<'h> = Vec<(String, &'h Entry)>;

fn read_config<'h>(
    path: &Path,
    file: &mut BufReader<File>,
    header: &'h Header,
) -> Result<(Config, Arch, Matched<'h>), StoreError> {
    let parts = "split.count";
    if let Some(n) = header.metadata.size(parts)?.filter(|&n| n > 1) {
        let want = "one file (llama-gguf-split --merge FIRST_PART FILE joins the parts)";
        return Err(header.metadata.bad(parts, want, n).into());
    }
    let arch = Arch::read(&header.metadata)?;
    let divisors = match config::divisors_of(header, arch) {
        // a head has at most 128 pairs: `match_tensors` rejects the shape of a longer tensor
        Some(entry) if entry.shape.len() == 1 && entry.shape[0] <= 128 => Some(entry.read(path, file)?.data),
        _ => None,
    };
    let cfg = config::read(header, arch, divisors)?;
    let matched = match_tensors(path, header, &cfg, arch)?;
    Ok((cfg, arch, matched))
}

/// Reads the model in `path`. `begin` creates the sink of each tensor.
///
/// # Errors
/// [`StoreError`], naming the file, and the key or tensor where one is concerned.
pub fn read<T: TensorSink>(path: &Path, begin: NewSink<'_, T>) -> Result<Imported<T>, StoreError> {
    let (mut file, header) = header::open(path)?;
    let (cfg, arch, matched) = read_config(path, &mut file, &header)?;
    let (tokenizer, unsupported_tokenizer) = found(read_tokenizer(&header, &cfg))?;
    let eos = tokenizer::eos_ids(&header.metadata)?;
    let mut tensors = Vec::with_capacity(matched.len());
    for (name, entry) in matched {
        let mut tensor = begin(&name, &entry.shape);
        let row = entry.shape.get(1).copied().unwrap_or(1);
        let mut separate = SeparateHeads::new(&mut tensor, cfg.head_dim, row);
        let to: &mut dyn TensorSink = if is_interleaved(arch, &name) { &mut separate } else { separate.to };
        let mut finite = FiniteCheck { to, elements: 0, first: None };
        entry.read_into(path, &mut file, &mut finite)?;
        if let Some((at, got)) = finite.first {
            let (file, tensor) = (path.into(), entry.name.clone());
            return Err(CheckpointError::NotFinite { file, tensor, at, got }.into());
        }
        tensors.push(tensor);
    }
    let kept_fields = tokenizer::kept_fields(&header.metadata)?;
    Ok(Imported { config: cfg, tensors, tokenizer, unsupported_tokenizer, eos, kept_fields })
}

/// The tensors alone, also with elements that are not finite.
pub(crate) fn weights<T: TensorSink>(path: &Path, begin: NewSink<'_, T>) -> Result<Vec<T>, StoreError> {
    let (mut file, header) = header::open(path)?;
    let (_, _, matched) = read_config(path, &mut file, &header)?;
    let mut tensors = Vec::with_capacity(matched.len());
    for (name, entry) in matched {
        let mut tensor = begin(&name, &entry.shape);
        entry.read_into(path, &mut file, &mut tensor)?;
        tensors.push(tensor);
    }
    Ok(tensors)
}

/// [`read`] with the types of the tensors in their place. The config is checked against the file's table of tensors.
///
/// # Errors
/// As [`read`].
pub fn describe(path: &Path) -> Result<Imported<Quant>, StoreError> {
    let (mut file, header) = header::open(path)?;
    let (config, _, matched) = read_config(path, &mut file, &header)?;
    let (tokenizer, unsupported_tokenizer) = found(read_tokenizer(&header, &config))?;
    let eos = tokenizer::eos_ids(&header.metadata)?;
    let kept_fields = tokenizer::kept_fields(&header.metadata)?;
    let tensors = matched.into_iter().map(|(_, entry)| entry.quant).collect();
    Ok(Imported { config, tensors, tokenizer, unsupported_tokenizer, eos, kept_fields })
}

/// The tokenizer, which must not have more tokens than the model.
fn read_tokenizer(header: &Header, cfg: &Config) -> Result<Option<Tokenizer>, StoreError> {
    let tokenizer = tokenizer::read(&header.metadata)?;
    if let Some(tokens) = tokenizer.as_ref().map(Tokenizer::vocab_size).filter(|&n| n > cfg.vocab) {
        let want = format!("at most {}, the vocabulary of the model", cfg.vocab);
        return Err(header.metadata.bad("tokenizer.ggml.tokens", &want, tokens).into());
    }
    Ok(tokenizer)
}

/// Forwards elements and finds the first one that is not finite.
struct FiniteCheck<'a> {
    to: &'a mut dyn TensorSink,
    elements: usize,
    /// The index and value of the first element that is not finite.
    first: Option<(usize, f32)>,
}

impl TensorSink for FiniteCheck<'_> {
    fn push(&mut self, piece: Piece<'_>) {
        if let (None, Some((at, got))) = (self.first, piece.first_non_finite()) {
            self.first = Some((self.elements + at, got));
        }
        self.elements += piece.count();
        self.to.push(piece);
    }
}

/// Restores the row order of heads, one head at a time.
struct SeparateHeads<'a> {
    to: &'a mut dyn TensorSink,
    head_dim: usize,
    row: usize,
    /// The elements of the head that is being read: values, or blocks of quantized values.
    head: Vec<f32>,
    blocks: Vec<QuantBlock>,
}

impl<'a> SeparateHeads<'a> {
    fn new(to: &'a mut dyn TensorSink, head_dim: usize, row: usize) -> SeparateHeads<'a> {
        SeparateHeads { to, head_dim, row, head: Vec::new(), blocks: Vec::new() }
    }
}

/// Removes the whole heads from the start of `pending`. Returns them in the restored order.
fn take_heads<T: Copy>(pending: &mut Vec<T>, head_dim: usize, row: usize) -> Vec<T> {
    let whole = pending.len() - pending.len() % (head_dim * row);
    let heads = separate(&pending[..whole], head_dim, row);
    pending.drain(..whole);
    heads
}

impl TensorSink for SeparateHeads<'_> {
    fn push(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Blocks(format, blocks) if self.row.is_multiple_of(BLOCK) => {
                self.blocks.extend_from_slice(blocks);
                let heads = take_heads(&mut self.blocks, self.head_dim, self.row / BLOCK);
                self.to.push(Piece::Blocks(format, &heads));
            }
            _ => {
                piece.widen(&mut self.head);
                self.to.push(Piece::F32(&take_heads(&mut self.head, self.head_dim, self.row)));
            }
        }
    }
}

/// The tokenizer of a file, with the end-of-text ids of its model.
///
/// # Errors
/// As [`read`]; [`CheckpointError::Missing`] for a file without one.
pub fn tokenizer_of(path: &Path) -> Result<Tokenizer, StoreError> {
    let (_, header) = header::open(path)?;
    let none = CheckpointError::Missing { path: path.into(), what: "a tokenizer in its metadata" };
    let own = tokenizer::read(&header.metadata)?.ok_or(none)?;
    Ok(own.with_eos_ids(&tokenizer::eos_ids(&header.metadata)?))
}

/// Pairs each parameter name of the model with its tensor in the file. The file must contain exactly these tensors,
/// each with its shape.
pub(super) fn match_tensors<'h>(
    path: &Path,
    header: &'h Header,
    cfg: &Config,
    arch: Arch,
) -> Result<Matched<'h>, StoreError> {
    let params = Params::shapes(cfg)?;
    let mut want: Vec<_> = params.iter().map(|(name, shape)| (gguf_name(name), shape.clone())).collect();
    want.extend(config::divisors_of(header, arch).map(|e| (e.name.clone(), vec![cfg.head_dim / 2])));
    require_shapes(path, &want, header.tensors.iter().map(|entry| (&*entry.name, &*entry.shape)))?;
    let entries: HashMap<&str, &Entry> = header.tensors.iter().map(|entry| (&*entry.name, entry)).collect();
    let names = params.into_iter().zip(want);
    Ok(names.map(|((name, _), (tensor, _))| (name, entries[&*tensor])).collect())
}
