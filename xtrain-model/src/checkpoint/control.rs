//! The control record: the scalars that an exact resume needs in addition to tensors. The only module that uses
//! bincode.
use std::path::Path;

use bincode::config::{Configuration, Fixint, LittleEndian};
use serde::{Deserialize, Serialize};

use super::error::{CheckpointError, Result};

/// The version of the record's layout.
const VERSION: u32 = 1;

/// Maximum number of bytes that decoding may allocate.
const LIMIT: usize = 1 << 20;

/// A position in a stream that is a pure function of its seed, such as the data order or random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cursor {
    /// The seed of the stream.
    pub seed: u64,
    /// The index of the next element.
    pub position: u64,
}

/// The scalar state of a training run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Control {
    /// Number of optimizer steps completed.
    pub step: u64,
    /// Number of target tokens trained on.
    pub tokens_seen: u64,
    /// The position in the training data.
    pub data: Cursor,
    /// The position in the random number stream.
    pub random: Cursor,
    /// The running product b1^t, in f64.
    pub beta1_power: f64,
    /// The running product b2^t, in f64.
    pub beta2_power: f64,
    /// The optimizer's name.
    pub optimizer: String,
    /// The names of the optimizer's states. Every optimizer tensor is named `STATE.PARAMETER`.
    pub optimizer_states: Vec<String>,
    /// The lowest validation loss so far.
    pub best_loss: Option<f64>,
    /// The step of the lowest validation loss.
    pub best_step: u64,
}

impl Control {
    /// The first of `tensors` whose name does not start with one of the optimizer's states.
    pub(super) fn unknown_tensor<'a>(&self, tensors: impl Iterator<Item = &'a str>) -> Option<&'a str> {
        let of = |name: &str, state: &str| name.strip_prefix(state).is_some_and(|rest| rest.starts_with('.'));
        tensors.into_iter().find(|name| !self.optimizer_states.iter().any(|state| of(name, state)))
    }
}

/// Bytes whose length and checksum match the manifest.
pub(super) struct Verified(Vec<u8>);

impl Verified {
    /// Checks `bytes` against the expected length and checksum.
    pub(super) fn check(file: &Path, bytes: Vec<u8>, length: u64, crc: u32) -> Result<Verified> {
        let (file, got) = (file.into(), bytes.len() as u64);
        if got != length {
            let what = "length in the manifest";
            return Err(CheckpointError::Length { file, what, want: length, got });
        }
        match crc32c::crc32c(&bytes) {
            got if got == crc => Ok(Verified(bytes)),
            got => Err(CheckpointError::Checksum { file, tensor: None, want: crc, got }),
        }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Fixed-width little-endian integers, with the allocation limit.
fn layout() -> Configuration<LittleEndian, Fixint, bincode::config::Limit<LIMIT>> {
    bincode::config::standard().with_fixed_int_encoding().with_limit::<LIMIT>()
}

/// Encodes a record. Fails with [`CheckpointError::Argument`] if it exceeds the limit of the decoder.
pub(super) fn encode(control: &Control) -> Result<Vec<u8>> {
    let bytes = bincode::serde::encode_to_vec((VERSION, control), layout());
    bytes.ok().filter(|bytes| bytes.len() < LIMIT).ok_or_else(|| {
        let got = format!("{} optimizer states", control.optimizer_states.len());
        CheckpointError::argument("control record", "less than 1 MiB", got)
    })
}

/// Decodes a record from verified bytes. Fails with [`CheckpointError::Version`] for an unsupported layout, with
/// [`CheckpointError::Malformed`] for bytes that are not a record or continue after it.
pub(super) fn decode(file: &Path, Verified(bytes): &Verified) -> Result<Control> {
    let refuse = |detail: &str, source: bincode::error::DecodeError| CheckpointError::Malformed {
        file: file.into(),
        detail: format!("{detail}: {source}"),
        source: Some(Box::new(source)),
    };
    let (version, _) = bincode::serde::decode_from_slice::<u32, _>(bytes, layout())
        .map_err(|error| refuse("no format version", error))?;
    if version != VERSION {
        return Err(CheckpointError::Version { file: file.into(), want: VERSION, got: version });
    }
    let ((_, control), consumed) = bincode::serde::decode_from_slice::<(u32, Control), _>(bytes, layout())
        .map_err(|error| refuse("not a control record", error))?;
    if consumed != bytes.len() {
        let detail = format!("expected {consumed} bytes, found {}", bytes.len());
        return Err(CheckpointError::Malformed { file: file.into(), detail, source: None });
    }
    Ok(control)
}
