//! The recorded launches of one step.
use crate::cli::bench::args::{BenchTrainArgs, DecodeArgs};
use crate::cli::bench::bench_model::{self, BenchModel};
use crate::cli::bench::gpu_spec::TargetGpu;
use crate::cli::bench::ideal::Ideal;
use crate::cli::bench::workload::Workload;
use crate::cli::exit::{CliError, Exit};
use crate::cli::source;
use crate::config::RunConfig;
use crate::decode::EngineOptions;
use crate::model::{Model, Params, Trainer};
use crate::report::units;
use crate::tensor::{Dtype, KernelLaunch, LaunchLog, launch_recorder};
use crate::training;

/// The last kernel of a decode step: sampled, and greedy.
const LAST_OF_STEP: [&str; 2] = ["sample_pick_f32", "sample_greedy_f32"];

/// Recorded tokens of a sequence: the prefill, two ordinary steps, and the last one, which prepares no further step.
const RECORDED: usize = 4;

/// A step and its launches.
pub(super) struct Step {
    pub(super) model: String,
    pub(super) workload: String,
    /// Tokens that the step computes.
    pub(super) tokens: usize,
    pub(super) layers: usize,
    pub(super) bf16: bool,
    pub(super) ideal: Ideal,
    pub(super) launches: Vec<KernelLaunch>,
}

/// The decode step in the middle of the new tokens.
pub(super) fn decode(args: &DecodeArgs, gpu: TargetGpu) -> Result<Step, CliError> {
    let config = args.shared.config()?;
    let [prompt_len, max_new] = args.lengths(bench_model::DEFAULT_LEN);
    let context = prompt_len.checked_add(max_new).and_then(|len| len.checked_add(RECORDED));
    let context = context.ok_or_else(|| {
        CliError::new(Exit::Usage, "--prompt-len and --max-new: expected a sum that fits in 64 bits")
    })?;
    let (model, description, log) = recorded_model(&config, context, gpu)?;
    let workload = Workload {
        batch: args.batch.get(),
        one_prompt: args.one_prompt,
        prompt_len,
        max_new,
        temperature: args.temperature,
        top_p: args.top_p,
    };
    // The position in the middle. A longer prompt reaches it sooner than tokens do, but sequences of one prompt would
    // share its pages.
    let before = max_new / 2;
    let middle = match args.one_prompt {
        true => Workload { max_new: before + RECORDED, ..workload },
        false => Workload { prompt_len: prompt_len + before, max_new: RECORDED, ..workload },
    };
    let options = EngineOptions { steps_per_sync: 1, ..args.cache.engine() };
    bench_model::measure(&model, middle, options, None)?;
    let launches = log.take();
    let steps: Vec<&[KernelLaunch]> =
        launches.split_inclusive(|launch| LAST_OF_STEP.contains(&launch.kernel)).collect();
    let launches = steps[steps.len().saturating_sub(2)].to_vec();
    let Workload { batch, one_prompt, .. } = workload;
    let prompts = if one_prompt { " of one prompt" } else { "" };
    let sequences = units::many(batch as u64, "sequence");
    Ok(Step {
        model: description.title(),
        workload: format!("{sequences}{prompts}, at position {}", prompt_len + before + RECORDED - 3),
        tokens: batch,
        layers: model.config().n_layers,
        bf16: model.compute() == Dtype::BF16,
        ideal: Ideal::decode(&model, options.kv, &workload, None),
        launches,
    })
}

/// A training step.
pub(super) fn train(args: &BenchTrainArgs, gpu: TargetGpu) -> Result<Step, CliError> {
    let config = args.shared.config()?;
    let (model, description, log) = recorded_model(&config, config.train.context, gpu)?;
    let mut trainer = Trainer::new(model, training::optim_config(&config), training::schedule(&config))?;
    let (batch, context) = (config.train.batch, config.train.context);
    let vocab = trainer.model.config().vocab;
    // the first step also packs the weights
    for first in [0, batch] {
        log.take();
        let samples = bench_model::random_windows(config.train.seed, first, batch, [context, vocab]);
        trainer.step(samples, config.train.micro_batch)?;
    }
    let model = &trainer.model;
    Ok(Step {
        model: description.title(),
        workload: format!("{batch} windows of {context} tokens per step"),
        tokens: batch * context,
        layers: model.config().n_layers,
        bf16: model.compute() == Dtype::BF16,
        ideal: Ideal::train(model, batch, context, None),
        launches: log.take(),
    })
}

/// A model of zeros on a device that records the kernels of this GPU, with a context of at least `context` tokens.
fn recorded_model(
    config: &RunConfig,
    context: usize,
    gpu: TargetGpu,
) -> Result<(Model, BenchModel, LaunchLog), CliError> {
    let (device, log) = launch_recorder(gpu.is_hopper());
    let vocab = source::tokenizer(&config.data.tokenizer)?.vocab_size();
    let mut cfg = training::model_config(config, vocab);
    cfg.max_positions = cfg.max_positions.max(context);
    let zeros = |_: &str, shape: &[usize]| Ok(vec![0.0; shape.iter().product()]);
    let params = Params::load(&cfg, training::compute(config.train.dtype), &device, zeros)?;
    let model = Model::new(cfg, params)?;
    let description = BenchModel::new(bench_model::name(config), &model);
    Ok((model, description, log))
}
