//! The manifest: what a checkpoint consists of, to the last byte.
use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checksum::hex;
use super::error::{CheckpointError, Result};
use super::json;

/// Its name inside a checkpoint.
pub(super) const NAME: &str = "manifest.json";
/// The most bytes that are read of it.
pub(super) const MAX_BYTES: u64 = 64 << 20;
/// The version of its layout.
const VERSION: u32 = 1;

/// The manifest, field by field as it stands in the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    /// The layout's version.
    pub(super) format_version: u32,
    /// The version of the arithmetic.
    pub(super) numerics: String,
    /// The type that the run computed in.
    pub(super) dtype: String,
    /// Optimizer steps done.
    pub(super) step: u64,
    /// SHA-256 of config.json.
    pub(super) config_sha256: String,
    /// Every other file, in the order of writing.
    pub(super) files: Vec<FileRecord>,
    /// CRC-32C of this text with zero in its place.
    #[serde(with = "hex")]
    checksum: u32,
}

/// One file of a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileRecord {
    /// Its path inside the checkpoint.
    pub(super) name: String,
    /// Its bytes.
    pub(super) length: u64,
    /// Their checksum.
    #[serde(with = "hex")]
    pub(super) crc32c: u32,
    /// Its tensors in the order of their data, if it is a safetensors file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) tensors: Vec<TensorRecord>,
}

/// One tensor of a safetensors file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TensorRecord {
    /// Its name.
    pub(super) name: String,
    /// Its dimensions.
    pub(super) shape: Vec<usize>,
    /// The checksum of its bytes.
    #[serde(with = "hex")]
    pub(super) crc32c: u32,
}

/// The first thing to know of a manifest, whatever else is in it.
#[derive(Deserialize)]
struct Version {
    format_version: u32,
}

impl Manifest {
    /// A manifest of no files yet.
    pub(super) fn new(numerics: &str, dtype: &str, step: u64) -> Manifest {
        Manifest {
            format_version: VERSION,
            numerics: numerics.to_owned(),
            dtype: dtype.to_owned(),
            step,
            config_sha256: String::new(),
            files: Vec::new(),
            checksum: 0,
        }
    }

    /// The text of the file, its own checksum included.
    pub(super) fn encode(&mut self) -> Vec<u8> {
        self.checksum = 0;
        self.checksum = crc32c::crc32c(&self.text());
        self.text()
    }

    /// The text with the checksum as it stands.
    fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("strings and numbers are JSON");
        text.push(b'\n');
        text
    }

    /// The manifest in `bytes`, every byte of which is accounted for.
    ///
    /// # Errors
    /// [`CheckpointError::Json`], [`CheckpointError::Version`], [`CheckpointError::Checksum`],
    /// [`CheckpointError::Duplicate`], [`CheckpointError::OutsideDirectory`].
    pub(super) fn decode(file: &Path, bytes: &[u8]) -> Result<Manifest> {
        let Version { format_version } = json::decode(file, bytes)?;
        if format_version != VERSION {
            return Err(CheckpointError::Version { file: file.into(), want: VERSION, got: format_version });
        }
        let mut found: Manifest = json::decode(file, bytes)?;
        let want = found.checksum;
        let canonical = found.encode();
        if found.checksum != want || canonical != bytes {
            let got = found.checksum;
            return Err(CheckpointError::Checksum { file: file.into(), tensor: None, want, got });
        }
        let mut names = HashSet::new();
        for FileRecord { name, .. } in &found.files {
            if !is_plain_name(name.strip_prefix("trainer/").unwrap_or(name)) {
                return Err(CheckpointError::OutsideDirectory { file: file.into(), got: name.clone() });
            }
            if !names.insert(name) {
                return Err(CheckpointError::Duplicate { file: file.into(), name: name.clone() });
            }
        }
        Ok(found)
    }

    /// The record of a file.
    pub(super) fn file(&self, name: &str) -> Option<&FileRecord> {
        self.files.iter().find(|file| file.name == name)
    }
}

/// SHA-256 in hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether `name` can only name a file in the directory that it is looked up in.
pub(super) fn is_plain_name(name: &str) -> bool {
    let strange = |c: char| c.is_control() || matches!(c, '/' | '\\' | ':');
    !name.is_empty() && name.len() <= 255 && name != "." && name != ".." && !name.contains(strange)
}
