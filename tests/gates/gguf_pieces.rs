//! Quantized matrices that are read in several pieces: a piece of 256 KiB is no multiple of a block.
use xtrain::model::export::{self, ExportSource};
use xtrain::model::gguf::Quant;
use xtrain::model::{Config, Model, store};
use xtrain::tensor::testing::compare_bits;
use xtrain::tensor::{Device, Dtype};

use crate::cli::Scratch;
use crate::golden::logits;

const SEED: u64 = 20_251_123;

/// Exports a model with matrices of 96 x 4096 as `Q8_0` and reads it. Every value is that of its block, and a model
/// opened for inference has the same logits. Returns the number of compared values.
pub(crate) fn over() -> Result<usize, String> {
    let failed = |e: String| format!("gate quantized pieces, seed {SEED}: {e}");
    let cfg = Config {
        vocab: 64,
        dim: 96,
        ffn_dim: 4096,
        n_layers: 1,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 32,
        max_positions: 16,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        ..Config::default()
    };
    let device = Device::cpu();
    let model = Model::init(&cfg, Dtype::F32, &device, SEED).map_err(|e| failed(e.to_string()))?;
    let scratch = Scratch::new("pieces");
    let file = scratch.0.join("model.gguf");
    let source = ExportSource { model: &model, tokenizer: None, eos: &[] };
    export::gguf(&file, &source, Quant::Q8_0).map_err(|e| failed(e.to_string()))?;
    let opened = store::open(&file, Dtype::F32, &device).map_err(|e| failed(e.to_string()))?.model;
    let packed = store::open_for_inference(&file, Dtype::F32, &device);
    let packed = packed.map_err(|e| failed(e.to_string()))?.model;
    let (mut compared, mut long) = (0, 0);
    for (got, original) in opened.params.iter().zip(model.params.iter()) {
        let values = |p: &xtrain::model::Param| p.value().and_then(|x| Ok(x.to_vec::<f32>()?));
        let mut want = values(original).map_err(|e| failed(e.to_string()))?;
        if original.shape().len() == 2 {
            let mut blocks = Vec::new();
            assert!(Quant::Q8_0.narrow(&want, &mut blocks), "{}", original.name());
            long += usize::from(blocks.len() > 256 << 10);
            want.clear();
            Quant::Q8_0.widen(&blocks, &mut want);
        }
        let got = values(got).map_err(|e| failed(e.to_string()))?;
        compare_bits(&got, &want).map_err(|e| failed(format!("{}: {e}", original.name())))?;
        compared += want.len();
    }
    if long < 3 {
        return Err(failed(format!("{long} matrices of more than one piece")));
    }
    let tokens = [5, 1, 60, 33];
    compare_bits(&logits(&packed, &tokens), &logits(&opened, &tokens))
        .map_err(|e| failed(format!("logits: {e}")))?;
    Ok(compared)
}

#[test]
fn quantized_matrices_of_several_pieces_are_read_whole() {
    let compared = over().unwrap_or_else(|e| panic!("{e}"));
    assert!(compared > 3 * 96 * 4096, "{compared}");
}
