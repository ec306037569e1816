//! Tensors of published models that follow from their config and their other tensors: the head of a tied model, and
//! tables of RoPE frequencies. They are skipped.
use std::path::{Path, PathBuf};

use serde_json::Value;
use xtrain_tensor::faults::{self, Fault};

use super::error::{CheckpointError, Result};
use super::header::TensorInfo;
use crate::quant::Quant;

const TABLE: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Whether weights may hold this tensor in addition to those of the model.
pub(super) fn is_implied(config: &Value, name: &str) -> bool {
    (config["tie_word_embeddings"] == true && name == HEAD)
        || name.ends_with(".self_attn.rotary_emb.inv_freq")
}

/// The element type of a tensor and the checksum of its bytes.
type Content = (Quant, u32);

/// The table of a model, and the copy of it that the head of a tied model is.
#[derive(Default)]
pub(super) struct TiedHead {
    table: Option<Content>,
    copy: Option<(PathBuf, Content)>,
}

impl TiedHead {
    /// Receives the checksum of each tensor of the model.
    pub(super) fn record(&mut self, info: &TensorInfo, crc: u32) {
        if info.name == TABLE {
            self.table = Some((info.dtype, crc));
        }
    }

    /// Receives the checksum of each tensor that is skipped.
    pub(super) fn record_implied(&mut self, file: &Path, info: &TensorInfo, crc: u32) {
        if info.name == HEAD {
            self.copy = Some((file.into(), (info.dtype, crc)));
        }
    }

    /// Compares the copy, if there is one, with the table.
    pub(super) fn check(self) -> Result<()> {
        match self.copy {
            Some((file, copy)) if self.table != Some(copy) && !faults::on(Fault::TiedHeadNotCompared) => {
                Err(CheckpointError::TiedHead { file })
            }
            _ => Ok(()),
        }
    }
}
