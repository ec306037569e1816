//! Every variant of [`Error`], from a model, a sample or a store that is wrong in one way.
use xtrain_tensor::{Device, Dtype, Tensor};

use super::*;
use crate::named_cases::{check, variants};
use crate::objective::{self, TrainingExample};
use crate::schedule::{Decay, Schedule};
use crate::{AdamW, Config, Eager, KvStore, KvView, Model, NoCache, OptimConfig, Params, Rows, Trainer};

fn cfg() -> Config {
    Config {
        vocab: 8,
        dim: 4,
        ffn_dim: 4,
        n_layers: 2,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 2,
        max_positions: 8,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        ..Config::default()
    }
}

fn model() -> Model {
    Model::init(&cfg(), Dtype::F32, &Device::cpu(), 1).unwrap()
}

/// A store that refuses a layer.
struct Refusing(Error);

impl KvStore<Eager> for Refusing {
    fn extend(&mut self, _: usize, _: Tensor, _: Tensor, _: &Rows) -> Result<KvView<'_, Tensor>> {
        Err(self.0.clone())
    }
}

/// What a pass says over a store that refuses (those of xtrain-decode do, and have tests of when).
fn over(store: Error) -> Error {
    model().forward(&mut Eager, &mut Refusing(store), &Rows::whole(&[vec![1, 2]])).unwrap_err()
}

fn id_beyond_the_vocabulary() -> Error {
    let rows = Rows::whole(&[vec![1, 8]]);
    model().forward(&mut Eager, &mut NoCache::new(&rows).unwrap(), &rows).unwrap_err()
}

fn values_of_another_count() -> Error {
    Params::load(&cfg(), Dtype::F32, &Device::cpu(), |_, _| Ok(vec![0.0; 3])).unwrap_err()
}

fn packed_matrices_in_training() -> Error {
    AdamW::new(OptimConfig::default(), &model().for_inference().unwrap().params).unwrap_err()
}

fn documents_that_fall() -> Error {
    let sample = TrainingExample { starts: vec![2, 1], ..TrainingExample::window(&[1, 2, 3, 4], 1.0) };
    objective::evaluate(&model(), &[sample], &mut 0.0).unwrap_err()
}

fn weight_that_is_infinite() -> Error {
    let rates = Schedule {
        decay: Decay::Constant,
        warmup_start_lr: 0.0,
        lr: 1e39,
        min_lr: 0.0,
        warmup_steps: 0,
        steps: 1,
        decay_steps: 0,
    };
    let mut trainer = Trainer::new(model(), OptimConfig::default(), rates).unwrap();
    trainer.step(vec![TrainingExample::window(&[1, 2, 3], 1.0)], 1).unwrap_err()
}

#[test]
fn every_variant_is_reached_by_a_named_case() {
    let variants = variants!(Error: Tensor Config Parameter NoMasterWeights CacheFull CachePosition CacheLayer Documents
        NotFinite);
    let heads = Model::init(&Config { n_kv_heads: 3, ..cfg() }, Dtype::F32, &Device::cpu(), 1).unwrap_err();
    let apart = Rows { id: vec![1], seq: vec![0], pos: vec![4] };
    let apart = NoCache::<Tensor>::new(&apart).unwrap_err();
    let table = "tensor model.embed_tokens.weight: ";
    check(
        &variants,
        &[
            ("an id beyond the vocabulary", id_beyond_the_vocabulary(), &["embedding: id 8", "8"]),
            ("heads that do not divide", heads, &["config: ", "must be", "got"]),
            ("values of another count", values_of_another_count(), &[table, "[8, 4]", "got 3 values"]),
            (
                "packed matrices in training",
                packed_matrices_in_training(),
                &[table, "store::open keeps them"],
            ),
            ("a full store", over(Error::CacheFull { seq: 3, pos: 7 }), &["position 7 of sequence 3"]),
            ("a row that follows nothing", apart, &["sequence 0 is at position 0, the row at 4"]),
            (
                "a layer out of turn",
                over(Error::CacheLayer { want: 1, got: 0 }),
                &["layer 1's turn, not layer 0's"],
            ),
            ("documents that fall", documents_that_fall(), &["a sample of 3 tokens", "[2, 1]"]),
            (
                "a weight that is not finite",
                weight_that_is_infinite(),
                &["step 1: the weight model.", " is not finite"],
            ),
        ],
    );
}
