//! What a caller of [`Grpo`] can set wrongly is an error before the first step.
use std::sync::Arc;

use xtrain::config::GrpoSection;
use xtrain::grpo::metrics::StepMetrics;
use xtrain::grpo::prompts::{PromptSource, text_prompt};
use xtrain::grpo::score::Scorer;
use xtrain::grpo::{Error, Grpo, GrpoObserver};
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{Config, Model, OptimConfig, Schedule, Trainer};
use xtrain::rewards::FunctionReward;
use xtrain::tensor::{Device, Dtype};

/// Fails when a step is reported.
struct NoStep;

impl GrpoObserver for NoStep {
    fn step(&mut self, metrics: &StepMetrics) -> Result<(), Error> {
        panic!("step {} has run", metrics.step)
    }
}

/// The error of a run with these prompts and settings.
fn refused(prompts: &[&str], section: GrpoSection) -> String {
    let tokenizer = Tokenizer::byte();
    let prompts =
        prompts.iter().map(|text| Arc::new(text_prompt((*text).into(), &tokenizer).unwrap())).collect();
    let source = PromptSource::list(prompts, 0);
    let model = Model::init(&Config::tiny(), Dtype::F32, &Device::cpu(), 0).unwrap();
    let mut trainer = Trainer::new(model, OptimConfig::default(), Schedule::constant(1e-3)).unwrap();
    let reward = FunctionReward::new("length", |input| Some(input.completion.len() as f64));
    let mut scorer = Scorer::new(vec![Box::new(reward)], Vec::new());
    let mut run = Grpo::new(&section, 0, &mut trainer, &tokenizer, &source, &mut scorer);
    run.run(&mut NoStep).map(drop).unwrap_err().to_string()
}

#[test]
pub(crate) fn wrong_sections_prompts_and_references_are_refused_before_the_first_step() {
    let section =
        GrpoSection { steps: 1, prompts_per_step: 1, max_prompt_length: 3, ..GrpoSection::default() };
    let with = |change: fn(&mut GrpoSection)| {
        let mut section = section.clone();
        change(&mut section);
        section
    };
    for (prompts, section, want) in [
        (&[][..], section.clone(), "there are no training prompts"),
        (&["a", ""], section.clone(), "prompt 1: expected from 1 to 3 tokens, found 0"),
        (&["abcd"], section.clone(), "prompt 0: expected from 1 to 3 tokens, found 4"),
        (
            &["a"],
            with(|section| section.steps_per_generation = 0),
            "`grpo.steps_per_generation` = 0: expected",
        ),
        (
            &["a"],
            with(|section| section.num_generations = 1),
            "`grpo.num_generations` = 1: expected at least 2",
        ),
        (&["a"], with(|section| section.beta = 0.1), "grpo.beta = 0.1: expected a reference model"),
    ] {
        let found = refused(prompts, section);
        assert!(found.starts_with(want), "expected {want:?}, found {found:?}");
    }
}
