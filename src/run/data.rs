//! Digests of the training data of a run. A resume with other data is rejected.
use std::fs;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Error, Result};
use crate::config::{RunConfig, TaskKind};
use crate::model::chat::{BUILT_IN, Options};
use crate::model::data::Tokens;
use crate::model::json;
use crate::model::tokenizer::Tokenizer;
use crate::tensor::faults::{self, Fault};

/// Block size of hashing, in bytes.
const BLOCK: usize = 1 << 20;

/// A file and its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Digested {
    /// The file, as named in the configuration; `bytes` for the built-in tokenizer.
    pub file: String,
    /// `sha256:` of the bytes of a text file; `crc32c:` of the tokens of a packed token file, from its header;
    /// `fnv1a:` of the vocabulary of a tokenizer.
    pub digest: String,
}

/// What the tokens of text depend on, in addition to the vocabulary of the tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokenization {
    /// `sha256:` of the `tokenizer.json`: merges, normalizer, pre-tokenizer, flags of added tokens. A tokenizer of a
    /// GGUF file has the `tokenizer.json` that `import` writes.
    pub digest: String,
    /// The id of the token that ends a document. `None`: the tokenizer has none.
    pub separator: Option<u32>,
}

impl Tokenization {
    /// That of `tokenizer`. `None`: it is the built-in one.
    fn of(tokenizer: &Tokenizer) -> Option<Tokenization> {
        let (_, json) = tokenizer.files()[0];
        let digest = || format!("sha256:{}", hex(&Sha256::digest(json)));
        (!tokenizer.is_byte()).then(|| Tokenization { digest: digest(), separator: tokenizer.separator() })
    }
}

/// `data.json` of a run: its data files and the tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataRecord {
    /// The files, in order.
    pub files: Vec<Digested>,
    /// The files for validation, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub val_files: Vec<Digested>,
    /// The tokenizer.
    pub tokenizer: Digested,
    /// What else the tokens of text depend on. `None`: the built-in tokenizer, packed data, or a run of an earlier
    /// version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenization: Option<Tokenization>,
    /// The id of the token that begins each prompt and document. `None`: none is added, or the run is of an earlier
    /// version, which added none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bos: Option<u32>,
    /// `sha256:` of the tokenizer's chat templates, or of the built-in one if it has none and the task is sft.
    /// `None`: the data is packed, or no template is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// Further digests that a record of the same templates may have; see [`TemplateDigests`].
    #[serde(skip)]
    equivalent: Vec<String>,
}

