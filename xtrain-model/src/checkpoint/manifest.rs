//! The manifest: names, lengths and checksums of all files of a checkpoint.
use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checksum::hex;
use super::error::{CheckpointError, Result};
use super::json;

pub(super) const NAME: &str = "manifest.json";
/// Maximum size of a manifest in bytes.
pub(super) const MAX_BYTES: u64 = 64 << 20;
const VERSION: u32 = 1;

/// The manifest in the form of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) format_version: u32,
    /// The version of the numeric contract.
    pub(super) numerics: String,
    /// The compute dtype of the run.
    pub(super) dtype: String,
    pub(super) step: u64,
    pub(super) config_sha256: String,
    /// Every file except the manifest, in the order of writing.
    pub(super) files: Vec<FileRecord>,
    /// CRC-32C of the manifest's text with zero in place of this checksum.
    #[serde(with = "hex")]
    checksum: u32,
}

/// One file of a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileRecord {
    /// The path inside the checkpoint.
    pub(super) name: String,
    pub(super) length: u64,
    #[serde(with = "hex")]
    pub(super) crc32c: u32,
    /// The tensors of a safetensors file, in the order of their data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) tensors: Vec<TensorRecord>,
}

/// One tensor of a safetensors file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TensorRecord {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// The checksum of the tensor's bytes.
    #[serde(with = "hex")]
    pub(super) crc32c: u32,
}

impl Manifest {
    pub(super) fn new(numerics: &str, dtype: &str, step: u64) -> Manifest {
        let (numerics, dtype) = (numerics.to_owned(), dtype.to_owned());
        Manifest { format_version: VERSION, numerics, dtype, step, ..Manifest::default() }
    }

    /// The text of the file, including its checksum.
    pub(super) fn encode(&mut self) -> Vec<u8> {
        self.checksum = 0;
        self.checksum = crc32c::crc32c(&self.text());
        self.text()
    }

    /// The text with the current value of the checksum field.
    fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("strings and numbers always serialize");
        text.push(b'\n');
        text
    }

    /// Decodes the manifest in `bytes`, which must be byte-identical to its canonical text. The version is decoded
    /// first and independently of the other fields.
    pub(super) fn decode(file: &Path, bytes: &[u8]) -> Result<Manifest> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u32,
        }
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
}

/// SHA-256 in hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    use std::fmt::Write;
    sha2::Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut digits, byte| {
        write!(digits, "{byte:02x}").expect("writing to a string cannot fail");
        digits
    })
}

/// Whether `name` is a plain file name: it cannot refer to a file outside the directory it is resolved in.
pub(super) fn is_plain_name(name: &str) -> bool {
    let separator = |c: char| c.is_control() || matches!(c, '/' | '\\' | ':');
    !name.is_empty() && name.len() <= 255 && name != "." && name != ".." && !name.contains(separator)
}
