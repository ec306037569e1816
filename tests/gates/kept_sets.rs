//! The gate of the processed log-probability: after a rollout with temperature, top-k, top-p and min-p, the loss
//! computes the log-probabilities that the sampler recorded, bit for bit.
use xtrain::decode::{Completion, EngineOptions, Request, SampleOptions, generate};
use xtrain::model::{Config, Grads, LogitsProcessing, Model, TrainingExample, objective};
use xtrain::tensor::ops::{LogProb, Target};
use xtrain::tensor::testing::gpus;
use xtrain::tensor::{Device, Dtype, ThreadSchedule};

use crate::gpu::{self, biased};
use crate::rng::CaseRng;

/// Every filter alone and combined, at three temperatures.
fn options() -> [SampleOptions; 9] {
    let at = |temperature| SampleOptions { temperature, ..SampleOptions::default() };
    [
        at(1.0),
        SampleOptions { top_k: Some(5), ..at(0.7) },
        SampleOptions { top_p: Some(0.9), ..at(1.3) },
        SampleOptions { min_p: Some(0.1), ..at(1.0) },
        SampleOptions { top_p: Some(0.5), min_p: Some(0.01), ..at(0.7) },
        SampleOptions { top_k: Some(120), top_p: Some(0.99), ..at(1.3) },
        SampleOptions { top_k: Some(40), min_p: Some(0.5), ..at(1.0) },
        SampleOptions { top_k: Some(200), top_p: Some(0.9), min_p: Some(0.05), ..at(0.7) },
        SampleOptions { top_k: Some(1), top_p: Some(0.1), min_p: Some(0.9), ..at(1.0) },
    ]
}

fn model(dtype: Dtype, device: &Device) -> Model {
    biased(&Config { vocab: 301, max_positions: 64, ..gpu::config(false) }, dtype, device)
}

fn request(id: usize) -> Request {
    let mut rng = CaseRng::new(77, id as u64);
    let prompt: Vec<u32> = (0..[1, 4, 9][id % 3]).map(|_| rng.below(301) as u32).collect();
    Request { id: id as u64, options: options()[id % 9], ..Request::sampled(&prompt, 20, 1.0, 6) }
}

fn processing(options: &SampleOptions) -> LogitsProcessing {
    LogitsProcessing {
        temperature: options.temperature,
        top_k: options.top_k,
        top_p: options.top_p.unwrap_or(1.0),
        min_p: options.min_p.unwrap_or(0.0),
    }
}

/// The prompt and its completion; the sampled tokens are the targets.
fn example(request: &Request, completion: &Completion) -> TrainingExample {
    let all = [&request.prompt[..], &completion.tokens].concat();
    let target = |(i, &id): (usize, &u32)| {
        (i + 1 >= request.prompt.len()).then_some(Target { id, weight: 0.25, bonus: 0.0 })
    };
    TrainingExample {
        inputs: all[..all.len() - 1].to_vec(),
        targets: all[1..].iter().enumerate().map(target).collect(),
        ..TrainingExample::default()
    }
}

/// Compares the values of the loss with the log-probabilities of the sampler.
fn same(values: Vec<Option<LogProb>>, completion: &Completion, what: &str) -> Result<usize, String> {
    let values: Vec<LogProb> = values.into_iter().flatten().collect();
    if values.len() != completion.tokens.len() {
        return Err(format!("gate kept sets: {what}: {} values", values.len()));
    }
    for (t, (value, want)) in values.iter().zip(&completion.processed_logprobs).enumerate() {
        if value.log_prob.to_bits() != want.to_bits() || !value.kept {
            let id = completion.id;
            return Err(format!(
                "gate kept sets, seed 77: {what}, id {id}, token {t}: got {value:?}, want {want}"
            ));
        }
    }
    Ok(values.len())
}

/// Compares all options on a device, `requests` requests per element type; returns the number of compared values.
pub(crate) fn over(device: &Device, requests: usize) -> Result<usize, String> {
    let mut compared = 0;
    for dtype in [Dtype::F32, Dtype::BF16] {
        let (model, requests) = (model(dtype, device), (0..requests).map(request));
        let requests: Vec<Request> = requests.collect();
        let mut completions =
            generate(&model, requests.clone(), EngineOptions::default()).map_err(|e| e.to_string())?;
        completions.sort_by_key(|completion| completion.id);
        for (request, completion) in requests.iter().zip(&completions) {
            let (examples, processing) = ([example(request, completion)], processing(&request.options));
            let values = objective::values(&model, &examples, processing).map_err(|e| e.to_string())?;
            compared += same(values, completion, &format!("values in {dtype} on {device}"))?;
            let mut grads = Grads::zeros(&model.params).map_err(|e| e.to_string())?;
            let values = objective::backward(&model, &examples, processing, &mut 0.0, &mut grads)
                .map_err(|e| e.to_string())?;
            compared += same(values, completion, &format!("backward in {dtype} on {device}"))?;
            // with the sets of the first pass the filters are not needed
            let mut later = examples;
            let values =
                objective::store_kept_sets(&model, &mut later, processing).map_err(|e| e.to_string())?;
            compared += same(values, completion, &format!("first pass in {dtype} on {device}"))?;
            let unfiltered =
                LogitsProcessing { temperature: processing.temperature, ..LogitsProcessing::default() };
            let values = objective::values(&model, &later, unfiltered).map_err(|e| e.to_string())?;
            compared += same(values, completion, &format!("given sets in {dtype} on {device}"))?;
        }
    }
    Ok(compared)
}

#[test]
fn the_loss_computes_the_log_probabilities_of_the_sampler_for_every_filter() {
    for device in [Device::reference(), Device::cpu()] {
        let n = over(&device, 18).unwrap_or_else(|e| panic!("{e}"));
        println!("kept sets on {device}: {n} values, 0 differ");
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn the_loss_of_a_gpu_computes_the_log_probabilities_of_its_sampler() {
    for device in gpus(&[ThreadSchedule::Random(9)]) {
        let n = over(&device, options().len()).unwrap_or_else(|e| panic!("{e}"));
        println!("kept sets on {device}: {n} values, 0 differ");
    }
}
