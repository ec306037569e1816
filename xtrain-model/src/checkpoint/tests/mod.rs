//! Tests of durability, damage and mutations, on the simulated and the real file system.
mod damage;
mod directory;
mod disk_errors;
mod every_variant;
mod fixtures;
mod mutations;
mod power_cuts;
mod refusals;
mod round_trip;
mod sealed;
mod small_files;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::RngExt as _;
use serde_json::{Value, json};
use tempfile::tempdir;
use xtrain_tensor::rng::PhiloxRng;

use super::fs::{FileSystem, ReadFile};
use super::*;
use crate::test_rng::rng;

/// A tensor that a sample owns.
type Owned = (String, Vec<usize>, Vec<f32>);

/// A checkpoint to be saved, with unusual shapes and values.
#[derive(Clone)]
struct Sample {
    config: Value,
    model: Vec<Owned>,
    optimizer: Vec<Owned>,
    control: Control,
}

impl Sample {
    /// Tensors of a few elements. Samples of different steps or variants differ in every file.
    fn small(step: u64, variant: u64) -> Sample {
        Sample::of(step, variant, &[("model.norm.weight", &[3]), ("lm_head.weight", &[5, 1, 2])])
    }

    /// A model of `shapes` and its optimizer's state.
    fn of(step: u64, variant: u64, shapes: &[(&str, &[usize])]) -> Sample {
        let mut random = rng(step ^ variant.rotate_left(32));
        let mut tensor = |name: String, shape: &[usize]| {
            let elements = shape.iter().product();
            (name, shape.to_vec(), (0..elements).map(|_| random_weight(&mut random)).collect())
        };
        let model = shapes.iter().map(|(name, shape)| tensor((*name).into(), shape)).collect();
        let moments = shapes
            .iter()
            .flat_map(|(name, shape)| [(format!("m.{name}"), shape), (format!("v.{name}"), shape)]);
        let optimizer = moments.map(|(name, shape)| tensor(name, shape)).collect();
        let control = Control {
            step,
            tokens_seen: 96 * step,
            data: Cursor { seed: variant, position: step },
            random: Cursor { seed: variant, position: 2 * step },
            beta1_power: 0.9f64.powi(step as i32),
            beta2_power: 0.95f64.powi(step as i32),
            optimizer: "adamw".into(),
            optimizer_states: vec!["m".into(), "v".into()],
            best_loss: Some(1.5),
            best_step: step,
        };
        Sample {
            config: json!({"hidden_size": 3, "variant": variant, "step": step}),
            model,
            optimizer,
            control,
        }
    }

    /// Calls `save` with the sample as checkpoint contents.
    fn with<R>(&self, save: impl FnOnce(&CheckpointContents<'_>) -> R) -> R {
        let (model, optimizer) = (views(&self.model), views(&self.optimizer));
        let trainer = Some(TrainerView { control: &self.control, optimizer: &optimizer });
        save(&CheckpointContents {
            config: &self.config,
            numerics: "1",
            dtype: "f32",
            step: self.control.step,
            model: &model,
            files: &[("tokenizer.json", b"{\"model\":{}}"), ("generation_config.json", b"{}\n")],
            trainer,
        })
    }

    /// Whether a checkpoint is bit-identical to this sample.
    fn is(&self, loaded: &LoadedCheckpoint) -> bool {
        let trainer = loaded.trainer.as_ref().expect("samples are saved with their trainer");
        self.config == loaded.config
            && self.control == trainer.control
            && loaded.step == self.control.step
            && same(&self.model, &loaded.tensors)
            && same(&self.optimizer, &trainer.optimizer)
    }
}

fn views(tensors: &[Owned]) -> Vec<TensorView<'_>> {
    tensors.iter().map(|(name, shape, data)| TensorView { name, shape, data }).collect()
}

/// Equality by names, shapes and bits.
fn same(want: &[Owned], got: &[NamedTensor]) -> bool {
    let bits = |data: &[f32]| data.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let one = |(want, got): (&Owned, &NamedTensor)| {
        want.0 == got.name && want.1 == got.shape && bits(&want.2) == bits(&got.data)
    };
    want.len() == got.len() && want.iter().zip(got).all(one)
}

/// A random finite f32, including zeros of both signs, denormals and extremes.
fn random_weight(random: &mut PhiloxRng) -> f32 {
    match random.random_range(0..8) {
        0 => -0.0,
        1 => f32::from_bits(random.random_range(0..1 << 23)),
        _ => Some(f32::from_bits(random.random())).filter(|x| x.is_finite()).unwrap_or(f32::MAX),
    }
}

/// A checkpoint directory on a simulated disk.
fn opened(fs: &SimulatedFs) -> CheckpointDir {
    CheckpointDir::open(Arc::new(fs.clone()), run(), 2).expect("nothing is wrong with this disk")
}

fn run() -> &'static Path {
    Path::new("run")
}

/// A disk with one saved checkpoint, and its path.
fn saved(sample: &Sample) -> (SimulatedFs, PathBuf) {
    let fs = SimulatedFs::default();
    let saved = sample.with(|snapshot| opened(&fs).save(snapshot)).expect("nothing is wrong with this disk");
    assert!(saved.not_pruned.is_none());
    (fs, saved.path)
}

fn newest(fs: &SimulatedFs) -> Result<Newest> {
    newest_good(fs, run(), &LoadOptions::default(), &NamedTensor::begin)
}

fn load(fs: &SimulatedFs, dir: &Path, options: &LoadOptions<'_>) -> Result<LoadedCheckpoint> {
    super::load(fs, dir, options, &NamedTensor::begin)
}

fn load_weights(fs: &dyn FileSystem, dir: &Path, options: &LoadOptions<'_>) -> Result<Weights> {
    super::load_weights(fs, dir, options, &NamedTensor::begin)
}

/// The bytes of a file.
fn bytes(fs: &SimulatedFs, path: &Path) -> Vec<u8> {
    let mut file = fs.open(path).unwrap();
    let mut bytes = vec![0; file.length() as usize];
    file.read(&mut bytes).unwrap();
    bytes
}

/// The files of a sample's checkpoint.
const FILES: [&str; 7] = [
    "config.json",
    "tokenizer.json",
    "generation_config.json",
    "model.safetensors",
    "trainer/optimizer.safetensors",
    "trainer/control.bin",
    "manifest.json",
];
