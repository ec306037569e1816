//! Round trips and refusals of prefix files.
use tempfile::tempdir;
use xtrain_model::Config;
use xtrain_tensor::RopeScaling;

use super::*;
use crate::{Engine, EngineOptions, PrefixCaching, Request};

fn model(cfg: &Config, compute: Dtype, seed: u64) -> Model {
    Model::init(cfg, compute, &Device::cpu(), seed).unwrap()
}

/// The rows of `tokens`, computed by an engine.
fn prefix(model: &Model, tokens: &[u32]) -> KvPrefix {
    let mut engine = Engine::new(model, EngineOptions::default()).unwrap();
    engine.submit(Request::greedy(tokens, 2)).unwrap();
    engine.step().unwrap();
    let snapshot = engine.snapshot(0).unwrap();
    let prefix = engine.read_snapshot(snapshot).unwrap();
    assert!(engine.release_snapshot(snapshot) && !engine.release_snapshot(snapshot));
    assert!(engine.read_snapshot(snapshot).is_err());
    prefix
}

fn tokens(n: u32) -> Vec<u32> {
    (0..n).map(|t| 7 * t % 257).collect()
}

#[test]
fn a_prefix_is_read_back_bit_for_bit_and_has_the_length_of_its_formula() {
    let dir = tempdir().unwrap();
    for (compute, bytes) in [(Dtype::F32, 4), (Dtype::BF16, 2)] {
        let model = model(&Config::tiny(), compute, 1);
        let (saved, identity) = (prefix(&model, &tokens(37)), PrefixIdentity::of(&model, "sha256:1"));
        let path = dir.path().join(compute.to_string());
        saved.save(&path, &identity).unwrap();
        let loaded = KvPrefix::load(&path, &model, &identity).unwrap();
        assert_eq!((loaded.tokens(), loaded.rows().len()), (&tokens(37)[..], 37));
        let same = |(a, b): (&Tensor, &Tensor)| match compute {
            Dtype::BF16 => a.data::<bf16>().unwrap() == b.data::<bf16>().unwrap(),
            _ => a.data::<f32>().unwrap() == b.data::<f32>().unwrap(),
        };
        let [a, b] = [&saved, &loaded].map(|prefix| prefix.rows().layers().iter().flatten());
        assert!(a.zip(b).all(same));
        let data = 2 * 2 * 2 * 8 * bytes * 37;
        let header = std::fs::metadata(&path).unwrap().len() - data;
        assert!(header < 3000, "{header} bytes besides the rows");
    }
}

#[test]
fn a_file_of_another_model_is_refused_by_name() {
    let dir = tempdir().unwrap();
    let own = Config::tiny();
    let first = model(&own, Dtype::F32, 1);
    let path = dir.path().join("prefix");
    prefix(&first, &tokens(20)).save(&path, &PrefixIdentity::of(&first, "sha256:1")).unwrap();
    let refusal = |model: &Model, weights: &str| {
        let loaded = KvPrefix::load(&path, model, &PrefixIdentity::of(model, weights));
        loaded.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(refusal(&first, "sha256:1"), "");
    let windows = vec![Some(4), None];
    for (cfg, compute, field) in [
        (own.clone(), Dtype::BF16, "dtype: expected bf16, as the model has, found f32"),
        (Config { n_layers: 3, ..own.clone() }, Dtype::F32, "n_layers: expected 3"),
        (Config { n_kv_heads: 4, ..own.clone() }, Dtype::F32, "n_kv_heads: expected 4"),
        (Config { head_dim: 16, ..own.clone() }, Dtype::F32, "head_dim: expected 16"),
        (Config { rope_theta: 1e6, ..own.clone() }, Dtype::F32, "rope_theta: expected 1000000"),
        (
            Config { rope_scaling: RopeScaling::Linear { factor: 2.0 }, ..own.clone() },
            Dtype::F32,
            "rope_scaling: expected Linear",
        ),
        (Config { norm_eps: 1e-5, ..own.clone() }, Dtype::F32, "norm_eps: expected 0.00001"),
        (Config { windows, ..own.clone() }, Dtype::F32, "sliding_window: expected [Some(4), None]"),
        (Config { vocab: 100, ..own.clone() }, Dtype::F32, "tokens: expected token ids below 100, found"),
        (
            Config { max_positions: 19, ..own.clone() },
            Dtype::F32,
            "tokens: expected 1 to 19 tokens, found 20",
        ),
    ] {
        let message = refusal(&model(&cfg, compute, 1), "sha256:1");
        let start = format!("{}: {field}", path.display());
        assert!(message.starts_with(&start), "{start}: {message}");
    }
    let message = refusal(&first, "sha256:2");
    assert!(message.ends_with("weights: expected sha256:2, as the model has, found sha256:1"), "{message}");
}

/// A file whose manifest is valid and whose tensors are not those of the model.
#[test]
fn a_file_with_other_tensors_is_refused_by_name() {
    let dir = tempdir().unwrap();
    let model = model(&Config::tiny(), Dtype::F32, 1);
    let identity = PrefixIdentity::of(&model, "sha256:1");
    let good = prefix(&model, &tokens(9));
    let path = dir.path().join("prefix");
    let mut layers = good.rows().layers().to_vec();
    layers.pop();
    let fewer = KvPrefix::new(tokens(9), KvRows::new(0, layers));
    let shorter = KvPrefix::new(tokens(8), good.rows().clone());
    let none = KvPrefix::new(Vec::new(), good.rows().clone());
    for (prefix, part) in [
        (fewer, "tensor layers.1.keys is missing"),
        (shorter, "tensor layers.0.keys: expected shape [8, 2, 8], found [9, 2, 8]"),
        (none, "tokens: expected 1 to 64 tokens, found 0"),
    ] {
        prefix.save(&path, &identity).unwrap();
        let message = KvPrefix::load(&path, &model, &identity).unwrap_err().to_string();
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn a_prefix_needs_a_paged_cache_with_prefix_caching_and_a_free_slot() {
    let model = model(&Config::tiny(), Dtype::F32, 1);
    let prefix = prefix(&model, &tokens(40));
    let on = EngineOptions { prefix_caching: PrefixCaching::On, max_batch: 1, ..EngineOptions::default() };
    let insert = |options: EngineOptions| {
        let mut engine = Engine::new(&model, options).unwrap();
        engine.insert_prefix(&prefix).map_err(|error| error.to_string())
    };
    let paged = |page| EngineOptions { kv: crate::KvKind::Paged { page }, ..on };
    assert_eq!(insert(paged(16)), Ok(32));
    assert_eq!(insert(EngineOptions { kv_capacity: Some(16), max_seq_len: Some(30), ..paged(8) }), Ok(16));
    let off = insert(EngineOptions { prefix_caching: PrefixCaching::Off, ..on });
    assert_eq!(off, Err("prefix_caching: expected on, to keep the rows of a prefix, found off".into()));
    let growing = insert(EngineOptions { kv: crate::KvKind::Growing, ..on });
    assert_eq!(growing, Err("kv: expected paged, to keep the rows of a prefix, found growing".into()));
    let mut engine = Engine::new(&model, on).unwrap();
    engine.submit(Request::greedy(&[1, 2], 9)).unwrap();
    engine.step().unwrap();
    assert!(engine.insert_prefix(&prefix).unwrap_err().to_string().starts_with("max_batch: "));
}
