//! The error of a weight that is NaN or infinite names its element, also in a tensor that is read in several pieces.
use std::path::Path;

use xtrain::model::export::{self, ExportSource, MAX_SHARD};
use xtrain::model::gguf::Quant;
use xtrain::model::{Config, Model, store};
use xtrain::tensor::{Device, Dtype};

use crate::cli::Scratch;

const TENSOR: &str = "model.embed_tokens.weight";

/// Elements of the table: in f32 and in bf16 more than a piece of 256 KiB.
const ELEMENTS: usize = 5000 * 32;

/// Writes the bytes of an infinity over element `at` of the table in `file`.
fn damage(file: &Path, whole: &[u8], at: usize, infinity: &[u8]) {
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&whole[8..8 + header]).unwrap();
    let first = json[TENSOR]["data_offsets"][0].as_u64().unwrap() as usize;
    let from = 8 + header + first + at * infinity.len();
    let mut bytes = whole.to_vec();
    bytes[from..from + infinity.len()].copy_from_slice(infinity);
    std::fs::write(file, bytes).unwrap();
}

/// Opens copies of a model with one infinite element each. Returns their number.
pub(crate) fn over() -> Result<usize, String> {
    let device = Device::cpu();
    let cfg = Config { vocab: ELEMENTS / 32, n_layers: 1, ..Config::tiny() };
    let model = Model::init(&cfg, Dtype::F32, &device, 7).unwrap();
    let source = ExportSource { model: &model, tokenizer: None, eos: &[] };
    let scratch = Scratch::new("non-finite");
    let f32 = f32::INFINITY.to_le_bytes();
    let mut checked = 0;
    for (quant, infinity) in [(Quant::F32, &f32[..]), (Quant::BF16, &f32[2..])] {
        let dir = scratch.0.join(quant.to_string());
        export::huggingface(&dir, &source, quant, MAX_SHARD).unwrap();
        let file = dir.join("model.safetensors");
        let whole = std::fs::read(&file).unwrap();
        for at in [0, 65_535, 65_536, 131_071, 131_072, ELEMENTS - 1] {
            damage(&file, &whole, at, infinity);
            let want = format!("model.safetensors: tensor {TENSOR}: element {at} is inf");
            let found = match store::open(&dir, Dtype::F32, &device) {
                Ok(_) => "no error".to_string(),
                Err(error) => error.to_string(),
            };
            if !found.ends_with(&want) {
                return Err(format!(
                    "gate non-finite index, seed 7: {quant}: expected {want:?}, found {found:?}"
                ));
            }
            checked += 1;
        }
    }
    Ok(checked)
}

#[test]
fn the_error_of_an_infinite_weight_names_its_element() {
    over().unwrap_or_else(|e| panic!("{e}"));
}
