//! Small gates, one promise each. They run with and without the planted faults that they must catch. The crates have
//! wider gates of the same promises.
use std::path::Path;
use std::sync::Arc;

use xtrain::decode::SampleOptions;
use xtrain::decode::sampler::{Address, Sampler};
use xtrain::model::checkpoint::{
    CheckpointContents, CheckpointDir, Control, LoadOptions, NamedTensor, SimulatedFs, TensorView,
    TrainerView, newest_good,
};
use xtrain::tensor::ops::{self, AttnMask, AttnSaved, LossRows, SampleRow, Samples, Slots, Target, Weight};
use xtrain::tensor::testing::{arbitrary, compare_bits, simds};
use xtrain::tensor::{Device, Dtype, Simd, Tensor};

use crate::rng::CaseRng;

pub(crate) const SEED: u64 = 20_251_120;

/// The number of compared values, or the name of the gate and the first difference.
pub(crate) type Checked = Result<usize, String>;

fn differ<T>(gate: &str, what: impl std::fmt::Display) -> Result<T, String> {
    Err(format!("gate {gate}, seed {SEED}: {what}"))
}

fn error(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Greedy sampling takes the first of several equal maxima.
pub(crate) fn ties() -> Checked {
    let mut sampler = Sampler::new(SampleOptions::greedy()).map_err(error)?;
    let mut rng = CaseRng::new(SEED, 0);
    for n in 0..200 {
        let mut row: Vec<f32> = (0..rng.between(2, 70)).map(|_| rng.below(100) as f32 - 100.0).collect();
        let [first, second] = [(); 2].map(|()| rng.below(row.len()));
        (row[first], row[second]) = (1.5, 1.5);
        let address = Address { seed: SEED, id: n, position: 0 };
        let token = sampler.pick(&row, &[], address).map_err(error)?.token as usize;
        if token != first.min(second) {
            return differ("ties", format!("row {n}: token {token}, equal maxima at {first} and {second}"));
        }
    }
    Ok(200)
}

/// The smallest random number of each token's range samples that token.
pub(crate) fn ranges() -> Checked {
    let mut row = vec![0.0; 5000];
    xtrain::tensor::fill_normal(SEED, 0, 12.0, &mut row);
    let mut sampler = Sampler::new(SampleOptions::default()).map_err(error)?;
    let distribution = sampler.distribution(&row, &[]).map_err(error)?;
    let mut before = 0u128;
    for (token, &weight) in distribution.weights().iter().enumerate().filter(|w| *w.1 > 0) {
        let smallest = (before << 64).div_ceil(u128::from(distribution.total())) as u64;
        let drawn = distribution.token(smallest) as usize;
        if drawn != token {
            return differ("ranges", format!("{smallest:016x} draws token {drawn}, want {token}"));
        }
        before += u128::from(weight);
    }
    Ok(row.len())
}

/// Attention never returns -0, on any instruction set and on two threads: the mean of zeros and of the negative
/// denormal closest to zero underflows.
pub(crate) fn zero() -> Checked {
    let rows = 600;
    let (seq, pos): (Vec<u32>, Vec<u32>) = (0..rows).flat_map(|s| [(s, 0), (s, 1)]).unzip();
    let base = (0..rows as usize).map(|s| 2 * s).collect();
    let slots = Slots::Runs { base };
    let mask = AttnMask { seq: &seq, pos: &pos, slots: &slots, window: None };
    let cpus = simds().into_iter().map(|simd| Device::cpu_with(2, simd));
    for device in [Device::reference()].into_iter().chain(cpus) {
        let zeros = Tensor::zeros(&device, &[2 * rows as usize, 1, 2], Dtype::F32).map_err(error)?;
        let (q, k, mut v) = (zeros.clone(), zeros.clone(), zeros);
        let tiny = f32::from_bits(1 << 31 | 1);
        v.data_mut::<f32>().map_err(error)?.chunks_exact_mut(4).for_each(|v| v[0] = tiny);
        let (y, _) = ops::attention(&q, &k, &v, &mask).map_err(error)?;
        let y = y.data::<f32>().map_err(error)?;
        if let Some(at) = y.iter().position(|y| y.to_bits() == 1 << 31) {
            return differ("zero", format!("row {} is -0 on {device}", at / 2));
        }
    }
    Ok(4 * rows as usize)
}

/// After a power cut at any instant of two saves, no checkpoint is torn and every acknowledged save is found.
pub(crate) fn power_cuts() -> Checked {
    let fs = SimulatedFs::default();
    fs.start_history();
    let run = Path::new("run");
    let checkpoints = CheckpointDir::open(Arc::new(fs.clone()), run, 2).map_err(error)?;
    let mut acknowledged = vec![(0, None)];
    for step in [1, 2] {
        save(&checkpoints, step)?;
        acknowledged.push((fs.history().len(), Some(step)));
    }
    let mut cuts = 0;
    for (at, moment) in fs.history().into_iter().chain([fs.fork()]).enumerate() {
        let expected = acknowledged.iter().rev().find(|p| p.0 <= at).and_then(|p| p.1);
        let mut rng = CaseRng::new(SEED, at as u64);
        for draw in 0..60 {
            let after = moment.power_cut(&mut |n| if draw == 0 { 0 } else { rng.below(n) });
            let found = newest_good(&after, run, &LoadOptions::default(), &NamedTensor::begin);
            let step = match &found {
                Ok(found) if !found.refused.is_empty() => {
                    return differ("power cuts", format!("moment {at}, draw {draw}: {}", found.refused[0]));
                }
                Ok(found) => Some(found.loaded.step),
                Err(_) => None,
            };
            if step < expected {
                return differ(
                    "power cuts",
                    format!("moment {at}, draw {draw}: found {step:?}, saved {expected:?}"),
                );
            }
            cuts += 1;
        }
    }
    Ok(cuts)
}

/// A process that ends between two calls while it makes the directories of a run leaves nothing behind that loses a
/// checkpoint of the next process: a power cut after its save does not undo a directory. Returns the number of disks.
pub(crate) fn new_directories() -> Checked {
    let fs = SimulatedFs::default();
    fs.start_history();
    let run = Path::new("runs/run");
    let open = |fs: &SimulatedFs| CheckpointDir::open(Arc::new(fs.clone()), run, 2).map_err(error);
    open(&fs)?;
    let mut cuts = 0;
    for (at, fs) in fs.history().into_iter().enumerate() {
        save(&open(&fs)?, 1)?;
        let mut rng = CaseRng::new(SEED, at as u64);
        for draw in 0..20 {
            let after = fs.power_cut(&mut |n| if draw == 0 { 0 } else { rng.below(n) });
            if let Err(e) = newest_good(&after, run, &LoadOptions::default(), &NamedTensor::begin) {
                let what = format!("the first process ends before call {at}, draw {draw}");
                return differ("new directories", format!("{what}: a saved checkpoint is lost: {e}"));
            }
            cuts += 1;
        }
    }
    Ok(cuts)
}

/// Saves a checkpoint of `step`.
fn save(checkpoints: &CheckpointDir, step: u64) -> Result<(), String> {
    let data = [step as f32, -0.0, 1e-40];
    let norm = TensorView { name: "model.norm.weight", shape: &[3], data: &data };
    let m = TensorView { name: "m.model.norm.weight", shape: &[3], data: &data };
    let optimizer_states = vec!["m".into()];
    let control = Control { step, optimizer: "adamw".into(), optimizer_states, ..Control::default() };
    let config = serde_json::json!({ "hidden_size": 3 });
    let (numerics, dtype, model, files) = ("1", "f32", &[norm][..], &[][..]);
    let trainer = Some(TrainerView { control: &control, optimizer: &[m] });
    let snapshot = CheckpointContents { config: &config, numerics, dtype, step, model, files, trainer };
    checkpoints.save(&snapshot).map(|_| ()).map_err(error)
}

/// A row has the same gradient alone, where its logits are one product, and in a batch of 300 rows, where the
/// vocabulary is processed in chunks.
pub(crate) fn vocabulary() -> Checked {
    let (n, v, c, device) = (300, 20_000, 3, Device::cpu_with(2, Simd::detect()));
    // each row of the head occurs 200 times, so that logits in both chunks are equal to the last one that top-k keeps
    let head = arbitrary(v / 200 * c, SEED).repeat(200);
    let head = Tensor::new(&device, &[v, c], head).map_err(error)?;
    let head = Weight::new(&head, Dtype::F32).map_err(error)?;
    let x = arbitrary(n * c, SEED + 1);
    let gradient = |rows: std::ops::Range<usize>, top_k| -> Result<Vec<f32>, String> {
        let target = |i: usize| Some(Target { id: (i * 61) as u32, weight: 1.0, bonus: 0.0 });
        let targets: Vec<_> = rows.clone().map(target).collect();
        let samples = Samples::of_lengths([rows.len()]);
        let rows_of = LossRows { top_k, ..LossRows::new(&targets, &samples) };
        let x = Tensor::new(&device, &[rows.len(), c], x[rows.start * c..rows.end * c].to_vec());
        let mut dhead = Tensor::zeros(&device, &[v, c], Dtype::F32).map_err(error)?;
        let x = x.map_err(error)?;
        let (_, dx) =
            ops::cross_entropy_backward(&x, &head, &rows_of, &mut 0.0, &mut dhead).map_err(error)?;
        Ok(dx.data::<f32>().map_err(error)?.to_vec())
    };
    for top_k in [None, Some(150)] {
        let together = gradient(0..n, top_k)?;
        for row in [0, 7, 255, 256, 299] {
            let alone = gradient(row..row + 1, top_k)?;
            if let Err(what) = compare_bits(&together[row * c..][..c], &alone) {
                return differ("vocabulary", format!("row {row}, top-k {top_k:?}: {what}"));
            }
        }
    }
    Ok(2 * 5 * c)
}

/// Of equal logits, top-k keeps the first ones: -0 and +0 are equal. Returns the number of rows.
pub(crate) fn zeros() -> Checked {
    let (device, v) = (Device::cpu(), 6);
    // divided by the temperature, the third logit is -0
    let head = [1.0, 3.0, -f32::from_bits(1), 3.0, 0.0, 3.0].to_vec();
    let head = Tensor::new(&device, &[v, 1], head).map_err(error)?;
    let head = Weight::new(&head, Dtype::F32).map_err(error)?;
    let x = Tensor::new(&device, &[1, 1], vec![1f32]).map_err(error)?;
    let targets = [Some(Target { id: 1, weight: 1.0, bonus: 0.5 })];
    let samples = Samples::of_lengths([1]);
    for (k, want) in [(4, vec![0, 1, 3, 5]), (5, vec![0, 1, 2, 3, 5])] {
        let rows = LossRows { top_k: Some(k), temperature: 4.0, ..LossRows::new(&targets, &samples) };
        let mut dhead = Tensor::zeros(&device, &[v, 1], Dtype::F32).map_err(error)?;
        let _ = ops::cross_entropy_backward(&x, &head, &rows, &mut 0.0, &mut dhead).map_err(error)?;
        let dhead = dhead.data::<f32>().map_err(error)?;
        let kept: Vec<_> = (0..v).filter(|&i| dhead[i] != 0.0).collect();
        if kept != want {
            return differ("zeros", format!("top-k {k} keeps {kept:?}, expected {want:?}"));
        }
    }
    Ok(2)
}

/// The gradient of a loss with entropy bonuses of one sign, or of none, has the bits of the CPU.
pub(crate) fn bonuses(device: &Device) -> Checked {
    let (n, v, c) = (7, 300, 5);
    let (x, w) = (arbitrary(n * c, SEED), arbitrary(v * c, SEED + 1));
    let gradients = |device: &Device, bonus: f32| -> Result<Vec<f32>, String> {
        let target = |i: usize| {
            let bonus = [bonus, 0.0][i % 2];
            Some(Target { id: (i * 41) as u32, weight: 0.5, bonus })
        };
        let (targets, samples) = ((0..n).map(target).collect::<Vec<_>>(), Samples::of_lengths([n]));
        let head = Tensor::new(device, &[v, c], w.clone()).map_err(error)?;
        let head = Weight::new(&head, Dtype::F32).map_err(error)?;
        let x = Tensor::new(device, &[n, c], x.clone()).map_err(error)?;
        let (rows, mut loss) = (LossRows::new(&targets, &samples), 0.0);
        let mut dhead = Tensor::zeros(device, &[v, c], Dtype::F32).map_err(error)?;
        let (values, dx) =
            ops::cross_entropy_backward(&x, &head, &rows, &mut loss, &mut dhead).map_err(error)?;
        let values = values.into_iter().flatten().map(|value| value.entropy);
        let [dx, dhead] = [dx, dhead].map(|x| x.to_vec::<f32>().map_err(error));
        Ok([values.collect(), dx?, dhead?].concat())
    };
    let mut compared = 0;
    for bonus in [0.01, -0.01, 0.0] {
        let (got, want) = (gradients(device, bonus)?, gradients(&Device::cpu(), bonus)?);
        compare_bits(&got, &want)
            .or_else(|e| differ("bonuses", format!("a bonus of {bonus} on {device}: {e}")))?;
        compared += want.len();
    }
    Ok(compared)
}

/// Gradients of attention in bf16 that are near the smallest normal number are flushed as in the reference.
pub(crate) fn tiny_gradients() -> Checked {
    let (n, heads, hd) = (40, 2, 32);
    let gradients = |device: &Device| -> Result<[Vec<f32>; 3], String> {
        let tensor =
            |seed| Tensor::new(device, &[n, heads, hd], arbitrary(n * heads * hd, seed)).map_err(error);
        let bf16 = |seed| tensor(seed)?.cast(Dtype::BF16).map_err(error);
        let (q, k, v) = (bf16(SEED)?, bf16(SEED + 1)?, bf16(SEED + 2)?);
        let tiny: Vec<f32> =
            arbitrary(n * heads * hd, SEED + 3).iter().map(|x| x * 0.5f32.powi(121)).collect();
        let dy = Tensor::new(device, &[n, heads, hd], tiny).map_err(error)?;
        let (seq, pos): (Vec<u32>, Vec<u32>) = (vec![0; n], (0..n as u32).collect());
        let slots = Slots::Runs { base: vec![0] };
        let mask = AttnMask { seq: &seq, pos: &pos, slots: &slots, window: None };
        let (y, lse) = ops::attention(&q, &k, &v, &mask).map_err(error)?;
        let saved = AttnSaved { q: &q, k: &k, v: &v, y: &y, lse: &lse };
        let [dq, dk, dv] = ops::attention_backward(&saved, &dy, &mask).map_err(error)?;
        let values = |x: Tensor| x.to_vec::<f32>().map_err(error);
        Ok([values(dq)?, values(dk)?, values(dv)?])
    };
    let want = gradients(&Device::reference())?;
    for simd in simds() {
        let got = gradients(&Device::cpu_with(1, simd))?;
        for ((got, want), name) in got.iter().zip(&want).zip(["dq", "dk", "dv"]) {
            if let Err(what) = compare_bits(got, want) {
                return differ("tiny gradients", format!("{name} on {simd}: {what}"));
            }
        }
    }
    Ok(3 * n * heads * hd * simds().len())
}

/// At a bound that is met exactly, the loss keeps the tokens that the sampler keeps: the probabilities removed by
/// top-p add up to `1 - top_p`, or a probability is `min_p` times the largest.
pub(crate) fn kept_sets() -> Checked {
    let device = Device::cpu();
    let below = (-0.75f32, xtrain::tensor::math::exp(-0.75));
    for (logits, top_p, min_p) in [
        (vec![0.25f32; 10], 0.5, 0.0),
        (vec![-1.5; 200], 0.75, 0.0),
        (vec![0.0, below.0, -3.0, 0.0, below.0], 1.0, below.1),
        (vec![2.0, 1.0, 2.0], 1.0, 1.0),
    ] {
        let v = logits.len();
        let x = Tensor::new(&device, &[1, v], logits.clone()).map_err(error)?;
        let row = |id| SampleRow {
            seed: SEED,
            id,
            position: 0,
            temperature: 1.0,
            top_k: 0,
            top_p,
            min_p,
            penalty: 1.0,
            seen: &[],
        };
        let sampled = ops::sample_rows(&x, &[row(3)]).map_err(error)?[0].map_err(error)?;
        let targets = [Some(Target { id: sampled.token, weight: 1.0, bonus: 0.0 })];
        let samples = Samples::of_lengths([1]);
        let rows = LossRows { top_p, min_p, ..LossRows::new(&targets, &samples) };
        let head = Tensor::new(&device, &[v, 1], logits).map_err(error)?;
        let head = Weight::new(&head, Dtype::F32).map_err(error)?;
        let x = Tensor::new(&device, &[1, 1], vec![1f32]).map_err(error)?;
        let values = ops::cross_entropy(&x, &head, &rows, &mut 0.0).map_err(error)?;
        let got = values[0].map_or(f32::NAN, |value| value.log_prob);
        if got.to_bits() != sampled.processed.to_bits() {
            let want = sampled.processed;
            let bits = [got, want].map(f32::to_bits);
            let values = format!("log-probability {got:e}, expected {want:e}, bits {bits:08x?}");
            return differ("kept sets", format!("{v} logits, top-p {top_p}, min-p {min_p}: {values}"));
        }
    }
    Ok(4)
}

/// Two lists of ids, one after the other, each return their own rows.
pub(crate) fn lists(device: &Device) -> Checked {
    let table = arbitrary(5 * 3, SEED);
    let w = Tensor::new(device, &[5, 3], table.clone()).map_err(error)?;
    for id in [[0u32, 1, 2], [3, 4, 0]] {
        let got = ops::embedding(&w, &id, Dtype::F32).and_then(|y| y.to_vec::<f32>()).map_err(error)?;
        let want: Vec<f32> = id.iter().flat_map(|&i| table[i as usize * 3..][..3].to_vec()).collect();
        compare_bits(&got, &want).or_else(|e| differ("lists", format!("rows {id:?} on {device}: {e}")))?;
    }
    Ok(18)
}

/// Adding to a clone does not change the original.
pub(crate) fn sharing(device: &Device) -> Checked {
    let values = arbitrary(40, SEED);
    let original = Tensor::new(device, &[40], values.clone()).map_err(error)?;
    let mut clone = original.clone();
    ops::accumulate(&mut clone, &original).map_err(error)?;
    let got = original.to_vec::<f32>().map_err(error)?;
    compare_bits(&got, &values).or_else(|e| differ("sharing", format!("on {device}: {e}")))?;
    Ok(40)
}

/// Products of many rows in bf16 with two weights, of enough tiles that TMA reads the operands: the first row of each has the
/// bits that it has alone.
pub(crate) fn tensor_maps(device: &Device) -> Checked {
    let (rows, outs, width) = (1100, 1000, 16);
    let x = arbitrary(rows * width, SEED);
    let on = |shape: &[usize], x: &[f32]| Tensor::new(device, shape, x.to_vec());
    let weight = |seed| Weight::new(&on(&[outs, width], &arbitrary(outs * width, seed))?, Dtype::BF16);
    // both at once: each has an address of its own
    let weights = [weight(SEED + 1), weight(SEED + 2)];
    let mut compared = 0;
    for (i, w) in weights.into_iter().collect::<Result<Vec<_>, _>>().map_err(error)?.iter().enumerate() {
        let run = |rows: usize| {
            let x = on(&[rows, width], &x[..rows * width])?.cast(Dtype::BF16)?;
            ops::linear(&x, w, None, Dtype::F32)?.to_vec::<f32>()
        };
        let (many, one) = (run(rows).map_err(error)?, run(1).map_err(error)?);
        compare_bits(&many[..outs], &one)
            .or_else(|e| differ("tensor maps", format!("weight {i} on {device}: {e}")))?;
        compared += outs;
    }
    Ok(compared)
}

/// The same kernels with other arguments, repeatedly. From the second time on they run as a CUDA graph.
pub(crate) fn graphs(device: &Device) -> Checked {
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
        let (got, want) = (run(device).map_err(error)?, run(&Device::cpu()).map_err(error)?);
        compare_bits(&got, &want).or_else(|e| differ("graphs", format!("eps {eps} on {device}: {e}")))?;
    }
    Ok(4 * 120)
}
