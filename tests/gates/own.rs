//! Small gates of single promises, run with and without the faults that they are there to see. The crates have
//! wider ones of their own.
use std::path::Path;
use std::sync::Arc;

use xtrain::decode::SampleOptions;
use xtrain::decode::sampler::{Address, Sampler};
use xtrain::model::checkpoint::{
    CheckpointContents, CheckpointDir, LoadOptions, SimulatedFs, TensorView, newest_good,
};
use xtrain::tensor::ops::{self, AttnMask, LossRows, Samples, Slots, Target, Weight};
use xtrain::tensor::testing::{arbitrary, compare_bits};
use xtrain::tensor::{Device, Dtype, Simd, Tensor};

use crate::dice::Dice;

pub(crate) const SEED: u64 = 20_251_120;

/// How many values were compared; else the gate and what it saw.
pub(crate) type Seen = Result<usize, String>;

fn differ<T>(gate: &str, what: impl std::fmt::Display) -> Result<T, String> {
    Err(format!("gate {gate}, seed {SEED}: {what}"))
}

fn refused(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Of equal largest logits greedy takes the first.
pub(crate) fn ties() -> Seen {
    let mut sampler = Sampler::new(SampleOptions::greedy()).map_err(refused)?;
    let mut dice = Dice::new(SEED, 0);
    for n in 0..200 {
        let mut row: Vec<f32> = (0..dice.between(2, 70)).map(|_| dice.below(100) as f32 - 100.0).collect();
        let [first, second] = [(); 2].map(|()| dice.below(row.len()));
        (row[first], row[second]) = (1.5, 1.5);
        let address = Address { seed: SEED, id: n, position: 0 };
        let token = sampler.pick(&row, &[], address).map_err(refused)?.token as usize;
        if token != first.min(second) {
            return differ("ties", format!("row {n}: token {token}, equal largest at {first} and {second}"));
        }
    }
    Ok(200)
}

/// Each token with a weight is drawn by the least number of its range.
pub(crate) fn ranges() -> Seen {
    let mut row = vec![0.0; 5000];
    xtrain::tensor::fill_normal(SEED, 0, 12.0, &mut row);
    let mut sampler = Sampler::new(SampleOptions::default()).map_err(refused)?;
    let distribution = sampler.distribution(&row, &[]).map_err(refused)?;
    let mut before = 0u128;
    for (token, &weight) in distribution.weights().iter().enumerate().filter(|w| *w.1 > 0) {
        let least = (before << 64).div_ceil(u128::from(distribution.total())) as u64;
        let drawn = distribution.token(least) as usize;
        if drawn != token {
            return differ("ranges", format!("{least:016x} draws token {drawn}, want {token}"));
        }
        before += u128::from(weight);
    }
    Ok(row.len())
}

/// An attention does not end in -0, on any instructions and on two threads: the mean of the least negative
/// number and of zeros is too small for f32.
pub(crate) fn zero() -> Seen {
    let rows = 600;
    let (seq, pos): (Vec<u32>, Vec<u32>) = (0..rows).flat_map(|s| [(s, 0), (s, 1)]).unzip();
    let base = (0..rows as usize).map(|s| 2 * s).collect();
    let slots = Slots::Runs { base };
    let see = AttnMask { seq: &seq, pos: &pos, slots: &slots, window: None };
    let cpus = Simd::available().map(|simd| Device::cpu_with(2, simd));
    for device in [Device::reference()].into_iter().chain(cpus) {
        let zeros = Tensor::zeros(&device, &[2 * rows as usize, 1, 2], Dtype::F32).map_err(refused)?;
        let (q, k, mut v) = (zeros.clone(), zeros.clone(), zeros);
        let least = f32::from_bits(1 << 31 | 1);
        v.data_mut::<f32>().map_err(refused)?.chunks_exact_mut(4).for_each(|v| v[0] = least);
        let (y, _) = ops::attention(&q, &k, &v, &see).map_err(refused)?;
        let y = y.data::<f32>().map_err(refused)?;
        if let Some(at) = y.iter().position(|y| y.to_bits() == 1 << 31) {
            return differ("zero", format!("row {} on {device} is -0", at / 2));
        }
    }
    Ok(4 * rows as usize)
}

/// A power cut at any instant of two saves finds nothing torn, and what was acknowledged.
pub(crate) fn power_cuts() -> Seen {
    let fs = SimulatedFs::default();
    fs.start_history();
    let run = Path::new("run");
    let checkpoints = CheckpointDir::open(Arc::new(fs.clone()), run, 2).map_err(refused)?;
    let mut promised = vec![(0, None)];
    for step in [1, 2] {
        let data = [step as f32, -0.0, 1e-40];
        let norm = TensorView { name: "model.norm.weight", shape: &[3], data: &data };
        let config = serde_json::json!({ "hidden_size": 3 });
        let (numerics, dtype, model, files) = ("1", "f32", &[norm][..], &[][..]);
        let snapshot =
            CheckpointContents { config: &config, numerics, dtype, step, model, files, trainer: None };
        let _ = checkpoints.save(&snapshot).map_err(refused)?;
        promised.push((fs.history().len(), Some(step)));
    }
    let mut cuts = 0;
    for (at, moment) in fs.history().into_iter().chain([fs.fork()]).enumerate() {
        let due = promised.iter().rev().find(|p| p.0 <= at).and_then(|p| p.1);
        let mut dice = Dice::new(SEED, at as u64);
        for draw in 0..60 {
            let after = moment.power_cut(&mut |n| if draw == 0 { 0 } else { dice.below(n) });
            let found = newest_good(&after, run, &LoadOptions::default());
            let step = match &found {
                Ok(found) if !found.refused.is_empty() => {
                    return differ("power cuts", format!("moment {at}, draw {draw}: {}", found.refused[0]));
                }
                Ok(found) => Some(found.loaded.step),
                Err(_) => None,
            };
            if step < due {
                return differ("power cuts", format!("moment {at}, draw {draw}: {step:?}, saved {due:?}"));
            }
            cuts += 1;
        }
    }
    Ok(cuts)
}

/// The gradient of a row is the same alone, where its logits are one product, and among 300, where the
/// vocabulary is taken in chunks.
pub(crate) fn vocabulary() -> Seen {
    let (n, v, c, device) = (300, 20_000, 3, Device::cpu_with(2, Simd::detect()));
    let head = Tensor::new(&device, &[v, c], arbitrary(v * c, SEED)).map_err(refused)?;
    let head = Weight::new(&head, Dtype::F32).map_err(refused)?;
    let x = arbitrary(n * c, SEED + 1);
    let gradient = |rows: std::ops::Range<usize>| -> Result<Vec<f32>, String> {
        let target = |i: usize| Some(Target { id: (i * 61) as u32, weight: 1.0, bonus: 0.0 });
        let targets: Vec<_> = rows.clone().map(target).collect();
        let samples = Samples::of_lengths([rows.len()]);
        let rows_of = LossRows { targets: &targets, samples: &samples, temperature: 1.0, top_k: None };
        let x = Tensor::new(&device, &[rows.len(), c], x[rows.start * c..rows.end * c].to_vec());
        let mut dhead = Tensor::zeros(&device, &[v, c], Dtype::F32).map_err(refused)?;
        let x = x.map_err(refused)?;
        let (_, dx) =
            ops::cross_entropy_backward(&x, &head, &rows_of, &mut 0.0, &mut dhead).map_err(refused)?;
        Ok(dx.data::<f32>().map_err(refused)?.to_vec())
    };
    let together = gradient(0..n)?;
    for row in [0, 7, 255, 256, 299] {
        let alone = gradient(row..row + 1)?;
        if let Err(what) = compare_bits(&together[row * c..][..c], &alone) {
            return differ("vocabulary", format!("row {row}: {what}"));
        }
    }
    Ok(5 * c)
}

/// Two lists of ids, one after another, each give their own rows.
pub(crate) fn lists(device: &Device) -> Seen {
    let table = arbitrary(5 * 3, SEED);
    let w = Tensor::new(device, &[5, 3], table.clone()).map_err(refused)?;
    for id in [[0u32, 1, 2], [3, 4, 0]] {
        let got = ops::embedding(&w, &id, Dtype::F32).and_then(|y| y.to_vec::<f32>()).map_err(refused)?;
        let want: Vec<f32> = id.iter().flat_map(|&i| table[i as usize * 3..][..3].to_vec()).collect();
        compare_bits(&got, &want).or_else(|e| differ("lists", format!("rows {id:?} on {device}: {e}")))?;
    }
    Ok(18)
}

/// What is added to a clone does not reach its origin.
pub(crate) fn sharing(device: &Device) -> Seen {
    let values = arbitrary(40, SEED);
    let origin = Tensor::new(device, &[40], values.clone()).map_err(refused)?;
    let mut clone = origin.clone();
    ops::accumulate(&mut clone, &origin).map_err(refused)?;
    let got = origin.to_vec::<f32>().map_err(refused)?;
    compare_bits(&got, &values).or_else(|e| differ("sharing", format!("on {device}: {e}")))?;
    Ok(40)
}

/// The same kernels with other arguments, again and again: a graph from the second time on.
pub(crate) fn graphs(device: &Device) -> Seen {
    let (x, gain) = (arbitrary(3 * 40, SEED), arbitrary(40, SEED + 1));
    for eps in [1e-6, 1e-3, 0.1, 3.0] {
        let run = |device: &Device| {
            let x = Tensor::new(device, &[3, 40], x.clone())?;
            let gain = Tensor::new(device, &[40], gain.clone())?;
            let y = ops::rms_norm(&x, &gain, eps, Dtype::F32)?;
            let z = ops::silu_mul(&y, &x, Dtype::F32)?;
            let z = ops::add(&ops::add(&z, &y)?, &x)?;
            ops::rms_norm(&z, &gain, eps, Dtype::F32)?.to_vec::<f32>()
        };
        let (got, want) = (run(device).map_err(refused)?, run(&Device::cpu()).map_err(refused)?);
        compare_bits(&got, &want).or_else(|e| differ("graphs", format!("eps {eps} on {device}: {e}")))?;
    }
    Ok(4 * 120)
}