impl DataRecord {
    /// The digests of the data of `config`, which has these tokens for training and for validation. Text files are read
    /// again; the checksum of a packed token file is in its header.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn of(
        config: &RunConfig,
        [tokens, validation]: [&Tokens; 2],
        tokenizer: &Tokenizer,
    ) -> Result<DataRecord> {
        let data = &config.data;
        let vocabulary = format!("fnv1a:{:016x}", tokenizer.digest());
        let TemplateDigests { chat_template, equivalent } =
            TemplateDigests::of([tokens, validation], tokenizer, config.train.task);
        Ok(DataRecord {
            files: digests(&data.files, tokens)?,
            val_files: digests(&data.val_files, validation)?,
            tokenizer: Digested { file: data.tokenizer.clone(), digest: vocabulary },
            tokenization: Tokenization::of(tokenizer).filter(|_| !is_packed([tokens, validation])),
            bos: tokenizer.bos_id(),
            chat_template,
            equivalent,
        })
    }

    /// The digests of `files` and of a tokenizer with this name.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn of_files<'a>(
        files: impl IntoIterator<Item = &'a String>,
        name: &str,
        tokenizer: &Tokenizer,
    ) -> Result<DataRecord> {
        let digest = |file: &String| Ok(Digested { file: file.clone(), digest: sha256(Path::new(file))? });
        let vocabulary = format!("fnv1a:{:016x}", tokenizer.digest());
        Ok(DataRecord {
            files: files.into_iter().map(digest).collect::<Result<_>>()?,
            val_files: Vec::new(),
            tokenizer: Digested { file: name.to_string(), digest: vocabulary },
            tokenization: Tokenization::of(tokenizer),
            bos: tokenizer.bos_id(),
            chat_template: None,
            equivalent: Vec::new(),
        })
    }

    /// The files and the tokenizer.
    fn parts(&self) -> impl Iterator<Item = &Digested> {
        self.files.iter().chain(&self.val_files).chain([&self.tokenizer])
    }

    /// Checks that `found` has the digests of this record. The names of the files may differ.
    ///
    /// # Errors
    /// [`Error::Changed`] for the first file that differs.
    pub fn check(&self, found: &DataRecord) -> Result<()> {
        let changed = |file: &str, want: &str, got: &str| Error::Changed {
            file: file.into(),
            want: want.to_string(),
            got: got.to_string(),
        };
        for (key, want, got) in
            [("data.files", &self.files, &found.files), ("data.val_files", &self.val_files, &found.val_files)]
        {
            let names = |files: &[Digested]| match files {
                [] => "none".to_string(),
                _ => files.iter().map(|f| f.file.as_str()).collect::<Vec<_>>().join(", "),
            };
            if want.len() != got.len() {
                return Err(changed(key, &names(want), &names(got)));
            }
        }
        let difference = self.parts().zip(found.parts()).find(|(want, got)| want.digest != got.digest);
        if let Some((want, got)) = difference.filter(|_| !faults::on(Fault::ResumeIgnoresData)) {
            return Err(changed(&got.file, &want.digest, &got.digest));
        }
        let id = |id: Option<u32>| id.map_or_else(|| "none".to_string(), |id| format!("id {id}"));
        if let Some(want) = &self.tokenization {
            let got = found.tokenization.as_ref();
            let digest = got.map_or("none", |got| &got.digest);
            if want.digest != digest {
                return Err(changed(
                    &format!("the tokenizer.json of {}", found.tokenizer.file),
                    &want.digest,
                    digest,
                ));
            }
            let separator = got.and_then(|got| got.separator);
            if want.separator != separator {
                let file = format!("the token that ends a document, of {}", found.tokenizer.file);
                return Err(changed(&file, &id(want.separator), &id(separator)));
            }
        }
        if self.bos != found.bos {
            let file = format!("the token that begins a text, of {}", self.tokenizer.file);
            return Err(changed(&file, &id(self.bos), &id(found.bos)));
        }
        // Runs of earlier versions have no digest of the chat template.
        match (&self.chat_template, &found.chat_template) {
            (Some(want), got) if got.as_ref() != Some(want) && !found.equivalent.contains(want) => {
                let file = format!("the chat template of {}", self.tokenizer.file);
                Err(changed(&file, want, got.as_deref().unwrap_or("none")))
            }
            _ => Ok(()),
        }
    }

    /// This record with the names of the files of `found`, which [`DataRecord::check`] accepted.
    pub(super) fn renamed(&self, found: &DataRecord) -> DataRecord {
        let chat_template = self.chat_template.as_ref().or(found.chat_template.as_ref()).cloned();
        DataRecord { chat_template, equivalent: Vec::new(), ..found.clone() }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// The file does not exist, cannot be read, or is not a record.
    pub(super) fn read(path: &Path) -> Result<DataRecord> {
        let bytes = fs::read(path).map_err(|error| Error::io(path, error))?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Line {
            path: path.to_path_buf(),
            line: error.line(),
            reason: format!("expected a record of the training data, found {}", json::found(&error)),
        })
    }

    /// The record as JSON.
    pub(super) fn to_json(&self) -> String {
        format!("{}\n", serde_json::to_string_pretty(self).expect("a struct of strings is JSON"))
    }
}

/// Whether the data is packed, so that the run tokenizes none of it.
fn is_packed(tokens: [&Tokens; 2]) -> bool {
    tokens.iter().all(|tokens| tokens.file().is_some())
}

/// The digests of files with these tokens. Text is read again; the checksum of a packed token file is in its header.
fn digests(files: &[String], tokens: &Tokens) -> Result<Vec<Digested>> {
    let digest = |file: &String| {
        let digest = match tokens.file() {
            Some(packed) => format!("crc32c:{:08x}", packed.checksum()),
            None => sha256(Path::new(file))?,
        };
        Ok(Digested { file: file.clone(), digest })
    };
    files.iter().map(digest).collect()
}

