//! What a run was trained on, by digest: a resume with other data is refused.
use std::borrow::Cow;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Error, Result};
use crate::config::{RunConfig, Task};
use crate::model::chat::{BUILT_IN, Options};
use crate::model::tokenizer::Tokenizer;
use crate::training::Source;

/// Bytes of a file that are hashed at a time.
const BLOCK: usize = 1 << 20;

/// Bytes of a record that are read, at most.
const MOST: u64 = 1 << 20;

/// A file and its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Digested {
    /// The file, as the configuration names it; `bytes` for the built-in tokenizer.
    pub file: String,
    /// `sha256:` of all bytes of a text; `crc32c:` of a packed token file, which is in its header;
    /// `fnv1a:` of what each id of a tokenizer means.
    pub digest: String,
}

/// `data.json` of a run: the files that it trains on and the tokenizer that made tokens of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataRecord {
    /// The files, in order.
    pub files: Vec<Digested>,
    /// The tokenizer.
    pub tokenizer: Digested,
    /// `sha256:` of the tokenizer's chat templates where texts are tokenised by the run; of the built-in one where
    /// it has none and the run is a fine-tuning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
}

impl DataRecord {
    /// The digests of `source`, which `config` names. Texts are read once more; a packed token file is not: its
    /// header holds the checksum of its tokens.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of(config: &RunConfig, source: &Source) -> Result<DataRecord> {
        let data = &config.data;
        let one = |file: &String| {
            let digest = match source.tokens.file() {
                Some(packed) => format!("crc32c:{:08x}", packed.checksum()),
                None => sha256(Path::new(file))?,
            };
            Ok(Digested { file: file.clone(), digest })
        };
        Ok(DataRecord {
            files: data.files.iter().map(one).collect::<Result<_>>()?,
            tokenizer: tokenizer_digest(&data.tokenizer, &source.tokenizer),
            chat_template: template_digest(source, config.train.task),
        })
    }

    /// Refuses data that is not what this record was made of.
    ///
    /// # Errors
    /// [`Error::Changed`] with the first file whose digest is another.
    pub fn check(&self, found: &DataRecord) -> Result<()> {
        let names = |record: &DataRecord| record.files.iter().map(|f| f.file.clone()).collect::<Vec<_>>();
        let changed = |file: &str, want: &str, got: &str| Error::Changed {
            file: file.into(),
            want: want.to_string(),
            got: got.to_string(),
        };
        if names(self) != names(found) {
            return Err(changed("data.files", &names(self).join(", "), &names(found).join(", ")));
        }
        let all = |record: &DataRecord| record.files.iter().chain([&record.tokenizer]).cloned().collect();
        let (want, got): (Vec<Digested>, Vec<Digested>) = (all(self), all(found));
        let other = want.iter().zip(&got).find(|(want, got)| want.digest != got.digest);
        if let Some((want, got)) = other {
            return Err(changed(&want.file, &want.digest, &got.digest));
        }
        // a run of an earlier version does not say
        match (&self.chat_template, &found.chat_template) {
            (Some(want), got) if got.as_ref() != Some(want) => {
                let file = format!("the chat template of {}", self.tokenizer.file);
                Err(changed(&file, want, got.as_deref().unwrap_or("none")))
            }
            _ => Ok(()),
        }
    }

    /// The record in the file `path`.
    ///
    /// # Errors
    /// A file that is not there, cannot be read, or is no record.
    pub(super) fn read(path: &Path) -> Result<DataRecord> {
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MOST).read_to_end(&mut bytes))
            .map_err(|error| Error::io(path, error))?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Line {
            path: path.to_path_buf(),
            line: error.line(),
            what: format!("not a record of the run's data: {error}"),
        })
    }

    /// The record as the text of its file.
    pub(super) fn to_json(&self) -> String {
        format!("{}\n", serde_json::to_string_pretty(self).expect("a struct of strings is JSON"))
    }
}

fn tokenizer_digest(name: &str, tokenizer: &Tokenizer) -> Digested {
    Digested { file: name.to_string(), digest: format!("fnv1a:{:016x}", tokenizer.digest()) }
}

fn template_digest(source: &Source, task: Task) -> Option<String> {
    let mut templates = Cow::Borrowed(source.tokenizer.chat_templates());
    if templates.is_empty() && task == Task::Sft {
        templates.to_mut().push(("built-in".into(), BUILT_IN.into()));
    }
    if templates.is_empty() || source.tokens.file().is_some() {
        return None;
    }
    let mut hash = Sha256::new();
    // what templates are given, too, and what ends a turn
    let special = Options::of(&source.tokenizer).special_tokens;
    for part in templates.iter().chain(&special).flat_map(|(name, text)| [name, text]) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    source.tokenizer.eos_ids().iter().for_each(|id| hash.update(id.to_le_bytes()));
    Some(format!("sha256:{}", hex(&hash.finalize())))
}

/// `sha256:` and the hash of a file's bytes.
fn sha256(path: &Path) -> Result<String> {
    let io = |error| Error::io(path, error);
    let mut file = fs::File::open(path).map_err(io)?;
    let (mut hash, mut block) = (Sha256::new(), vec![0; BLOCK]);
    loop {
        let n = file.read(&mut block).map_err(io)?;
        if n == 0 {
            break;
        }
        hash.update(&block[..n]);
    }
    Ok(format!("sha256:{}", hex(&hash.finalize())))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
