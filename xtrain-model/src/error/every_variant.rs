//! Every variant of [`Error`], each from a model, a training example or a cache with one defect.
use xtrain_tensor::{Device, Dtype, Tensor};

use super::*;
use crate::example::{Branch, TrainingExample};
use crate::objective;
use crate::schedule::Schedule;
use crate::{AdamW, Config, Eager, KvStore, KvView, Model, NoCache, OptimConfig, Params, Rows, Trainer};
use xtrain_tensor::testing::named_cases::{check, variants};

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

/// A KV cache that rejects every row.
struct Refusing(Error);

impl KvStore<Eager> for Refusing {
    fn extend(&mut self, _: usize, _: Tensor, _: Tensor, _: &Rows) -> Result<KvView<'_, Tensor>> {
        Err(self.0.clone())
    }
}

/// The error of a forward pass over a KV cache that rejects every row. The caches of xtrain-decode have their own
/// tests.
fn with_cache_error(error: Error) -> Error {
    model().forward(&mut Eager, &mut Refusing(error), &Rows::whole(&[vec![1, 2]])).unwrap_err()
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

fn decreasing_document_starts() -> Error {
    let example = TrainingExample { starts: vec![2, 1], ..TrainingExample::window(&[1, 2, 3, 4], 1.0) };
    objective::evaluate(&model(), &[example], &mut 0.0).unwrap_err()
}

fn fewer_kept_sets_than_tokens() -> Error {
    let example = TrainingExample { kept: vec![None; 2], ..TrainingExample::window(&[1, 2, 3, 4], 1.0) };
    objective::evaluate(&model(), &[example], &mut 0.0).unwrap_err()
}

fn branch_without_a_first_target() -> Error {
    let branch = Branch { inputs: vec![1, 2], targets: vec![None; 2], kept: Vec::new() };
    let example = TrainingExample { inputs: vec![3], branches: vec![branch], ..TrainingExample::default() };
    objective::evaluate(&model(), &[example], &mut 0.0).unwrap_err()
}

fn advantage_in_a_mean() -> Error {
    let mut trainer = Trainer::new(model(), OptimConfig::default(), Schedule::constant(1e-3)).unwrap();
    let error = trainer.step(vec![TrainingExample::window(&[1, 2, 3], -0.5)], 1).unwrap_err();
    assert_eq!(trainer.step_number(), 0);
    error
}

fn weight_that_is_infinite() -> Error {
    let mut trainer = Trainer::new(model(), OptimConfig::default(), Schedule::constant(1e39)).unwrap();
    trainer.step(vec![TrainingExample::window(&[1, 2, 3], 1.0)], 1).unwrap_err()
}

fn step_of_no_shards() -> Error {
    let mut trainer = Trainer::new(model(), OptimConfig::default(), Schedule::constant(1e-3)).unwrap();
    trainer.shards = 0;
    trainer.step(vec![TrainingExample::window(&[1, 2, 3], 1.0)], 1).unwrap_err()
}

fn process_that_has_ended() -> Error {
    let mut trainer = Trainer::new(model(), OptimConfig::default(), Schedule::constant(1e-3)).unwrap();
    trainer.shards = 2;
    let mut processes = crate::comm::ThreadProcess::group(2);
    processes.truncate(1);
    trainer.join(&crate::Processes::new(std::sync::Arc::new(processes.remove(0)))).unwrap();
    trainer.step(vec![TrainingExample::window(&[1, 2, 3], 1.0)], 1).unwrap_err()
}

#[test]
fn every_variant_is_reached_by_a_named_case() {
    let variants = variants!(Error: Tensor Config Parameter NoMasterWeights CacheFull CachePosition CacheLayer
        OffloadedLayer Documents KeptSets LossWeight Branches Processes Communication NotFinite);
    let heads = Model::init(&Config { n_kv_heads: 3, ..cfg() }, Dtype::F32, &Device::cpu(), 1).unwrap_err();
    let gap = Rows { id: vec![1], seq: vec![0], pos: vec![4] };
    let gap = NoCache::<Tensor>::new(&gap).unwrap_err();
    let table = "tensor model.embed_tokens.weight: ";
    check(
        &variants,
        &[
            ("an id beyond the vocabulary", id_beyond_the_vocabulary(), &["embedding: id 8", "8"]),
            ("heads that do not divide", heads, &["config: ", "must be", "found"]),
            ("a wrong number of values", values_of_another_count(), &[table, "[8, 4]", "found 3 values"]),
            (
                "packed matrices in training",
                packed_matrices_in_training(),
                &[table, "store::open keeps them"],
            ),
            (
                "a full cache",
                with_cache_error(Error::CacheFull { seq: 3, pos: 7 }),
                &["position 7 of sequence 3"],
            ),
            ("a gap before a row", gap, &["sequence 0: expected position 0, found 4"]),
            (
                "a layer out of order",
                with_cache_error(Error::CacheLayer { want: 1, got: 0 }),
                &["expected layer 1, found layer 0"],
            ),
            (
                "an offload file that fails",
                with_cache_error(Error::OffloadedLayer { layer: 2, what: "no space".into() }),
                &["layer 2 in the offload file: no space"],
            ),
            (
                "decreasing document starts",
                decreasing_document_starts(),
                &["a training example of 3 tokens", "[2, 1]"],
            ),
            (
                "fewer kept sets than tokens",
                fewer_kept_sets_than_tokens(),
                &["a training example of 3 tokens", "found 2"],
            ),
            (
                "a branch without a first target",
                branch_without_a_first_target(),
                &["with 1 branches", "2 targets for 2 tokens"],
            ),
            (
                "an advantage in a step that takes a mean",
                advantage_in_a_mean(),
                &["expected loss weights of 1, found -0.5", "step_weighted"],
            ),
            ("a step of no shards", step_of_no_shards(), &["expected at least 1 shard, found 0"]),
            ("a process that has ended", process_that_has_ended(), &["process 1 of 2 has ended"]),
            (
                "a weight that is not finite",
                weight_that_is_infinite(),
                &["step 1: the weight model.", " is not finite"],
            ),
        ],
    );
}
