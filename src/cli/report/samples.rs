//! Samples and completions in a report.
use crate::report::html::Page;
use crate::report::units;
use crate::run::{RunView, Scored};

/// The newest samples of each run; earlier ones behind a summary.
pub(super) fn section(page: &mut Page, views: &[RunView]) {
    let shown: Vec<&RunView> =
        views.iter().filter(|view| !view.samples.is_empty() || view.rollout.is_some()).collect();
    if shown.is_empty() {
        return;
    }
    page.section("Samples");
    for view in shown {
        let name = if views.len() > 1 { format!("{}, ", view.name) } else { String::new() };
        match &view.rollout {
            Some((step, completions)) => rollout(page, &name, *step, completions),
            None => samples(page, &name, view),
        }
    }
}

fn samples(page: &mut Page, name: &str, view: &RunView) {
    let Some((last, earlier)) = view.samples.split_last() else { return };
    for text in &last.samples {
        page.text(&format!("{name}step {}", last.step), text);
    }
    if !earlier.is_empty() {
        page.open_details(&format!("{name}samples of {}", units::many(earlier.len() as u64, "earlier step")));
        for line in earlier.iter().rev() {
            line.samples.iter().for_each(|text| page.text(&format!("step {}", line.step), text));
        }
        page.close_details();
    }
}

/// The best, the median and the worst completion, then all of them as a table.
fn rollout(page: &mut Page, name: &str, step: u64, completions: &[Scored]) {
    let mut order: Vec<&Scored> = completions.iter().collect();
    let reward = |scored: &Scored| scored.reward.unwrap_or(f64::NEG_INFINITY);
    order.sort_by(|a, b| reward(b).total_cmp(&reward(a)));
    let value = |scored: &Scored| scored.reward.map_or("none".to_string(), units::decimal);
    let picks = [("best", 0), ("median", order.len() / 2), ("worst", order.len().saturating_sub(1))];
    for (rank, at) in picks {
        let Some(scored) = order.get(at) else { continue };
        let caption = format!("{name}step {step}, {rank}, reward {}", value(scored));
        page.text(&caption, &format!("{}\u{25b8}{}", scored.prompt, scored.completion));
    }
    page.open_details(&format!("{name}all completions of step {step}"));
    let row = |scored: &&Scored| vec![value(scored), scored.prompt.clone(), scored.completion.clone()];
    page.table(&["reward", "prompt", "completion"], &order.iter().map(row).collect::<Vec<_>>());
    page.close_details();
}