/// The digests of the chat templates of a tokenizer. A checkpoint of a fine-tuned model has the built-in template as
/// its default template, and names the end-of-text token; its digest is that of a tokenizer without a template.
struct TemplateDigests {
    /// The digest that is recorded. `None`: no template is used.
    chat_template: Option<String>,
    /// Digests of the same templates under other names.
    equivalent: Vec<String>,
}

impl TemplateDigests {
    fn of(tokens: [&Tokens; 2], tokenizer: &Tokenizer, task: TaskKind) -> TemplateDigests {
        let (own, special) = (tokenizer.chat_templates(), Options::of(tokenizer).special_tokens);
        if is_packed(tokens) || own.is_empty() && task != TaskKind::Sft {
            return TemplateDigests { chat_template: None, equivalent: Vec::new() };
        }
        let digest = |templates: &[Named], special: &[Named]| template_digest(tokenizer, templates, special);
        let built_in = own.iter().all(|(_, text)| text == BUILT_IN) && own.len() <= 1;
        if task != TaskKind::Sft || !built_in {
            return TemplateDigests { chat_template: Some(digest(own, &special)), equivalent: Vec::new() };
        }
        let unnamed = [("built-in".to_string(), BUILT_IN.to_string())];
        let (mut last, eos): (Vec<Named>, Vec<Named>) =
            special.iter().cloned().partition(|(name, _)| name != "eos_token");
        last.extend(eos);
        let equivalent = vec![digest(&unnamed, &last), digest(own, &special)];
        TemplateDigests { chat_template: Some(digest(&unnamed, &special)), equivalent }
    }
}

/// A name and a text: a template, or a special token.
type Named = (String, String);

/// The digest of templates, the special tokens that they use, and the end-of-text ids.
fn template_digest(tokenizer: &Tokenizer, templates: &[Named], special: &[Named]) -> String {
    let mut hash = Sha256::new();
    for part in templates.iter().chain(special).flat_map(|(name, text)| [name, text]) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    tokenizer.eos_ids().iter().for_each(|id| hash.update(id.to_le_bytes()));
    format!("sha256:{}", hex(&hash.finalize()))
}

