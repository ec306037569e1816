//! GGUF files against gguf-py's reader, and against transformers on the dequantized weights.
use xtrain::decode::{EngineOptions, Request, generate};
use xtrain::model::export::{self, ExportSource};
use xtrain::model::gguf::{Quant, read_header};
use xtrain::model::{Biases, Config, Model, store};
use xtrain::tensor::testing::compare_bits;
use xtrain::tensor::{Device, Dtype};

use crate::cli::Scratch;
use crate::decode::ids;
use crate::fixtures::{f32s, json, path, sha, tensors};
use crate::golden::logits;

#[test]
fn every_file_is_read_as_by_gguf_py() {
    let reference = json("gguf/ref.json");
    let answers = tensors("gguf/ref.safetensors");
    let (mut rows, mut values) = (0, 0);
    for case in reference["files"].as_array().unwrap() {
        let name = case["file"].as_str().unwrap();
        let bytes = std::fs::read(path(&format!("gguf/{name}"))).unwrap();
        let header = read_header(name.as_ref(), &bytes[..], bytes.len() as u64).unwrap();
        for (key, want) in
            case["metadata"].as_object().unwrap().iter().filter(|(k, _)| !k.starts_with("GGUF."))
        {
            use xtrain::model::gguf::Value::*;
            let got = header.metadata.get(key).unwrap_or_else(|| panic!("{name}: no {key}"));
            let same = match got {
                Int(n) => want.as_i64() == Some(*n),
                Float(x) => want.as_f64() == Some(*x),
                Bool(b) => want.as_bool() == Some(*b),
                String(text) if want.as_str().is_some_and(|w| w.ends_with("items/chars>")) => {
                    want.as_str() == Some(&format!("<{} items/chars>", text.chars().count()))
                }
                String(text) => want.as_str() == Some(text),
                Ints(list) => want.as_str() == Some(&format!("<{} items/chars>", list.len())),
                Floats(list) => want.as_str() == Some(&format!("<{} items/chars>", list.len())),
                Strings(list) => want.as_str() == Some(&format!("<{} items/chars>", list.len())),
            };
            assert!(same, "{name}: {key} is {got:?}, want {want}");
            values += 1;
        }
        assert_eq!(header.tensors.len(), case["tensors"].as_array().unwrap().len());
        for want in case["tensors"].as_array().unwrap() {
            let got = header.tensors.iter().find(|t| want["name"] == t.name).unwrap();
            let ne: Vec<u32> = got.shape.iter().rev().map(|&n| n as u32).collect();
            assert_eq!((want["type"].as_str(), ids(&want["ne"])), (Some(&*got.quant.to_string()), ne));
            assert_eq!(want["offset"].as_u64(), Some(got.offset), "{name}: {}", got.name);
        }
        for (answer, _, bytes_of_row) in answers.iter().filter(|t| t.0.contains(name) && t.0.contains(".row"))
        {
            let (tensor, row) = answer[name.len() + 1..].rsplit_once(".row").unwrap();
            let entry = header.tensors.iter().find(|t| t.name == tensor).unwrap();
            let got = entry.read(name.as_ref(), &mut std::io::Cursor::new(&bytes)).unwrap();
            let width = *got.shape.last().unwrap();
            let got = &got.data[row.parse::<usize>().unwrap() * width..][..width];
            xtrain::tensor::testing::assert_bits_eq(got, &f32s(bytes_of_row), answer);
            rows += 1;
        }
    }
    println!("gguf: {values} metadata values, {rows} rows, 0 differ");
    assert!(rows >= 4 * 12, "{rows} rows");
}

