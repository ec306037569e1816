//! The gate of training examples with branches: the values are those of every branch alone, bit for bit, and the
//! gradient differs from theirs only by the order of sums.
use xtrain::model::{Branch, Grads, LogitsProcessing, Model, TrainingExample, objective};
use xtrain::tensor::ops::{KeptSet, LogProb, Target};
use xtrain::tensor::testing::{compare_words, gpus};
use xtrain::tensor::{Device, Dtype, ThreadSchedule};

use crate::gpu;
use crate::rng::CaseRng;
use crate::training::{Difference, Run, failed};

/// The largest difference of a gradient, relative to the largest element of its parameter. Both gradients are sums of
/// the same rounded products; f32 sums of some thousand terms of both signs, as for the gains of QK-norm, differ by up to
/// a hundred times 2^-24. In bf16, the summed dk and dv are rounded once instead of every addend, and the difference
/// passes through about ten more roundings of 2^-9 before it reaches the embedding. A lost term is found in f32, by the
/// same code.
const TOLERANCE: [(Dtype, f32); 2] = [(Dtype::F32, 8e-6), (Dtype::BF16, 2e-2)];

/// A prompt with five branches. The second and the third begin like the first; the fourth is a beginning of the first;
/// the last is the first.
pub(crate) fn tree(rng: &mut CaseRng, vocab: usize, longest: usize) -> TrainingExample {
    let mut tokens = |n: usize| -> Vec<u32> { (0..n).map(|_| rng.below(vocab) as u32).collect() };
    let lengths: Vec<usize> = tokens(4).into_iter().map(|n| n as usize * 7 % longest).collect();
    let inputs = tokens(1 + lengths[0]);
    let first = tokens(1 + lengths[1]);
    let beginning = |n: usize| &first[..n.min(first.len())];
    let other = first[first.len() / 2] ^ 1;
    let similar = [beginning(first.len() / 2), &[if (other as usize) < vocab { other } else { 0 }]].concat();
    let branches = [
        first.clone(),
        [beginning(lengths[2]), &tokens(lengths[2])].concat(),
        [similar, tokens(lengths[3])].concat(),
        beginning(lengths[3]).to_vec(),
        first.clone(),
    ];
    let last = tokens(branches.len());
    let branch = |(i, inputs): (usize, Vec<u32>)| {
        let [weight, bonus] = [0.01, 0.003].map(|x| x * (i + 1) as f32);
        let target = |(t, &id)| (t % 5 != 3).then_some(Target { id, weight, bonus });
        let targets: Vec<_> = inputs.iter().chain([&last[i]]).enumerate().map(target).collect();
        // the last two branches have sets, which differ
        let half = |t: usize| (0..vocab as u32).filter(|id| id % 3 != (i + t) as u32 % 3).collect::<Vec<_>>();
        let set = |t: usize| if i < 3 { None } else { KeptSet::from_ids(vocab, &half(t)) };
        let kept = (0..targets.len()).map(set).collect();
        Branch { inputs, targets, kept }
    };
    let branches = branches.into_iter().enumerate().map(branch).collect();
    TrainingExample { inputs, branches, ..TrainingExample::default() }
}

/// Every branch as an example of its own.
fn alone(tree: &TrainingExample) -> Vec<TrainingExample> {
    let example = |branch: &Branch| TrainingExample {
        inputs: [&tree.inputs[..], &branch.inputs].concat(),
        targets: [&vec![None; tree.inputs.len() - 1][..], &branch.targets].concat(),
        kept: [&vec![None; tree.inputs.len() - 1][..], &branch.kept].concat(),
        ..TrainingExample::default()
    };
    tree.branches.iter().map(example).collect()
}

fn bits(values: Vec<Option<LogProb>>) -> Vec<[u32; 3]> {
    values.into_iter().flatten().map(|v| [v.lse, v.log_prob, v.entropy].map(f32::to_bits)).collect()
}

/// The gradient of each parameter, and lse, log-probability and entropy of each target.
type Gradient = (Vec<Vec<f32>>, Vec<[u32; 3]>);