/// `sha256:` and the hash of the bytes of a file.
pub(crate) fn sha256(path: &Path) -> Result<String> {
    let io = |error| Error::io(path, error);
    let mut file = fs::File::open(path).map_err(io)?;
    let (mut hash, mut block) = (Sha256::new(), vec![0; BLOCK]);
    while let n @ 1.. = file.read(&mut block).map_err(io)? {
        hash.update(&block[..n]);
    }
    Ok(format!("sha256:{}", hex(&hash.finalize())))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_a_file_is_that_of_all_its_bytes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let all: Vec<u8> = (0..2 * BLOCK + 1).map(|i| (i % 251) as u8).collect();
        for length in [0, 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1] {
            fs::write(&file, &all[..length]).unwrap();
            let want = format!("sha256:{}", hex(&Sha256::digest(&all[..length])));
            assert_eq!(sha256(file.path()).unwrap(), want, "{length} bytes");
        }
    }

    fn record(files: &[(&str, &str)]) -> DataRecord {
        let digested =
            |(file, digest): &(&str, &str)| Digested { file: (*file).into(), digest: (*digest).into() };
        DataRecord {
            files: files.iter().map(digested).collect(),
            val_files: vec![digested(&("v", "sha256:v"))],
            tokenizer: digested(&("t.json", "fnv1a:1")),
            tokenization: Some(Tokenization { digest: "sha256:t".into(), separator: Some(2) }),
            bos: Some(1),
            chat_template: Some("sha256:c".into()),
            equivalent: Vec::new(),
        }
    }

    #[test]
    fn a_run_without_a_template_records_no_digest_of_one() {
        let (tokenizer, tokens) = (Tokenizer::byte(), Tokens::from_ids(vec![1, 2], 257).unwrap());
        let recorded = |tokenizer: &Tokenizer, task| {
            let digests = TemplateDigests::of([&tokens; 2], tokenizer, task);
            (digests.chat_template.is_some(), digests.equivalent.len())
        };
        assert_eq!(recorded(&tokenizer, TaskKind::Lm), (false, 0));
        assert_eq!(recorded(&tokenizer, TaskKind::Sft), (true, 2));
        let own = Tokenizer::byte().with_chat_template("{{ messages }}").unwrap();
        assert_eq!([TaskKind::Lm, TaskKind::Sft].map(|task| recorded(&own, task)), [(true, 0); 2]);
    }

    /// A tokenizer with these merges of its last tokens, `ab` and `abc`.
    fn with_merges(merges: &str) -> Tokenizer {
        let json = String::from_utf8(Tokenizer::byte().files()[0].1.to_vec()).unwrap();
        let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
        for (id, token) in ["<|endoftext|>", "ab", "bc", "abc"].iter().enumerate() {
            json["model"]["vocab"][token] = (256 + id).into();
        }
        json["model"]["merges"] = serde_json::from_str(merges).unwrap();
        Tokenizer::from_json(json.to_string().into_bytes(), Path::new("tokenizer.json")).unwrap()
    }

    #[test]
    fn other_merges_of_the_same_vocabulary_are_a_change() {
        let of = |tokenizer: &Tokenizer| {
            DataRecord::of_files(std::iter::empty::<&String>(), "t.json", tokenizer).unwrap()
        };
        let (one, other) =
            (with_merges(r#"[["a", "b"], ["ab", "c"]]"#), with_merges(r#"[["b", "c"], ["a", "bc"]]"#));
        assert_eq!(one.digest(), other.digest());
        assert_ne!(one.encode("ab").unwrap(), other.encode("ab").unwrap());
        assert!(of(&one).check(&of(&one)).is_ok());
        let error = of(&one).check(&of(&other)).unwrap_err().to_string();
        assert!(error.starts_with("the tokenizer.json of t.json: differs from the data that"), "{error}");
        let earlier = DataRecord { tokenization: None, ..of(&one) };
        assert!(earlier.check(&of(&other)).is_ok());
        assert!(!earlier.to_json().contains("tokenization"));
        assert_eq!(earlier.renamed(&of(&one)), of(&one), "the next resume compares it");
        assert_eq!(of(&Tokenizer::byte()).tokenization, None);
    }

    #[test]
    fn each_change_of_the_data_is_named_with_what_was_recorded_and_what_was_found() {
        let old = record(&[("a", "sha256:a"), ("b", "sha256:b")]);
        let with = |change: fn(&mut DataRecord)| {
            let mut found = record(&[("c", "sha256:a"), ("d", "sha256:b")]);
            change(&mut found);
            match old.check(&found) {
                Ok(()) => None,
                Err(Error::Changed { file, want, got }) => Some([file.display().to_string(), want, got]),
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(with(|_| ()), None, "other names");
        assert_eq!(with(|found| found.chat_template = None).unwrap()[1..], ["sha256:c", "none"]);
        assert_eq!(
            with(|found| (found.chat_template, found.equivalent) = (None, vec!["sha256:c".into()])),
            None
        );
        type Change = fn(&mut DataRecord);
        let changes: [(Change, [&str; 3]); 11] = [
            (|found| found.tokenization = None, ["the tokenizer.json of t.json", "sha256:t", "none"]),
            (
                |found| found.tokenization.as_mut().unwrap().digest = "x".into(),
                ["the tokenizer.json of t.json", "sha256:t", "x"],
            ),
            (
                |found| found.tokenization.as_mut().unwrap().separator = None,
                ["the token that ends a document, of t.json", "id 2", "none"],
            ),
            (|found| drop(found.files.pop()), ["data.files", "a, b", "c"]),
            (|found| found.files[0].digest = "x".into(), ["c", "sha256:a", "x"]),
            (|found| found.files[1].digest = "x".into(), ["d", "sha256:b", "x"]),
            (|found| drop(found.val_files.pop()), ["data.val_files", "v", "none"]),
            (|found| found.val_files[0].digest = "x".into(), ["v", "sha256:v", "x"]),
            (|found| found.tokenizer.digest = "x".into(), ["t.json", "fnv1a:1", "x"]),
            (|found| found.bos = None, ["the token that begins a text, of t.json", "id 1", "none"]),
            (
                |found| found.chat_template = Some("x".into()),
                ["the chat template of t.json", "sha256:c", "x"],
            ),
        ];
        for (change, want) in changes {
            assert_eq!(with(change).unwrap(), want);
        }
        let earlier = DataRecord { chat_template: None, tokenization: None, ..old.clone() };
        assert!(earlier.check(&record(&[("a", "sha256:a"), ("b", "sha256:b")])).is_ok());
    }
}