#[test]
fn logits_and_greedy_tokens_are_those_of_the_reference() {
    let reference = json("gguf/ref.json");
    let answers = tensors("gguf/ref.safetensors");
    for case in reference["files"].as_array().unwrap() {
        let name = case["file"].as_str().unwrap();
        let opened = store::open(&path(&format!("gguf/{name}")), Dtype::F32, &Device::cpu()).unwrap();
        let (model, prompt) = (opened.model, ids(&case["prompt"]));
        let dir = format!("models/{}/ref.json", case["model"].as_str().unwrap());
        let tolerance = json(&dir)["tolerance"]["logits_f32_abs"].as_f64().unwrap();
        let want = answers.iter().find(|t| t.0 == format!("{name}.last4_logits")).unwrap();
        let (want, got) = (f32s(&want.2), logits(&model, &prompt));
        for (at, (got, want)) in got[got.len() - want.len()..].iter().zip(&want).enumerate() {
            assert!(f64::from((got - want).abs()) <= tolerance, "{name}, logit {at}: got {got}, want {want}");
        }
        let request = Request::greedy(&prompt, 16);
        let got = generate(&model, vec![request], EngineOptions::default()).unwrap();
        assert_eq!(got[0].tokens, ids(&case["greedy16_f32"]), "{name}");
    }
}

/// Compares every matrix of `gguf/{name}.gguf` with the values of gguf-py. Returns the number of values.
fn quantized(name: &str, seed: u64) -> Result<usize, String> {
    let file = format!("gguf/{name}.gguf");
    let bytes = std::fs::read(path(&file)).unwrap();
    let header = read_header(file.as_ref(), &bytes[..], bytes.len() as u64).map_err(|e| e.to_string())?;
    let mut compared = 0;
    for (tensor, want) in json(&format!("gguf/{name}.json")).as_object().unwrap() {
        let entry = header.tensors.iter().find(|entry| entry.name == *tensor).unwrap();
        let got = entry.read(file.as_ref(), &mut std::io::Cursor::new(&bytes)).unwrap().data;
        compared += got.len();
        let got = sha(got);
        if want.as_str() != Some(&got) {
            let quant = entry.quant;
            return Err(format!(
                "gate {name}, seed {seed}: {tensor} ({quant}): got values {got}, want {want}"
            ));
        }
    }
    let opened = store::open(&path(&file), Dtype::F32, &Device::cpu()).map_err(|e| e.to_string())?;
    assert!(logits(&opened.model, &[1, 2, 3]).iter().all(|x| x.is_finite()));
    Ok(compared)
}

/// `Q4_K`, `Q5_K`, `Q6_K`.
pub(crate) fn k_quants() -> Result<usize, String> {
    quantized("k_quants", 14)
}

/// `Q4_1`, `Q5_0`, `Q5_1`, `IQ4_NL`, `IQ4_XS`, `Q2_K`, `Q3_K`.
pub(crate) fn small_quants() -> Result<usize, String> {
    quantized("small_quants", 15)
}

#[test]
fn k_quants_have_the_values_of_gguf_py() {
    assert_eq!(k_quants(), Ok(56 * 1024));
}

#[test]
fn smaller_quantized_types_have_the_values_of_gguf_py() {
    assert_eq!(small_quants(), Ok(56 * 1024));
}

/// The values of a parameter.
fn values_of(model: &Model, name: &str) -> Vec<f32> {
    let param = model.params.iter().find(|p| p.name() == name).unwrap();
    param.value().unwrap().to_vec().unwrap()
}

