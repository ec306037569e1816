//! The charts of a report.
use crate::report::html::{Curve, Figure};
use crate::report::{Series, Stroke};
use crate::run::{Metrics, RunView};
use crate::tensor::faults::{self, Fault};

/// A chart: its title, its keys, and the log that has them. `*` stands for any text.
type Spec = (&'static str, &'static [&'static str], fn(&RunView) -> &Metrics);

fn metrics(view: &RunView) -> &Metrics {
    &view.metrics
}

fn timings(view: &RunView) -> &Metrics {
    &view.timings
}

/// The charts of a run of `xtrain train`.
const TRAIN: [Spec; 6] = [
    ("Loss", &["loss", "val_loss"], metrics),
    ("Learning rate", &["learning_rate"], metrics),
    ("Gradient norm", &["grad_norm"], metrics),
    ("Tokens per second", &["tokens_per_second"], timings),
    ("Gradient norm of each group", &["grad_norm/*"], metrics),
    ("Weight norm of each group", &["weight_norm/*"], metrics),
];

/// The charts of a run of `xtrain grpo`.
const GRPO: [Spec; 11] = [
    ("Reward", &["reward", "eval/reward_sampled", "eval/reward_greedy"], metrics),
    ("Completion length in tokens", &["completions/mean_length", "completions/max_length"], metrics),
    ("Entropy", &["entropy"], metrics),
    ("Seconds of each phase", &["rollout_time", "reward_time", "update_time", "reference_time"], timings),
    ("Mean of each reward", &["rewards/*/mean"], metrics),
    ("KL divergence from the reference", &["kl"], metrics),
    ("Share of truncated completions", &["completions/clipped_ratio"], metrics),
    ("Share of groups with equal rewards", &["frac_reward_zero_std"], metrics),
    ("Loss", &["loss"], metrics),
    ("Gradient norm", &["grad_norm"], metrics),
    ("Sampled tokens per second", &["tokens_per_second"], timings),
];

/// The charts of one run, or of two runs that are compared. A chart without points is left out.
pub(super) fn figures(views: &[RunView]) -> Vec<Figure> {
    let mut specs: Vec<Spec> = Vec::new();
    if views.iter().any(RunView::is_grpo) {
        specs.extend(GRPO);
    }
    if views.iter().any(|view| !view.is_grpo()) {
        specs.extend(
            TRAIN.into_iter().filter(|spec| specs.iter().all(|other| other.0 != spec.0)).collect::<Vec<_>>(),
        );
    }
    let figures = specs.iter().map(|spec| figure(spec, views));
    figures.filter(|figure| !figure.curves.is_empty()).collect()
}

fn figure((title, patterns, log): &Spec, views: &[RunView]) -> Figure {
    let mut keys: Vec<&str> = Vec::new();
    for pattern in *patterns {
        for key in views.iter().flat_map(|view| log(view).keys()) {
            if matches(pattern, key) && !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    // One function is the reward itself.
    if patterns.iter().all(|pattern| pattern.starts_with("rewards/")) && keys.len() < 2 {
        keys.clear();
    }
    let mut curves = Vec::new();
    for (color, key) in keys.iter().enumerate() {
        for (at, view) in views.iter().enumerate() {
            let Some(points) = log(view).curve(key) else { continue };
            let name = if views.len() > 1 { format!("{}: {key}", view.name) } else { (*key).to_string() };
            let omitted = usize::from(faults::on(Fault::ReportOmitsLastValue));
            let points = &points[..points.len() - omitted.min(points.len())];
            let series = Series { name, points: points.to_vec(), stroke: Stroke::of_key(key) };
            curves.push(Curve { series, color, dashed: at > 0 });
        }
    }
    Figure { title: (*title).to_string(), curves }
}

/// Whether the key has the pattern: equal, or equal around one `*`.
fn matches(pattern: &str, key: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == key,
        Some((start, end)) => {
            key.len() >= start.len() + end.len() && key.starts_with(start) && key.ends_with(end)
        }
    }
}
