//! Warnings about the course of a run, in plain words.
use super::metrics::StepMetrics;
use crate::tensor::faults::{self, Fault};

/// Generation batches that a mean runs over.
const WINDOW: usize = 20;
/// Fraction of groups without spread above which a warning is due.
const FLAT: f64 = 0.7;
/// Fall of the greedy reward below its best value that is reported.
const FALL: f64 = 0.03;

/// The course of a run so far. Each warning is given once.
#[derive(Debug, Clone, Default)]
pub struct Warnings {
    rewards: Vec<f64>,
    flat: Vec<f64>,
    /// Sampled and greedy held-out reward of each evaluation.
    evaluations: Vec<[f64; 2]>,
    given: Vec<&'static str>,
}

impl Warnings {
    /// The state of a resumed run after the lines of its `metrics.jsonl`. Warnings that were due are not given again.
    pub fn after(lines: impl IntoIterator<Item = StepMetrics>) -> Warnings {
        let mut warnings = Warnings::default();
        for metrics in lines {
            warnings.check(&metrics);
        }
        warnings
    }

    /// Adds the metrics of a step. Returns the warnings that are due.
    pub fn check(&mut self, metrics: &StepMetrics) -> Vec<String> {
        let flat = metrics.get("frac_reward_zero_std");
        self.rewards.extend(metrics.get("reward"));
        // a batch without a reward has its own warning
        let unrewarded = flat.is_some() && metrics.get("reward").is_none();
        self.flat.extend(flat.filter(|_| !unrewarded));
        let unrewarded = unrewarded && !faults::on(Fault::MissingRewardsUnreported);
        if let (Some(sampled), Some(greedy)) =
            (metrics.get("eval/reward_sampled"), metrics.get("eval/reward_greedy"))
        {
            self.evaluations.push([sampled, greedy]);
        }
        let truncated = metrics.get("completions/clipped_ratio") == Some(1.0);
        let due = [
            ("unrewarded", unrewarded.then(|| without_reward(metrics.step))),
            ("flat", self.without_spread()),
            ("greedy", self.greedy_falls()),
            ("collapse", self.reward_halved()),
            ("truncated", truncated.then(truncation)),
        ];
        let mut warnings = Vec::new();
        for (name, text) in due {
            if let Some(text) = text.filter(|_| !self.given.contains(&name)) {
                self.given.push(name);
                warnings.push(text);
            }
        }
        warnings
    }

    fn without_spread(&self) -> Option<String> {
        let mean = last_mean(&self.flat)?;
        (mean > FLAT).then(|| {
            format!(
                "in the last {WINDOW} batches, {:.0} % of the completions were in groups whose rewards are all equal; \
                 they do not change the model. Use other prompts, a higher grpo.temperature, more \
                 grpo.num_generations, or grpo.resample_groups",
                100.0 * mean
            )
        })
    }

    fn greedy_falls(&self) -> Option<String> {
        let ([first_sampled, _], [sampled, greedy]) = (self.evaluations.first()?, self.evaluations.last()?);
        let best = self.evaluations.iter().map(|[_, greedy]| *greedy).fold(f64::NEG_INFINITY, f64::max);
        (*greedy < best - FALL && sampled > first_sampled).then(|| {
            format!(
                "the greedy reward on held-out prompts fell from {best:.3} to {greedy:.3} while the sampled reward \
                 rose to {sampled:.3}. Use a lower grpo.learning_rate, or one that decays"
            )
        })
    }

    fn reward_halved(&self) -> Option<String> {
        let start = self.rewards.get(..WINDOW)?.iter().sum::<f64>() / WINDOW as f64;
        let now = last_mean(&self.rewards)?;
        (start > 0.0 && now < start / 2.0).then(|| {
            format!(
                "the reward fell from {start:.3} (first {WINDOW} batches) to {now:.3} (last {WINDOW} batches). Use a \
                 lower grpo.learning_rate, or grpo.beta above 0"
            )
        })
    }
}

fn without_reward(step: u64) -> String {
    format!(
        "no completion of step {step} has a reward: every reply was null, so there is nothing to learn from. Check which \
         fields of a request the reward program reads"
    )
}

