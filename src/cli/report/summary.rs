//! The numbers of a report: tiles, comparison, machines, differences of the configuration.
use crate::config::RunConfig;
use crate::config::check::tree;
use crate::model::store;
use crate::report::units;
use crate::run::{Machine, RunView};

/// The kind of run, its start and its size.
pub(super) fn subtitle(view: &RunView) -> String {
    let command = if view.is_grpo() { "xtrain grpo" } else { "xtrain train" };
    let mut parts = vec![command.to_string(), view.path().display().to_string()];
    if let Some(session) = &view.session {
        parts.push(format!("started {}", units::utc(session.started)));
    }
    parts.join(" \u{b7} ")
}

/// A label, a value and a note for each number.
pub(super) fn tiles(view: &RunView) -> Vec<[String; 3]> {
    let (step, steps) = (view.step(), view.steps());
    let mut tiles = vec![[
        "steps".to_string(),
        step.to_string(),
        steps.map_or(String::new(), |steps| format!("of {steps}")),
    ]];
    let mut tile = |label: &str, value: String, note: String| tiles.push([label.to_string(), value, note]);
    for (label, key, best) in [
        ("reward", "reward", f64::max as fn(f64, f64) -> f64),
        ("held-out reward", "eval/reward_sampled", f64::max),
        ("loss", "loss", f64::min),
        ("validation loss", "val_loss", f64::min),
        ("mean length", "completions/mean_length", f64::max),
    ] {
        let Some(points) = view.metrics.curve(key).filter(|points| !points.is_empty()) else { continue };
        if key == "loss" && view.is_grpo() {
            continue;
        }
        let last = points[points.len() - 1].1;
        let found = points.iter().map(|point| point.1).reduce(best).unwrap_or(last);
        let at = points.iter().find(|point| point.1 == found).map_or(0.0, |point| point.0);
        let note = match key {
            "loss" | "completions/mean_length" => "last step".to_string(),
            _ if found == last => "the best so far".to_string(),
            _ => format!("best {} at step {at}", units::decimal(found)),
        };
        tile(label, units::decimal(last), note);
    }
    if let Some(rate) = mean(view.timings.curve("tokens_per_second")) {
        tile("speed", units::rate(rate, "tok"), "mean".to_string());
    }
    let seconds: f64 = view.time_split().iter().map(|part| part.1).sum();
    if seconds > 0.0 {
        tile("time", units::seconds(seconds), "of all phases".to_string());
    }
    if let Ok(config) = store::config_of(view.path()) {
        let shape = format!("{} layers of width {}", config.n_layers, config.dim);
        tile("parameters", units::count(config.n_params() as u64), shape);
    }
    tiles
}

fn mean(points: Option<&[(f64, f64)]>) -> Option<f64> {
    let points = points.filter(|points| !points.is_empty())?;
    Some(points.iter().map(|point| point.1).sum::<f64>() / points.len() as f64)
}

/// The numbers of several runs, a row for each label.
pub(super) fn rows(views: &[RunView]) -> Vec<Vec<String>> {
    let all: Vec<Vec<[String; 3]>> = views.iter().map(tiles).collect();
    let mut labels: Vec<&String> = Vec::new();
    for [label, ..] in all.iter().flatten() {
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    let cell = |tiles: &Vec<[String; 3]>, label: &String| {
        let tile = tiles.iter().find(|tile| tile[0] == *label);
        tile.map_or("none".to_string(), |[_, value, note]| format!("{value} ({note})").replace(" ()", ""))
    };
    let state =
        ["state".to_string()].into_iter().chain(views.iter().map(|v| v.activity().word().to_string()));
    let row = |label: &&String| {
        [(*label).clone()].into_iter().chain(all.iter().map(|tiles| cell(tiles, label))).collect()
    };
    [state.collect()].into_iter().chain(labels.iter().map(row)).collect()
}

/// The machines of the runs, a row for each property.
pub(super) fn machines(views: &[RunView]) -> Vec<Vec<String>> {
    type Property = (&'static str, fn(&Machine) -> String);
    const PROPERTIES: [Property; 6] = [
        ("device", |m| m.device.clone()),
        ("CPU", |m| m.cpu.clone().unwrap_or("unknown".into())),
        ("memory", |m| m.memory.map_or("unknown".into(), units::bytes)),
        ("system", |m| m.system.clone()),
        ("xtrain", |m| m.version.clone()),
        ("commit", |m| m.commit.clone()),
    ];
    let of = |view: &RunView, property: &Property| {
        view.session.as_ref().map_or("not recorded".to_string(), |session| property.1(&session.machine))
    };
    let row = |property: &Property| {
        [property.0.to_string()].into_iter().chain(views.iter().map(|view| of(view, property))).collect()
    };
    PROPERTIES.iter().map(row).collect()
}

/// The keys of the configuration whose values differ, with both values.
pub(super) fn differences(a: &RunView, b: &RunView) -> Vec<Vec<String>> {
    let [a, b] = [a, b].map(|view| view.config.as_ref().map(leaves).unwrap_or_default());
    let mut keys: Vec<&String> = a.iter().chain(&b).map(|leaf| &leaf.0).collect();
    keys.sort();
    keys.dedup();
    let value = |leaves: &[(String, String)], key: &String| {
        leaves.iter().find(|leaf| leaf.0 == *key).map_or("none".to_string(), |leaf| leaf.1.clone())
    };
    let rows = keys.into_iter().map(|key| vec![key.clone(), value(&a, key), value(&b, key)]);
    rows.filter(|row| row[1] != row[2]).collect()
}

/// The keys of a configuration and their values.
fn leaves(config: &RunConfig) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (section, keys) in tree(config) {
        for (key, value) in keys.as_table().into_iter().flatten() {
            all.push((format!("{section}.{key}"), value.to_string()));
        }
    }
    all
}
