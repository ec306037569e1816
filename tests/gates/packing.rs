//! The gate for packed data: each document in a window has the values that it has alone.
use std::ops::Range;

use xtrain::model::data::{DocumentWindows, Overflow, Pieces, Role, Tokens, WindowOrder};
use xtrain::model::{
    Config, Grads, Model, Result, Trainer, TrainingExample, normalize_loss_weights, objective,
};
use xtrain::tensor::ops::{LogProb, Target};
use xtrain::tensor::{Device, Dtype};

use crate::rng::CaseRng;
use crate::training::{Bits, Difference, GateCase, Run, bits, failed, same_bits};

const SEED: u64 = 20_251_122;

/// Documents: the ids, and whether each contributes to the loss.
type Documents = Vec<Vec<(u32, Role)>>;

fn documents(rng: &mut CaseRng, vocab: usize, lengths: &[usize]) -> Documents {
    let token = |rng: &mut CaseRng| {
        let role = if rng.one_in(4) { Role::Context } else { Role::Target };
        (rng.below(vocab) as u32, role)
    };
    lengths.iter().map(|&n| (0..n).map(|_| token(rng)).collect()).collect()
}

/// The training example of a part of a document, built without the packed tokens.
fn alone(document: &[(u32, Role)]) -> TrainingExample {
    let target = |&(id, role): &(u32, Role)| (role == Role::Target).then_some(target(id));
    TrainingExample {
        inputs: document[..document.len() - 1].iter().map(|token| token.0).collect(),
        targets: document[1..].iter().map(target).collect(),
        ..TrainingExample::default()
    }
}

fn target(id: u32) -> Target {
    Target { id, weight: 1.0, bonus: 0.0 }
}

/// The values of each row of the training examples.
fn values(model: &Model, samples: &[TrainingExample]) -> Result<Bits, Difference> {
    let values = objective::evaluate(model, samples, &mut 0.0).map_err(failed)?;
    let bits = |v: Option<LogProb>| v.map_or([0; 3], |v| [v.lse, v.log_prob, v.entropy].map(f32::to_bits));
    Ok(vec![("values".into(), values.into_iter().flat_map(bits).collect())])
}

/// Packs the documents of a case and reads them as training does. Compares each window with its documents alone.
fn case(number: u64) -> Result<usize, Difference> {
    let (run, mut rng) = (Run::draw(number), CaseRng::new(SEED, number));
    let model = run.trainer(&Device::cpu()).map_err(failed)?.model;
    let lengths: Vec<usize> =
        (0..rng.between(5, 20)).map(|_| rng.choose(&[1, 2, 3, 7, 18, 40, 90])).collect();
    let all = documents(&mut rng, run.cfg.vocab, &lengths);
    let tokens = Tokens::from_documents(all.clone(), run.cfg.vocab as u32).map_err(failed)?;
    let (context, long) = (rng.choose(&[8, 33, 64]), rng.choose(&[Overflow::Split, Overflow::Truncate]));
    let pieces = Pieces::cut(&tokens, &(0..tokens.len()), context, long).map_err(failed)?;
    let windows = DocumentWindows::pack(&pieces, context, number, WindowOrder::Epochs).map_err(failed)?;
    let mut compared = 0;
    for step in 0..windows.per_epoch() {
        let got = windows.batch(&tokens, step, 1).map_err(failed)?.remove(0);
        let ranges = windows.ranges(step, 0, 1);
        let want: Vec<TrainingExample> = ranges.iter().map(|range| alone(&cut(&all, range))).collect();
        let what = format!("documents of {lengths:?}, {long:?}, in {context}: window {ranges:?}");
        let (got, want) = (values(&model, &[TrainingExample::from(got)])?, values(&model, &want)?);
        compared += same_bits(GateCase { gate: "packed data", number, seed: SEED }, &what, &got, &want)?;
    }
    Ok(compared)
}

/// The tokens of a range inside one document.
fn cut(all: &Documents, range: &Range<u64>) -> Vec<(u32, Role)> {
    let mut start = 0;
    for document in all {
        let end = start + document.len() as u64;
        if range.start < end {
            return document[(range.start - start) as usize..(range.end - start) as usize].to_vec();
        }
        start = end;
    }
    panic!("{range:?} is beyond the documents");
}