fn truncation() -> String {
    "every completion of this step reached the length limit. Raise grpo.max_completion_length, add texts to grpo.stop, \
     or start from a model that ends its answers"
        .to_string()
}

/// The mean of the last [`WINDOW`] values. `None`: there are fewer.
fn last_mean(values: &[f64]) -> Option<f64> {
    let last = values.len().checked_sub(WINDOW)?;
    Some(values[last..].iter().sum::<f64>() / WINDOW as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(step: u64, values: &[(&str, f64)]) -> StepMetrics {
        let mut metrics = StepMetrics::new(step);
        values.iter().for_each(|(name, value)| metrics.push(*name, *value));
        metrics
    }

    /// The warnings of a run whose step n has these values.
    fn warnings(steps: u64, values: impl Fn(u64) -> Vec<(&'static str, f64)>) -> Vec<String> {
        let mut state = Warnings::default();
        (1..=steps).flat_map(|step| state.check(&line(step, &values(step)))).collect()
    }

    #[test]
    fn a_resumed_run_continues_its_course_and_repeats_no_warning() {
        // The rewards of the first 20 steps are the start that later steps are compared with.
        let values =
            |n: u64| [("reward", if n <= 20 { 0.6 } else { 0.2 }), ("completions/clipped_ratio", 1.0)];
        let lines: Vec<StepMetrics> = (1..=60).map(|step| line(step, &values(step))).collect();
        let given = |state: &mut Warnings, lines: &[StepMetrics]| -> Vec<String> {
            lines.iter().flat_map(|metrics| state.check(metrics)).collect()
        };
        let want = given(&mut Warnings::default(), &lines);
        assert_eq!(want.len(), 2, "{want:?}");
        for stop in 0..=lines.len() {
            let (before, after) = lines.split_at(stop);
            let first = given(&mut Warnings::default(), before);
            let second = given(&mut Warnings::after(before.iter().cloned()), after);
            assert_eq!([first, second].concat(), want, "resumed after step {stop}");
        }
    }

    #[test]
    fn each_warning_is_given_once_when_it_is_due_and_not_otherwise() {
        assert_eq!(warnings(60, |_| vec![("reward", 0.5), ("frac_reward_zero_std", 0.6)]), [""; 0]);
        let flat = warnings(60, |_| vec![("reward", 0.5), ("frac_reward_zero_std", 0.8)]);
        assert!(flat.len() == 1 && flat[0].contains("80 % of the completions"), "{flat:?}");
        let fallen = warnings(60, |n| vec![("reward", if n <= 20 { 0.6 } else { 0.2 })]);
        assert!(fallen.len() == 1 && fallen[0].contains("fell from 0.600"), "{fallen:?}");
        let greedy = warnings(3, |n| {
            vec![("eval/reward_sampled", n as f64 / 10.0), ("eval/reward_greedy", 1.0 - n as f64 / 10.0)]
        });
        assert!(greedy.len() == 1 && greedy[0].contains("from 0.900 to 0.800"), "{greedy:?}");
        let truncated = warnings(2, |_| vec![("completions/clipped_ratio", 1.0)]);
        assert!(truncated.len() == 1 && truncated[0].contains("max_completion_length"), "{truncated:?}");
        assert_eq!(warnings(2, |_| vec![("completions/clipped_ratio", 0.9)]), [""; 0]);
        // steps without a new generation batch have neither value
        let unrewarded = warnings(60, |n| if n == 3 { vec![("frac_reward_zero_std", 1.0)] } else { vec![] });
        assert!(unrewarded.len() == 1 && unrewarded[0].contains("no completion of step 3"), "{unrewarded:?}");
        let none = || warnings(60, |_| vec![("frac_reward_zero_std", 1.0)]);
        assert!(none().len() == 1 && none()[0].contains("no completion of step 1"), "{:?}", none());
        #[cfg(feature = "faults")]
        assert_eq!(faults::with(Fault::MissingRewardsUnreported, none), [""; 0]);
    }
}
