//! The layout of the dashboard.
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::line;
use ratatui::text::{Line, Span};
use ratatui::widgets::{LineGauge, Paragraph, Wrap};

use super::watched::Watched;
use super::{panels, plain};
use crate::report::{printable, units};
use crate::run::{Activity, RunView};

/// Draws the run on the whole frame.
pub(super) fn draw(frame: &mut Frame<'_>, watched: &Watched) {
    let activity = watched.activity();
    let Some(view) = &watched.view else {
        let text =
            format!("waiting for {}\n\nThe directory does not exist yet. q quits.", watched.run.display());
        return frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), frame.area());
    };
    let area = frame.area();
    let below = if area.height >= 20 { (area.height / 3).min(14) } else { 0 };
    let [head, values, gauge, charts, texts] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(5),
        Constraint::Length(below),
    ])
    .areas(area);
    header(frame, head, view, &activity);
    frame.render_widget(Paragraph::new(plain::values(view).join("   ")), values);
    progress(frame, gauge, view, &activity);
    curves(frame, charts, view);
    let (wide, narrow) = if area.width >= 70 { (Constraint::Min(30), 30) } else { (Constraint::Min(1), 0) };
    let [samples, times] = Layout::horizontal([wide, Constraint::Length(narrow)]).areas(texts);
    panels::samples(frame, samples, view);
    panels::times(frame, times, view);
}

