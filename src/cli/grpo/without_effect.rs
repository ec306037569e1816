//! Keys of `[grpo]` that are set but have no effect with the others.
use std::collections::BTreeMap;

use crate::cli::exit::CliError;
use crate::config::check::tree;
use crate::config::{DecayKind, GrpoSection, Layer, RunConfig};
use crate::tensor::faults::{self, Fault};

/// Notes about keys that `layers` set to other values than the defaults, and that have no effect in `config`.
pub(super) fn notes(
    layers: &[Layer],
    config: &RunConfig,
    section: &GrpoSection,
) -> Result<Vec<String>, CliError> {
    let mut set = BTreeMap::new();
    for layer in layers {
        set.extend(layer.values()?);
    }
    let default = tree(&RunConfig { grpo: Some(GrpoSection::default()), ..RunConfig::default() });
    let is_set = |key: &str| set.get(&format!("grpo.{key}")).filter(|value| **value != default["grpo"][key]);
    let note = |(key, why): (&str, String)| {
        is_set(key).map(|value| format!("note: `grpo.{key}` = {value} has no effect: {why}"))
    };
    if faults::on(Fault::KeysWithoutEffectUnreported) {
        return Ok(Vec::new());
    }
    Ok(causes(config, section).into_iter().filter_map(note).collect())
}

/// The keys that have no effect, and why.
fn causes(config: &RunConfig, section: &GrpoSection) -> Vec<(&'static str, String)> {
    let mut causes = Vec::new();
    let mut add = |is_off: bool, keys: &[&'static str], why: &str| {
        causes.extend(keys.iter().filter(|_| is_off).map(|key| (*key, why.to_string())));
    };
    let clipped = section.loss_type.is_clipped();
    add(
        section.steps_per_batch() == 1 && clipped && section.epsilon > 0.0,
        &["epsilon", "epsilon_high"],
        "every ratio is 1, because a generation batch has one optimizer step (grpo.num_iterations x \
         grpo.steps_per_generation = 1)",
    );
    add(
        section.beta == 0.0,
        &["ref_dtype", "ref_model_mixup_alpha", "use_bias_correction_kl"],
        "there is no reference model (grpo.beta = 0)",
    );
    add(
        section.beta > 0.0 && section.ref_model_sync_steps == 0,
        &["ref_model_mixup_alpha"],
        "the reference model is never updated (grpo.ref_model_sync_steps = 0)",
    );
    add(
        section.reward.is_empty(),
        &["reward_processes", "reward_timeout", "reward_dir", "score_duplicates"],
        "there is no reward program (grpo.reward)",
    );
    add(!config.train.init.is_empty(), &["wrong_answers"], "no base model is trained (--init)");
    add(
        section.schedule == DecayKind::Constant,
        &["min_learning_rate"],
        "the learning rate does not decay (grpo.schedule = constant)",
    );
    causes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Resolved;

    fn notes_of(keys: &[&str]) -> Vec<String> {
        let layers: Vec<Layer> =
            ["grpo.task=sums"].iter().chain(keys).map(|key| Layer::Set(key.to_string())).collect();
        let config = Resolved::load(&layers).unwrap().config;
        let section = config.grpo.clone().unwrap();
        notes(&layers, &config, &section).unwrap()
    }

    #[test]
    fn each_key_without_effect_is_noted_once_and_others_are_not() {
        for (keys, key) in [
            (&["grpo.epsilon=0.3"][..], "epsilon"),
            (&["grpo.epsilon_high=0.3"], "epsilon_high"),
            (&["grpo.ref_model_mixup_alpha=0.5"], "ref_model_mixup_alpha"),
            (&["grpo.ref_model_mixup_alpha=0.5", "grpo.beta=0.1"], "ref_model_mixup_alpha"),
            (&["grpo.ref_dtype=bf16"], "ref_dtype"),
            (&["grpo.reward_processes=2"], "reward_processes"),
            (&["grpo.wrong_answers=0.7", "train.init=m"], "wrong_answers"),
            (&["grpo.min_learning_rate=1e-6", "grpo.schedule=constant"], "min_learning_rate"),
        ] {
            let found = notes_of(keys);
            assert_eq!(found.len(), 1, "{keys:?}: {found:?}");
            assert!(found[0].starts_with(&format!("note: `grpo.{key}` = ")), "{found:?}");
            #[cfg(feature = "faults")]
            assert!(faults::with(Fault::KeysWithoutEffectUnreported, || notes_of(keys)).is_empty());
        }
        for keys in [
            &["grpo.epsilon=0.3", "grpo.num_iterations=2"][..],
            &["grpo.epsilon=0.2"],
            &["grpo.epsilon_high=5", "grpo.loss_type=cispo"],
            &["grpo.ref_model_mixup_alpha=0.5", "grpo.beta=0.1", "grpo.ref_model_sync_steps=2"],
            &["grpo.reward=cat", "grpo.reward_processes=2"],
            &["grpo.wrong_answers=0.7"],
            &["grpo.min_learning_rate=1e-6"],
        ] {
            assert_eq!(notes_of(keys), [""; 0], "{keys:?}");
        }
    }
}