/// A llama file has the rows of a bias in the order of the rows of its matrix: llama.cpp's converter permutes both. The
/// biases of the model are the first columns of their matrices. Returns the number of compared values.
pub(crate) fn biases() -> Result<usize, String> {
    let biases = Biases { qkv: true, o: true, mlp: true };
    let cfg = Config {
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 8,
        biases,
        qk_norm: false,
        ..Config::tiny()
    };
    let mut model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 14).map_err(|e| e.to_string())?;
    let of_bias: Vec<Option<Vec<f32>>> = model
        .params
        .iter()
        .map(|p| p.name().strip_suffix(".bias").map(|stem| values_of(&model, &format!("{stem}.weight"))))
        .collect();
    for (bias, matrix) in model.params.iter_mut().zip(of_bias) {
        let Some(matrix) = matrix else { continue };
        let bias = bias.value_mut().unwrap().data_mut::<f32>().unwrap();
        let width = matrix.len() / bias.len();
        bias.iter_mut().zip(matrix.chunks(width)).for_each(|(to, row)| *to = row[0]);
    }
    let scratch = Scratch::new("llama-biases");
    let file = scratch.0.join("model.gguf");
    let source = ExportSource { model: &model, tokenizer: None, eos: &[] };
    export::gguf(&file, &source, Quant::F32).map_err(|e| e.to_string())?;
    let bytes = std::fs::read(&file).unwrap();
    let header = read_header(&file, &bytes[..], bytes.len() as u64).map_err(|e| e.to_string())?;
    let read = |name: String| {
        let entry = header.tensors.iter().find(|entry| entry.name == name).unwrap();
        entry.read(&file, &mut std::io::Cursor::new(&bytes)).unwrap().data
    };
    let mut compared = 0;
    for name in (0..2).flat_map(|layer| ["q", "k", "v"].map(|x| format!("blk.{layer}.attn_{x}"))) {
        let (bias, matrix) = (read(format!("{name}.bias")), read(format!("{name}.weight")));
        let first: Vec<f32> = matrix.chunks(matrix.len() / bias.len()).map(|row| row[0]).collect();
        compare_bits(&bias, &first).map_err(|e| format!("gate llama biases, seed 14: {name}.bias: {e}"))?;
        compared += bias.len();
    }
    let again = store::open(&file, Dtype::F32, &Device::cpu()).map_err(|e| e.to_string())?.model;
    for param in model.params.iter() {
        let (got, want) = (values_of(&again, param.name()), values_of(&model, param.name()));
        compare_bits(&got, &want)
            .map_err(|e| format!("gate llama biases, seed 14: {}: {e}", param.name()))?;
    }
    Ok(compared)
}

#[test]
fn the_biases_of_a_llama_file_have_the_row_order_of_their_matrices() {
    let compared = biases().unwrap_or_else(|difference| panic!("{difference}"));
    println!("llama biases: {compared} values, 0 differ");
}

/// The ids of the tokens that begin, end and pad a text: the metadata of each file, and `config.json` of the directory
/// that it is exported to.
pub(crate) fn ids_of_tokens() -> Result<usize, String> {
    let (mut compared, mut both) = (0, 0);
    for case in json("gguf/ref.json")["files"].as_array().unwrap() {
        let name = case["file"].as_str().unwrap();
        let loaded = store::open(&path(&format!("gguf/{name}")), Dtype::F32, &Device::cpu()).unwrap();
        let source = ExportSource { model: &loaded.model, tokenizer: None, eos: &loaded.eos };
        let scratch = Scratch::new(&format!("gguf-ids-{name}"));
        export::huggingface(&scratch.0.join("hf"), &source, Quant::F32, u64::MAX).unwrap();
        let config = std::fs::read_to_string(scratch.0.join("hf/config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_str(&config).unwrap();
        let keys = [("bos_token_id", "bos_token_id"), ("padding_token_id", "pad_token_id")];
        for (key, field) in keys {
            let (want, found) = (&case["metadata"][format!("tokenizer.ggml.{key}")], &config[field]);
            if want != found {
                return Err(format!(
                    "gate GGUF ids, seed 0: {name}: {field}: expected {want}, found {found}"
                ));
            }
            compared += 1;
        }
        both += usize::from(keys.iter().all(|(_, field)| config[field].is_u64()));
    }
    assert!(both > 0, "no file has both ids");
    Ok(compared)
}

#[test]
fn the_ids_that_begin_and_pad_a_text_are_those_of_the_file() {
    let n = ids_of_tokens().unwrap_or_else(|e| panic!("{e}"));
    println!("gguf: {n} ids, 0 differ");
}
