//! Damaged packed tokens, and damaged files of a checkpoint other than its weights: no reader accepts them.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xtrain::decode::{Engine, EngineOptions, KvPrefix, PrefixIdentity, Request};
use xtrain::model::checkpoint::{CheckpointDir, RealFs};
use xtrain::model::data::{Tokens, prepare};
use xtrain::model::export::ExportSource;
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{Config, Model, store};
use xtrain::tensor::{Device, Dtype};

use crate::cli::{Scratch, ok, refused};
use crate::fixtures::path;

/// Number of flipped bits of a file.
const FLIPS: usize = 24;

/// Calls `use_it` for copies of `file` with one flipped bit each. Fails if it accepts a copy.
fn flipped(file: &Path, use_it: impl Fn() -> Result<(), String>) -> Result<usize, String> {
    let bytes = std::fs::read(file).unwrap();
    use_it().map_err(|e| format!("undamaged {}: {e}", file.display()))?;
    for flip in 0..FLIPS {
        let (mut damaged, at) = (bytes.clone(), flip * bytes.len() / FLIPS);
        damaged[at] ^= 1 << (flip % 8);
        std::fs::write(file, damaged).unwrap();
        if use_it().is_ok() {
            let name = file.file_name().unwrap().display();
            return Err(format!(
                "gate damaged files, seed 0: bit {} of byte {at} of {name} accepted",
                flip % 8
            ));
        }
    }
    std::fs::write(file, bytes).unwrap();
    Ok(FLIPS)
}

fn packed(scratch: &Scratch) -> PathBuf {
    let text = scratch.file("text.txt", &"a text to pack, long enough for a few windows of it. ".repeat(30));
    let out = scratch.0.join("text.tok");
    prepare(&[text], &out, &Tokenizer::byte(), &mut |_| ()).unwrap();
    out
}

/// A packed token file with a flipped bit is not opened.
pub(crate) fn token_file() -> Result<usize, String> {
    let scratch = Scratch::new("damaged-tokens");
    let file = packed(&scratch);
    flipped(&file, || Tokens::open(&file).map(drop).map_err(|e| e.to_string()))
}

/// A checkpoint with a flipped bit in its tokenizer or its generation settings is not opened, and has no tokenizer.
pub(crate) fn small_files() -> Result<usize, String> {
    let scratch = Scratch::new("damaged-checkpoint");
    let device = Device::cpu();
    let opened = store::open(&path("models/qwen3_tied"), Dtype::F32, &device).unwrap();
    let own = opened.tokenizer.unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(own.files()[1].1).unwrap();
    config["chat_template"] = serde_json::Value::Null;
    std::fs::write(scratch.0.join("tokenizer.json"), own.files()[0].1).unwrap();
    std::fs::write(scratch.0.join("tokenizer_config.json"), config.to_string()).unwrap();
    std::fs::write(scratch.0.join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let tokenizer = Tokenizer::load(&scratch.0).unwrap();
    let source = ExportSource { model: &opened.model, tokenizer: Some(&tokenizer), eos: &opened.eos };
    let checkpoints = CheckpointDir::open(Arc::new(RealFs), &scratch.0.join("run"), 2).unwrap();
    let saved = store::save_model(&checkpoints, &source, 0).unwrap().path;
    let (run, mut rejected) = (scratch.0.join("run"), 0);
    let by_path = || store::open(&saved, Dtype::F32, &device).map(drop).map_err(|e| e.to_string());
    let described = || store::describe(&saved).map(drop).map_err(|e| e.to_string());
    let of_run = || store::tokenizer_of(&run).map(drop).map_err(|e| e.to_string());
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"] {
        let file = saved.join(name);
        for reader in [&by_path as &dyn Fn() -> Result<(), String>, &described, &of_run] {
            rejected += flipped(&file, reader)?;
        }
    }
    Ok(rejected)
}

/// The rows of a prompt in a file, and their model.
fn saved_prefix(scratch: &Scratch) -> (PathBuf, Model) {
    let model = Model::init(&Config::tiny(), Dtype::F32, &Device::cpu(), 0).unwrap();
    let mut engine = Engine::new(&model, EngineOptions::default()).unwrap();
    let index = engine.submit(Request::greedy(&[1, 2, 3, 4, 5], 2)).unwrap();
    engine.step().unwrap();
    let snapshot = engine.snapshot(index).unwrap();
    let file = scratch.0.join("prefix");
    engine.read_snapshot(snapshot).unwrap().save(&file, &PrefixIdentity::of(&model, "sha256:1")).unwrap();
    drop(engine);
    (file, model)
}

/// A prefix file with a flipped bit is not loaded.
pub(crate) fn prefix() -> Result<usize, String> {
    let scratch = Scratch::new("damaged-prefix");
    let (file, model) = saved_prefix(&scratch);
    let identity = PrefixIdentity::of(&model, "sha256:1");
    flipped(&file, || KvPrefix::load(&file, &model, &identity).map(drop).map_err(|e| e.to_string()))
}

/// A prefix file is not loaded for other weights of the same shape.
pub(crate) fn prefix_of_other_weights() -> Result<usize, String> {
    let scratch = Scratch::new("other-weights");
    let (file, model) = saved_prefix(&scratch);
    match KvPrefix::load(&file, &model, &PrefixIdentity::of(&model, "sha256:2")) {
        Ok(_) => Err("gate damaged files, seed 0: a prefix file of other weights accepted".into()),
        Err(error) if error.to_string().contains("weights: expected sha256:2") => Ok(1),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn a_prefix_file_with_a_flipped_bit_or_of_other_weights_is_not_loaded() {
    assert_eq!(prefix(), Ok(FLIPS));
    assert_eq!(prefix_of_other_weights(), Ok(1));
}

#[test]
fn a_packed_token_file_with_a_flipped_bit_is_not_opened() {
    let rejected = token_file().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(rejected, FLIPS);
    let scratch = Scratch::new("damaged-eval");
    let file = packed(&scratch);
    let model = path("models/qwen3_tied").display().to_string();
    std::fs::copy(&file, scratch.0.join("whole.tok")).unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    refused(&scratch.0, &["eval", &model, "--data", "text.tok"], 65, &["text.tok", "checksum of the tokens"]);
}

#[test]
fn no_reader_of_a_checkpoint_accepts_a_damaged_small_file() {
    let rejected = small_files().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(rejected, 4 * 3 * FLIPS);
    let scratch = Scratch::new("damaged-commands");
    let model = path("models/qwen3_tied").display().to_string();
    ok(&scratch.0, &["import", &model, "run"]);
    let file = scratch.0.join("run/checkpoints/step_000000/tokenizer.json");
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] = b' ';
    std::fs::write(&file, bytes).unwrap();
    let says = ["tokenizer.json", "expected crc32c"];
    refused(&scratch.0, &["tokenize", "--tokenizer", "run", "text"], 65, &says);
    let step = "run/checkpoints/step_000000";
    refused(&scratch.0, &["generate", step, "--tokens", "1"], 65, &says);
}