fn header(frame: &mut Frame<'_>, area: Rect, view: &RunView, activity: &Activity) {
    let color = match activity {
        Activity::Finished => Color::Green,
        Activity::Failed(_) => Color::Red,
        Activity::Running => Color::Cyan,
        Activity::Waiting | Activity::Stopped | Activity::Inactive => Color::Yellow,
    };
    let mut spans = vec![
        Span::styled(printable(&view.name), Style::new().add_modifier(Modifier::BOLD)),
        Span::raw("  "),
        Span::styled(activity.word(), Style::new().fg(color)),
    ];
    if let Activity::Failed(message) = activity {
        spans.push(Span::raw(format!(": {}", printable(message))));
    }
    if let Some(session) = &view.session {
        spans.push(Span::styled(format!("  {}", session.machine.device), panels::dim()));
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
    frame.render_widget(Paragraph::new(Line::styled("q quits", panels::dim()).right_aligned()), area);
}

fn progress(frame: &mut Frame<'_>, area: Rect, view: &RunView, activity: &Activity) {
    let mut label = plain::progress(view);
    if let (true, Some(seconds)) = (activity.may_continue(), view.seconds_left()) {
        label += &format!(", {} left", units::seconds(seconds));
    }
    let ratio = view.steps().map_or(0.0, |steps| view.step() as f64 / steps.max(1) as f64);
    let gauge = LineGauge::default().ratio(ratio.clamp(0.0, 1.0)).label(label);
    let gauge = gauge.filled_symbol(line::THICK_HORIZONTAL).unfilled_symbol(line::HORIZONTAL);
    frame.render_widget(gauge.filled_style(Style::new().fg(Color::Cyan)), area);
}

/// The main chart, and next to it two smaller ones if there is room.
fn curves(frame: &mut Frame<'_>, area: Rect, view: &RunView) {
    let (main, small): (&[&str], [&str; 2]) = match view.is_grpo() {
        true => {
            (&["reward", "eval/reward_sampled", "eval/reward_greedy"], ["completions/mean_length", "entropy"])
        }
        false => (&["loss", "val_loss"], ["learning_rate", "grad_norm"]),
    };
    if area.width < 80 {
        return panels::chart(frame, area, view, main);
    }
    let [left, right] = Layout::horizontal([Constraint::Fill(3), Constraint::Fill(2)]).areas(area);
    panels::chart(frame, left, view, main);
    let [upper, lower] = Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).areas(right);
    panels::chart(frame, upper, view, &small[..1]);
    panels::chart(frame, lower, view, &small[1..]);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tempfile::TempDir;

    use super::*;
    use crate::run::{RunDir, RunView};

    /// A run directory.
    fn run(files: &[(&str, &str)]) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn screen(run: impl AsRef<Path>, width: u16, height: u16) -> String {
        let view = RunDir::open(run.as_ref()).ok().map(|run| RunView::read(&run).unwrap());
        let watched = Watched { view, ..Watched::new(run.as_ref()) };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &watched)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(width.into());
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_string() + "\n")
            .collect()
    }

    #[test]
    fn times_that_are_none_are_ignored() {
        let times = "{\"step\":1,\"step_time\":1,\"eval_time\":-0.999999999999}\n\
                     {\"step\":2,\"a_time\":-1e300,\"b_time\":1e308,\"c_time\":1e308}\n";
        let run = run(&[("metrics.jsonl", "{\"step\":1,\"loss\":1}\n"), ("timings.jsonl", times)]);
        assert!(screen(&run, 120, 40).contains("time"));
    }

    fn training() -> TempDir {
        let line = |step: i32| {
            let loss = 5 - step;
            format!("{{\"step\":{step},\"loss\":{loss},\"learning_rate\":0.001,\"grad_norm\":0.5}}\n")
        };
        let metrics: String = (1..=4).map(line).collect();
        let times = "{\"step\":4,\"step_time\":3,\"eval_time\":1,\"tokens_per_second\":2000}\n";
        let samples = "{\"step\":4,\"samples\":[\"once \\u001b[31mupon\\na time\"]}\n";
        run(&[
            ("metrics.jsonl", &metrics),
            ("timings.jsonl", times),
            ("samples.jsonl", samples),
            ("config.toml", "[train]\nsteps = 8\n"),
        ])
    }

    #[test]
    fn the_screen_of_a_run_has_progress_curves_sample_and_times() {
        let run = training();
        let (shown, name) = (screen(&run, 80, 24), run.path().file_name().unwrap().display());
        let lines: Vec<&str> = shown.lines().collect();
        assert!(
            lines[0].starts_with(&format!("{name}  running")) && lines[0].ends_with("q quits"),
            "{shown}"
        );
        assert_eq!(lines[1], "loss 1.000   2.00 ktok/s");
        assert!(lines[2].starts_with("step 4/8 (50 %), 4.00 s left \u{2501}"), "{shown}");
        for part in [
            " loss 1.000 ",
            " learning_rate 1.000e-3 ",
            "4.000\u{2502}",
            " sample of step 4 ",
            "once \u{fffd}[31mupon",
            "a time",
            " time 4.00 s ",
            "step          75 % \u{2588}",
            "eval          25 % \u{2588}",
        ] {
            assert!(shown.contains(part), "{part:?}:\n{shown}");
        }
        let charts = lines.iter().filter(|line| line.contains("grad_"));
        assert_eq!(charts.count(), 1, "each of the smaller charts has one curve:\n{shown}");
        let dots = shown.chars().filter(|c| ('\u{2801}'..='\u{28ff}').contains(c)).count();
        assert!(dots > 20, "{dots} braille characters:\n{shown}");
    }

    #[test]
    fn only_a_run_that_continues_has_time_left() {
        let run = training();
        let view = RunView::read(&RunDir::open(run.path()).unwrap()).unwrap();
        let [running, stopped] =
            [Activity::Running, Activity::Stopped].map(|activity| plain::status(&view, &activity));
        assert!(running.ends_with(", 4.00 s left"), "{running}");
        assert_eq!(stopped, running.replace(", 4.00 s left", "; stopped"));
    }

    #[test]
    fn every_size_of_a_terminal_can_be_drawn() {
        let run = training();
        for width in [1, 2, 10, 40, 69, 79, 200] {
            for height in [1, 3, 8, 19, 60] {
                screen(&run, width, height);
            }
        }
    }

    #[test]
    fn a_run_of_reinforcement_learning_shows_its_best_and_its_worst_completion() {
        let line = |reward: f64, text: &str| {
            format!(
                "{{\"prompt_id\":0,\"group\":0,\"sample\":0,\"sample_id\":0,\"seed\":0,\"prompt\":\"1+1=\",\
                 \"completion\":\"{text}\",\"prompt_ids\":[],\"completion_ids\":[],\"processed_logprobs\":[],\
                 \"reward\":{reward},\"finish_reason\":\"eos\",\"truncated\":false,\"temperature\":1,\"top_p\":1,\
                 \"top_k\":0,\"min_p\":0}}\n"
            )
        };
        let metrics = "{\"step\":1,\"reward\":0.5,\"completions/mean_length\":3,\"entropy\":1.5}\n";
        let rows = line(0.0, "3") + &line(1.0, "2");
        let run = run(&[("metrics.jsonl", metrics), ("rollouts/step_000001.jsonl", &rows)]);
        let shown = screen(&run, 100, 30);
        for part in [
            "reward 0.500   length 3.000   entropy 1.500",
            "best, reward 1.000: 1+1=2",
            "worst, reward 0.000: 1+1=3",
        ] {
            assert!(shown.contains(part), "{part:?}:\n{shown}");
        }
    }

    #[test]
    fn a_run_that_does_not_exist_is_waited_for() {
        assert!(screen("no/such/run", 60, 5).starts_with("waiting for no/such/run\n"));
    }
}
