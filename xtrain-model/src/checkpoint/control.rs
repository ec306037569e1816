//! The control record: the few scalars that an exact resume needs besides tensors. The only module that
//! knows bincode.
use std::path::Path;

use bincode::config::{Configuration, Fixint, LittleEndian};
use serde::{Deserialize, Serialize};

use super::error::{CheckpointError, Result};

/// The version of the record's layout.
const VERSION: u32 = 1;

/// The most bytes that decoding may claim.
const LIMIT: usize = 1 << 20;

/// A position in a stream that is a pure function of its seed: data order, random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cursor {
    /// The stream.
    pub seed: u64,
    /// The next element.
    pub position: u64,
}

/// Where a run stands, apart from its tensors.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Control {
    /// Optimizer steps done.
    pub step: u64,
    /// Tokens trained on.
    pub tokens_seen: u64,
    /// The next sample.
    pub data: Cursor,
    /// The next random number.
    pub random: Cursor,
    /// The running product b1^t, in f64.
    pub beta1_power: f64,
    /// The running product b2^t, in f64.
    pub beta2_power: f64,
    /// The optimizer's name.
    pub optimizer: String,
    /// The names of its states: every tensor of the optimizer is called `STATE.PARAMETER`.
    pub optimizer_states: Vec<String>,
    /// The lowest validation loss so far.
    pub best_loss: Option<f64>,
    /// The step that had it.
    pub best_step: u64,
}

impl Control {
    /// The first of `tensors` that belongs to none of the optimizer's states.
    pub(super) fn stranger<'a>(&self, tensors: impl Iterator<Item = &'a str>) -> Option<&'a str> {
        let known = |name: &str| {
            let named =
                |state: &String| name.strip_prefix(state.as_str()).is_some_and(|rest| rest.starts_with('.'));
            self.optimizer_states.iter().any(named)
        };
        tensors.into_iter().find(|name| !known(name))
    }
}

/// Bytes whose length and checksum are those of the manifest.
#[derive(Clone, Copy)]
pub(super) struct Verified<'a>(&'a [u8]);

impl<'a> Verified<'a> {
    /// Takes bytes that `want_length` and `want_crc` describe.
    ///
    /// # Errors
    /// [`CheckpointError::Length`], [`CheckpointError::Checksum`].
    pub(super) fn check(
        file: &Path,
        bytes: &'a [u8],
        want_length: u64,
        want_crc: u32,
    ) -> Result<Verified<'a>> {
        let (got_length, got_crc) = (bytes.len() as u64, crc32c::crc32c(bytes));
        if got_length != want_length {
            let what = "length in the manifest";
            return Err(CheckpointError::Length {
                file: file.into(),
                what,
                want: want_length,
                got: got_length,
            });
        }
        if got_crc != want_crc {
            return Err(CheckpointError::Checksum {
                file: file.into(),
                tensor: None,
                want: want_crc,
                got: got_crc,
            });
        }
        Ok(Verified(bytes))
    }
}

/// Fixed-width little-endian integers, under the limit.
fn layout() -> Configuration<LittleEndian, Fixint, bincode::config::Limit<LIMIT>> {
    bincode::config::standard().with_fixed_int_encoding().with_limit::<LIMIT>()
}

/// The bytes of a record.
///
/// # Errors
/// [`CheckpointError::Argument`] if it is larger than decoding would take.
pub(super) fn encode(control: &Control) -> Result<Vec<u8>> {
    let bytes = bincode::serde::encode_to_vec((VERSION, control), layout());
    bytes.ok().filter(|bytes| bytes.len() < LIMIT).ok_or(CheckpointError::Argument {
        what: "control record",
        want: "less than 1 MiB",
        got: format!("{} optimizer states", control.optimizer_states.len()),
    })
}

/// The record in verified bytes.
///
/// # Errors
/// [`CheckpointError::Version`] for another layout; [`CheckpointError::Control`] for bytes that are not a
/// record, or a record and more.
pub(super) fn decode(file: &Path, Verified(bytes): Verified<'_>) -> Result<Control> {
    let refuse = |detail: String| CheckpointError::Control { file: file.into(), detail };
    let (version, _) = bincode::serde::decode_from_slice::<u32, _>(bytes, layout())
        .map_err(|error| refuse(format!("no format version: {error}")))?;
    if version != VERSION {
        return Err(CheckpointError::Version { file: file.into(), want: VERSION, got: version });
    }
    let ((_, control), consumed) = bincode::serde::decode_from_slice::<(u32, Control), _>(bytes, layout())
        .map_err(|error| refuse(format!("not a control record: {error}")))?;
    if consumed != bytes.len() {
        return Err(refuse(format!("want {consumed} bytes, got {}", bytes.len())));
    }
    Ok(control)
}