/// Runs the gate over `n` cases. Returns the number of compared values.
pub(crate) fn over(n: u64) -> Result<usize, Difference> {
    (0..n).map(case).sum()
}

#[test]
fn a_document_in_a_window_has_the_values_of_the_document_alone() {
    let n = over(24).unwrap_or_else(|Difference(e)| panic!("{e}"));
    println!("packed data: 24 sets of documents, {n} values, 0 differ");
    assert!(n > 10_000, "{n}");
}

/// Loss and gradients of training examples with normalized loss weights.
fn gradients(model: &Model, mut samples: Vec<TrainingExample>) -> Bits {
    normalize_loss_weights(&mut samples);
    let (mut loss, mut grads) = (0f32, Grads::zeros(&model.params).unwrap());
    objective::backward(model, &samples, Default::default(), &mut loss, &mut grads).unwrap();
    let mut all = vec![("loss".to_string(), vec![loss.to_bits()])];
    for (p, g) in model.params.iter().zip(&grads.finish().unwrap()) {
        all.push((format!("gradient of {}", p.name()), bits(g)));
    }
    all
}

/// Sums over rows run in chunks of 256 rows, counted from an example's first row (docs/numerics.md, section 4), and
/// the chunks are added one by one. If documents fill whole chunks, packing moves no chunk border, and no bit may
/// differ.
#[test]
fn documents_of_whole_chunks_have_the_same_gradients_packed_and_alone() {
    let cfg = Config {
        vocab: 37,
        dim: 12,
        ffn_dim: 16,
        n_layers: 2,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 4,
        max_positions: 1024,
        rope_theta: 1e4,
        norm_eps: 1e-6,
        ..Config::default()
    };
    for (dtype, tie_embeddings) in [(Dtype::F32, true), (Dtype::F32, false), (Dtype::BF16, true)] {
        let cfg = Config { tie_embeddings, ..cfg.clone() };
        let model =
            Model::init(&cfg, dtype, &Device::cpu_with(2, xtrain::tensor::Simd::detect()), 5).unwrap();
        let mut rng = CaseRng::new(SEED, 1);
        // inputs: 512, 256, 99; the last document may end anywhere
        let all = documents(&mut rng, cfg.vocab, &[513, 257, 100]);
        let tokens = Tokens::from_documents(all.clone(), 37).unwrap();
        let pieces = Pieces::cut(&tokens, &(0..870), 867, Overflow::Split).unwrap();
        let windows = DocumentWindows::pack(&pieces, 867, 0, WindowOrder::Epochs).unwrap();
        let together = TrainingExample::from(windows.batch(&tokens, 0, 1).unwrap().remove(0));
        let starts = together.starts.clone();
        let apart: Vec<TrainingExample> = all.iter().map(|document| alone(document)).collect();
        let what = format!("{dtype}, tied: {tie_embeddings}");
        let (got, want) = (gradients(&model, vec![together]), gradients(&model, apart));
        let case = GateCase { gate: "gradients of packed data", number: 0, seed: SEED };
        let n = same_bits(case, &what, &got, &want);
        let n = n.unwrap_or_else(|Difference(e)| panic!("{e}"));
        assert!(n > 1000 && starts == [512, 768], "{n}, {starts:?}");
    }
}

#[test]
fn a_step_of_packed_conversations_counts_their_answers() {
    let run = Run::draw(3);
    let mut rng = CaseRng::new(SEED, 2);
    let all = documents(&mut rng, run.cfg.vocab, &[20, 31, 9]);
    let targets = |d: &Vec<(u32, Role)>| d[1..].iter().filter(|token| token.1 == Role::Target).count() as u64;
    let tokens = Tokens::from_documents(all.clone(), run.cfg.vocab as u32).unwrap();
    let pieces = Pieces::cut(&tokens, &(0..60), 64, Overflow::Truncate).unwrap();
    let windows = DocumentWindows::pack(&pieces, 64, 0, WindowOrder::Epochs).unwrap();
    assert_eq!(windows.per_epoch(), 1);
    let mut trainer: Trainer = run.trainer(&Device::cpu()).unwrap();
    let batch = windows.batch(&tokens, 0, 1).unwrap().into_iter().map(TrainingExample::from).collect();
    let report = trainer.step(batch, 1).unwrap();
    assert_eq!(report.target_tokens, all.iter().map(targets).sum::<u64>());
}
