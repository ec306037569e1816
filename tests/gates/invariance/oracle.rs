//! The answers: each sequence alone, in one pass over all its tokens, on one thread.
use std::cell::RefCell;

use xtrain::decode::{Completion, Request, SampleOptions};
use xtrain::model::{Config, Model, NoCache, Params, Result, Rows, Tape};
use xtrain::tensor::{Device, Simd, Tensor};

use super::case::{Case, Driver, SEED};
use super::outcome::{Difference, RowId, What};
use crate::decode::{hidden_over, naive_over};
use crate::rng::{CaseRng, values};

thread_local! {
    static DEVICES: RefCell<Vec<(usize, Option<Simd>, Device)>> = const { RefCell::new(Vec::new()) };
}

/// A device. Each is created once per thread. `simd` of `None`: the reference backend.
pub(super) fn device(threads: usize, simd: Option<Simd>) -> Device {
    DEVICES.with_borrow_mut(|all| {
        if let Some(existing) = all.iter().find(|d| (d.0, d.1) == (threads, simd)) {
            return existing.2.clone();
        }
        let device = simd.map_or_else(Device::reference, |simd| Device::cpu_with(threads, simd));
        assert!(simd.is_none() || device.threads() == threads, "the system refuses threads");
        all.push((threads, simd, device.clone()));
        device
    })
}

/// The case's model on `device`.
pub(super) fn model(case: &Case, device: &Device) -> Result<Model> {
    let mut rng = CaseRng::new(SEED ^ 1, case.number);
    let scale = (case.cfg.dim as f32).sqrt().recip();
    let params = Params::load(&case.cfg, case.dtype, device, |name, shape| {
        let n = shape.iter().product();
        let gain = shape.len() == 1;
        let mut all = values(n, if gain { 0.5 } else { 2.0 * scale }, &mut rng);
        if gain && !name.ends_with(".bias") {
            all.iter_mut().for_each(|x| *x += 1.0);
        } else if name.contains("embed") && n > 2 * shape[1] {
            // two tokens with the same embedding: exact ties among the logits of a tied head
            all.copy_within(..shape[1], n - shape[1]);
        }
        Ok(all)
    });
    Model::new(Config { windows: case.windows.clone(), ..case.cfg.clone() }, params?)
}

/// The oracle's results.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) tokens: Vec<Vec<u32>>,
    /// Logits `[T, V]` of each sequence.
    logits: Vec<Vec<f32>>,
    vocab: usize,
    /// The requests of an engine and their completions.
    pub(super) requests: Vec<(Request, Completion)>,
}

impl Answers {
    /// Computes the answers. For an engine, each token is first sampled from a new forward pass.
    pub(super) fn of(case: &Case) -> std::result::Result<Answers, Difference> {
        let failed = |e: String| Difference::new(case, RowId::FIRST, What::Failed(e));
        let model = model(case, &device(1, case.oracle.simd)).map_err(|e| failed(e.to_string()))?;
        let (mut requests, mut tokens) = (Vec::new(), given(case));
        if let Driver::Engine { group, .. } = case.driver {
            for (s, all) in tokens.iter_mut().enumerate() {
                let (of, n) = if s < group { (0, s) } else { (s, 0) };
                let request = request(case, all, of, n);
                let answer =
                    naive_over(case.definition(), &model, &request).map_err(|e| failed(e.to_string()))?;
                *all = [&request.prompt[..], &answer.tokens].concat();
                requests.push((request, answer));
            }
        }
        let logits: Result<Vec<_>> = tokens.iter().map(|t| whole(case, &model, t)).collect();
        let logits = logits.map_err(|e| failed(e.to_string()))?;
        let answers = Answers { tokens, logits, vocab: case.cfg.vocab, requests };
        if case.oracle.literal {
            answers.repeat(case, &model)?;
        }
        Ok(answers)
    }

    /// Compares one row of logits.
    pub(super) fn compare(
        &self,
        case: &Case,
        row: RowId,
        got: &[f32],
    ) -> std::result::Result<(), Difference> {
        let want = &self.logits[row.sequence][row.position * self.vocab..][..self.vocab];
        let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
        match want.iter().zip(got).position(differs) {
            None if got.len() == want.len() => Ok(()),
            at => {
                let at = at.unwrap_or(0);
                let what = What::Logit { at, got: got[at].to_bits(), want: want[at].to_bits() };
                Err(Difference::new(case, row, what))
            }
        }
    }

    /// Recomputes the last row of logits with a new forward pass for each token.
    fn repeat(&self, case: &Case, model: &Model) -> std::result::Result<(), Difference> {
        for (s, tokens) in self.tokens.iter().enumerate() {
            for t in 0..tokens.len() {
                let row = RowId { sequence: s, position: t };
                let failed = |e: String| Difference::new(case, row, What::Failed(e));
                let last = fresh(case, model, &tokens[..=t]).map_err(|e| failed(e.to_string()))?;
                self.compare(case, row, &last)?;
            }
        }
        Ok(())
    }
}

/// The tokens of each sequence: a prefix from another sequence, the rest random.
fn given(case: &Case) -> Vec<Vec<u32>> {
    let mut all: Vec<Vec<u32>> = Vec::new();
    for (s, seq) in case.seqs.iter().enumerate() {
        let mut rng = CaseRng::new(SEED ^ 2, (case.number << 4) + s as u64);
        let mut tokens: Vec<u32> = (0..seq.len).map(|_| rng.below(case.cfg.vocab) as u32).collect();
        if let Some((of, len)) = seq.prefix {
            tokens[..len].copy_from_slice(&all[of][..len]);
        }
        all.push(tokens);
    }
    all
}

/// The request of completion `n` of sequence `s`, whose tokens are `tokens`.
fn request(case: &Case, tokens: &[u32], s: usize, n: usize) -> Request {
    let (seq, mut rng) = (&case.seqs[s], CaseRng::new(SEED ^ 3, (case.number << 4) + s as u64));
    let given = if n == 0 { tokens.to_vec() } else { given(case).swap_remove(s) };
    let options = SampleOptions {
        temperature: rng.choose(&[0.0, 0.7, 1.0, 1.0, 1.5]),
        top_k: rng.one_in(4).then_some(5),
        ..SampleOptions::default()
    };
    let id = 100 * s as u64 + n as u64;
    let request = Request::sampled(&given[..seq.prompt], seq.len - seq.prompt, 1.0, case.number);
    Request { id, options, ..request }
}

/// Logits `[T, V]` of a sequence in one pass.
fn whole(case: &Case, model: &Model, tokens: &[u32]) -> Result<Vec<f32>> {
    let rows = Rows::whole(&[tokens]);
    let hidden = match case.oracle.tape {
        true => model.forward(&mut Tape::new(rows.samples()), &mut NoCache::new(&rows)?, &rows)?.value,
        false => hidden_over(case.definition(), model, &rows)?,
    };
    Ok(model.logits(&hidden)?.data()?.to_vec())
}

/// Logits `[V]` after the last of `tokens`.
fn fresh(case: &Case, model: &Model, tokens: &[u32]) -> Result<Vec<f32>> {
    let hidden = hidden_over(case.definition(), model, &Rows::whole(&[tokens]))?;
    let (wide, width) = (hidden.to_f32()?, hidden.width());
    let last = wide.data::<f32>()?[(tokens.len() - 1) * width..].to_vec();
    let last = Tensor::new(model.device(), &[1, width], last)?.cast(hidden.dtype())?;
    Ok(model.logits(&last)?.data()?.to_vec())
}