/// The gradient of `examples`, by parameter, and the values of their targets.
fn gradient(model: &Model, examples: &[TrainingExample]) -> Result<Gradient, Difference> {
    let mut grads = Grads::zeros(&model.params).map_err(failed)?;
    let values = objective::backward(model, examples, LogitsProcessing::default(), &mut 0.0, &mut grads);
    let grads = grads.finish().map_err(failed)?;
    let vec = |g: &xtrain::tensor::Tensor| g.to_vec::<f32>().map_err(failed);
    Ok((grads.iter().map(vec).collect::<Result<_, _>>()?, bits(values.map_err(failed)?)))
}

/// Compares the values and the gradients of trees with those of their branches. Returns the number of values, and the
/// largest relative difference of the gradients.
fn compare(model: &Model, trees: &[TrainingExample]) -> Result<(usize, f32), Difference> {
    let branches: Vec<TrainingExample> = trees.iter().flat_map(alone).collect();
    let ((got, values), (want, apart)) = (gradient(model, trees)?, gradient(model, &branches)?);
    if let Some(at) = (0..apart.len()).find(|&at| values.get(at) != Some(&apart[at])) {
        let (got, want) = (values.get(at), apart[at]);
        return Err(Difference(format!("value {at}: got {got:08x?}, want {want:08x?}")));
    }
    let mut worst = 0f32;
    for (name, (got, want)) in model.params.iter().map(|p| p.name()).zip(got.iter().zip(&want)) {
        let scale = want.iter().fold(f32::MIN_POSITIVE, |max, x| max.max(x.abs()));
        let differences = got.iter().zip(want).map(|(a, b)| (a - b).abs() / scale);
        let difference = differences.fold(0f32, f32::max);
        let (_, tolerance) = TOLERANCE[usize::from(model.compute() == Dtype::BF16)];
        if difference.is_nan() || difference > tolerance {
            return Err(Difference(format!("gradient of {name}: relative difference {difference}")));
        }
        worst = worst.max(difference);
    }
    Ok((apart.len(), worst))
}

/// Runs the gate over `n` random models on the CPU. Returns the number of compared values and the largest relative
/// difference of a gradient, for each dtype.
pub(crate) fn over(n: u64) -> Result<[(usize, f32); 2], Difference> {
    let mut all = [(0, 0f32); 2];
    for number in 0..n {
        let run = Run::draw(number);
        let model = run.trainer(&Device::cpu()).map_err(failed)?.model;
        let mut rng = CaseRng::new(91, number);
        let trees: Vec<_> = (0..3).map(|_| tree(&mut rng, run.cfg.vocab, 30)).collect();
        let (values, worst) = compare(&model, &trees)?;
        let total = &mut all[usize::from(model.compute() == Dtype::BF16)];
        *total = (total.0 + values, total.1.max(worst));
    }
    Ok(all)
}

#[test]
fn a_branch_has_the_values_of_the_branch_alone_and_its_share_of_the_gradient() {
    let all = over(48).unwrap_or_else(|Difference(e)| panic!("gate branches: {e}"));
    for ((dtype, tolerance), (values, worst)) in TOLERANCE.into_iter().zip(all) {
        println!(
            "branches in {dtype}: {values} values, 0 differ; gradients within {worst:.1e} of {tolerance:.1e}"
        );
        assert!(values > 1_500, "{values}");
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn branches_on_a_gpu_have_the_bits_of_the_cpu() {
    let mut rng = CaseRng::new(92, 0);
    let trees: Vec<_> = [3, 40, 70].into_iter().map(|longest| tree(&mut rng, 37, longest)).collect();
    let model = |device: &Device| gpu::biased(&gpu::config(true), Dtype::F32, device);
    let bits = |(grads, values): Gradient| {
        let grads: Vec<u32> = grads.into_iter().flatten().map(f32::to_bits).collect();
        (grads, values)
    };
    let of = |device: &Device| {
        gradient(&model(device), &trees)
            .map(bits)
            .unwrap_or_else(|Difference(e)| panic!("gate branches: {e}"))
    };
    let (want, mut compared) = (of(&Device::cpu()), 0);
    for device in gpus(&[ThreadSchedule::Forward, ThreadSchedule::Random(6)]) {
        let got = of(&device);
        for (what, got, want) in
            [("values", got.1.as_flattened(), want.1.as_flattened()), ("gradients", &got.0[..], &want.0[..])]
        {
            compare_words(got, want)
                .unwrap_or_else(|e| panic!("gate branches, seed 92: {what} on {device}: {e}"));
        }
        compared += want.0.len() + want.1.len();
    }
    println!("branches on the GPU: {compared} values compared, 0 differ");
}
