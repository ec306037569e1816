//! `xtrain train --lr-find`: the learning rate range test.
use super::common::number;
use super::exit::CliError;
use super::interrupt::Interrupt;
use super::out;
use super::plot::in_terminal;
use crate::config::RunConfig;
use crate::model::{Error, Schedule, Trainer, TrainingExample};
use crate::report::{Chart, Progress, Scale, Series, Stroke};
use crate::training::{self, DataLoader, LrRange, Source};

/// The lowest and the highest rate.
const RATES: [f64; 2] = [1e-6, 1.0];

/// Parses the number of steps.
pub(super) fn steps(text: &str) -> Result<u16, String> {
    number(text, |n| (10..=10_000).contains(n), "expected a number from 10 to 10000")
}

/// Plots the loss over the learning rate and prints a suggestion. Writes no file.
pub(super) fn run(
    config: &RunConfig,
    data: (&DataLoader, &Source),
    mut trainer: Trainer,
    steps: usize,
    interrupt: &Interrupt,
) -> Result<(), CliError> {
    trainer.checkpointing = training::activation_checkpointing(config);
    trainer.shards = config.train.shards;
    let range = LrRange { lowest: RATES[0], highest: RATES[1], steps };
    let (loader, source) = data;
    let mut progress = Progress::new("learning rate test", "step", steps as u64, 0);
    let points = training::lr_losses(range, |step, rate| -> Result<Option<f32>, CliError> {
        if interrupt.requested().is_some() {
            return Ok(None);
        }
        trainer.schedule = Schedule::constant(rate);
        let windows = loader.batch(&source.tokens, step as u64, config.train.batch as u32)?;
        let examples = windows.into_iter().map(TrainingExample::from).collect();
        let before = trainer.target_tokens();
        let loss = match trainer.step(examples, config.train.micro_batch) {
            // without a target
            Ok(report) if report.target_tokens == before => f32::NAN,
            Ok(report) => report.loss,
            // The rate is too high for this model.
            Err(Error::NotFinite { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let note = if loss.is_nan() { String::new() } else { format!("loss {loss:.3}") };
        progress.at(step as u64 + 1, &note);
        Ok(Some(loss))
    })?;
    progress.finish();
    if let Some(exit) = interrupt.requested() {
        return Err(CliError::new(exit, "stopped by a signal; no run was written"));
    }
    let suggestion = training::steepest_rate(&points);
    let series = Series { name: "loss".to_string(), points, stroke: Stroke::Line };
    let chart = Chart {
        x_label: "learning rate".to_string(),
        x_scale: Scale::Log,
        ..Chart::of("learning rate test".to_string(), vec![series])
    };
    let configured = config.train.learning_rate;
    let result = match suggestion {
        Some(rate) => {
            let rate = format!("{rate:.1e}").replace(".0e", "e");
            format!(
                "The loss falls fastest at a learning rate of {rate}; train.learning_rate is {configured:e}.\n\
                 To use it: --set train.learning_rate={rate}\n"
            )
        }
        None => "The loss does not fall at any learning rate of the test.\n".to_string(),
    };
    out::print(format!("{}\n{result}", in_terminal(&chart, None, 14, false)))
}
