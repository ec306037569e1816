//! Values that are not finite are reported with the name of their parameter.
use xtrain_comm::ThreadProcess;
use xtrain_tensor::{Device, Dtype};

use super::*;
use crate::config::Config;

/// Walk index of the parameter with a value that is not finite.
const AT: usize = 3;

/// A trainer, the gradient of its first step, and the name of parameter [`AT`].
fn first_step() -> (Trainer, StepGradient, String) {
    let model = Model::init(&Config::tiny(), Dtype::F32, &Device::cpu(), 1).unwrap();
    let mut trainer = Trainer::new(model, OptimConfig::default(), Schedule::constant(1e-3)).unwrap();
    let examples = [TrainingExample::window(&[1, 2, 3, 4], 1.0)];
    let gradient = trainer.gradient(&examples, LogitsProcessing::default(), 1).unwrap();
    let name = trainer.model.params.iter().nth(AT).unwrap().name().to_owned();
    (trainer, gradient, name)
}

#[test]
fn a_gradient_that_is_not_finite_is_reported_with_the_name_of_its_parameter() {
    let (mut trainer, mut gradient, name) = first_step();
    gradient.grads[AT].data_mut::<f32>().unwrap()[5] = f32::NAN;
    let error = trainer.apply(gradient, 3).unwrap_err().to_string();
    assert_eq!(error, format!("step 1: the gradient of {name} is not finite"));
    assert_eq!((trainer.step_number(), trainer.target_tokens()), (0, 0));
}

#[test]
fn a_weight_that_is_not_finite_is_reported_with_its_name() {
    let (mut trainer, gradient, name) = first_step();
    let param = trainer.model.params.iter_mut().nth(AT).unwrap();
    param.value_mut().unwrap().data_mut::<f32>().unwrap()[5] = f32::INFINITY;
    let error = trainer.apply(gradient, 3).unwrap_err().to_string();
    assert_eq!(error, format!("step 1: the weight {name} is not finite"));
    assert_eq!((trainer.step_number(), trainer.target_tokens()), (0, 0));
}

#[test]
fn logits_that_are_not_finite_are_reported_with_their_step() {
    let (mut trainer, _, _) = first_step();
    let last = trainer.model.params.iter_mut().last().unwrap();
    last.value_mut().unwrap().data_mut::<f32>().unwrap().fill(f32::NAN);
    let examples = [TrainingExample::window(&[1, 2, 3, 4], 1.0)];
    let error = trainer.gradient(&examples, LogitsProcessing::default(), 1).unwrap_err().to_string();
    assert_eq!(error, "step 1: row 0 of the logits is not finite");
}

#[test]
fn a_trainer_that_cannot_join_has_all_moments() {
    let (mut trainer, _, _) = first_step();
    trainer.shards = 2;
    let last = trainer.optimizer.v.last_mut().unwrap();
    *last = Tensor::zeros(&Device::cpu(), last.shape(), Dtype::BF16).unwrap();
    let shapes = |moments: &[Tensor]| moments.iter().map(|m| m.shape().to_vec()).collect::<Vec<_>>();
    let before = [shapes(&trainer.optimizer.m), shapes(&trainer.optimizer.v)];
    let of_second = ThreadProcess::group(2).remove(1);
    assert!(trainer.join(&Processes::new(Arc::new(of_second))).is_err(), "moments are f32");
    assert_eq!([shapes(&trainer.optimizer.m), shapes(&trainer.optimizer.v)], before);
    assert!(!trainer.is_joined());
}

#[cfg(feature = "faults")]
#[test]
fn the_name_of_another_parameter_is_detected() {
    let tests: [fn(); 2] = [
        a_gradient_that_is_not_finite_is_reported_with_the_name_of_its_parameter,
        a_weight_that_is_not_finite_is_reported_with_its_name,
    ];
    for test in tests {
        let found = faults::with(Fault::FirstParameterNamed, || xtrain_tensor::testing::failure(test));
        assert!(found.is_some_and(|text| text.contains("is not finite")));
    }
    let test = logits_that_are_not_finite_are_reported_with_their_step;
    let found = faults::with(Fault::DivergedForwardUnnamed, || xtrain_tensor::testing::failure(test));
    assert!(found.is_some_and(|text| text.contains("logits: row 0 holds a NaN")));
}

#[test]
fn an_example_that_is_longer_than_the_context_is_an_error_with_both_lengths() {
    let (mut trainer, _, _) = first_step();
    let positions = trainer.model.config().max_positions;
    let example = |n: usize| vec![TrainingExample::window(&vec![1; n + 1], 1.0)];
    assert!(trainer.step(example(positions), 1).is_ok());
    let error = trainer.step(example(positions + 1), 1).unwrap_err().to_string();
    assert!(error.ends_with("found 65 tokens and 64 positions"), "{error}");
}
