//! Progress of long jobs: a bar on a terminal, otherwise a line every few seconds.
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::units;
use crate::standard_error::is_silent;
use crate::tensor::faults::{self, Fault};

/// The least width of a bar, in columns. A narrower terminal has none.
const MIN_BAR: usize = 10;

/// Time between two plain lines.
const INTERVAL: Duration = Duration::from_secs(5);

/// The kind of output on standard error. Progress is never written to standard output, which is for results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Screen {
    /// A terminal with colors.
    Color,
    /// A terminal without colors.
    Mono,
    /// Not a terminal: a file, a pipe, a log.
    Lines,
}

impl Screen {
    /// Detects the kind of standard error. A non-empty `NO_COLOR` disables colors.
    fn detect() -> Screen {
        let terminal = std::io::stderr().is_terminal() && !is_silent();
        Screen::of(terminal, &|name| std::env::var(name).ok())
    }

    /// The kind of standard error, which is a `terminal` or not, with these environment variables.
    fn of(terminal: bool, variable: &dyn Fn(&str) -> Option<String>) -> Screen {
        let plain = variable("NO_COLOR").is_some_and(|text| !text.is_empty());
        let dumb = variable("TERM").is_some_and(|term| term == "dumb");
        match terminal && !dumb {
            false => Screen::Lines,
            true if plain => Screen::Mono,
            true => Screen::Color,
        }
    }
}

/// The progress of a job of known length.
#[derive(Debug)]
pub(crate) struct Progress {
    job: Job,
    bar: Option<Bar>,
    last_line: Instant,
}

/// The last line of a terminal.
#[derive(Debug)]
struct Bar {
    line: ProgressBar,
    color: bool,
    /// Whether there is a bar next to the numbers.
    is_wide: bool,
}

impl Bar {
    fn new(color: bool, job: &Job, columns: usize) -> Bar {
        let line = ProgressBar::with_draw_target(Some(job.total), ProgressDrawTarget::stderr());
        line.set_style(Bar::style(color, false));
        let mut bar = Bar { line: line.with_prefix(job.name), color, is_wide: false };
        bar.show(job, job.start, columns);
        bar
    }

    fn style(color: bool, is_wide: bool) -> ProgressStyle {
        let template = match (is_wide, color) {
            (false, _) => "{msg}",
            (true, false) => "{prefix} [{wide_bar}] {msg}",
            (true, true) => "{prefix} [{wide_bar:.cyan/blue}] {msg}",
        };
        let style = ProgressStyle::with_template(template).expect("a template of known keys");
        style.progress_chars("=> ")
    }

    /// Draws the progress of `job` in a terminal of `columns` columns.
    fn show(&mut self, job: &Job, now: Instant, columns: usize) {
        let beside = job.beside_bar(now, columns);
        if beside.is_some() != self.is_wide {
            self.is_wide = beside.is_some();
            self.line.set_style(Bar::style(self.color, self.is_wide));
        }
        self.line.set_message(beside.unwrap_or_else(|| job.within(now, columns)));
        self.line.set_position(job.done);
    }
}

/// The width of the terminal. Some consoles report 0.
fn columns() -> usize {
    let columns = ratatui::crossterm::terminal::window_size().map_or(0, |size| size.columns);
    if columns == 0 { 80 } else { columns.into() }
}

#[derive(Debug)]
struct Job {
    name: &'static str,
    unit: &'static str,
    total: u64,
    start: Instant,
    /// Where the time of the first unit begins.
    first_unit: Instant,
    first: u64,
    done: u64,
    note: String,
}

impl Progress {
    /// A job of `total` units, of which `first` are already done. These do not count towards the rate.
    pub(crate) fn new(name: &'static str, unit: &'static str, total: u64, first: u64) -> Progress {
        Progress::on(Screen::detect(), Job::new(name, unit, total, first))
    }

    /// [`Progress::new`] of a command that prints results while it runs. A bar would be in the same terminal as these, so
    /// there are plain lines instead.
    pub(crate) fn beside_results(name: &'static str, unit: &'static str, total: u64, first: u64) -> Progress {
        let screen = if std::io::stdout().is_terminal() { Screen::Lines } else { Screen::detect() };
        Progress::on(screen, Job::new(name, unit, total, first))
    }

    fn on(screen: Screen, job: Job) -> Progress {
        let bar = (screen != Screen::Lines).then(|| Bar::new(screen == Screen::Color, &job, columns()));
        Progress { job, bar, last_line: Instant::now() }
    }

    /// Starts the time of the first unit. The rate excludes the preparations before it.
    pub(crate) fn begin_units(&mut self) {
        if !faults::on(Fault::PreparationsInRate) {
            self.job.first_unit = Instant::now();
        }
    }

    /// Reports that `done` units are done. `note` is shown after the rate, for example `loss 1.23`.
    pub(crate) fn at(&mut self, done: u64, note: &str) {
        self.job.done = done;
        self.note(note);
        match &mut self.bar {
            Some(bar) => bar.show(&self.job, Instant::now(), columns()),
            None if self.last_line.elapsed() >= INTERVAL => {
                self.last_line = Instant::now();
                to_stderr(&self.job.plain(self.last_line));
            }
            None => {}
        }
    }

    /// Prints a permanent line above the bar.
    pub(crate) fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.line.suspend(|| to_stderr(text)),
            None => to_stderr(text),
        }
    }

    /// Replaces what follows the rate.
    pub(crate) fn note(&mut self, note: &str) {
        note.clone_into(&mut self.job.note);
    }

    /// Ends the job: removes the bar and prints one last line.
    pub(crate) fn finish(mut self) {
        if let Some(bar) = self.bar.take() {
            bar.line.finish_and_clear();
        }
        to_stderr(&self.job.end(Instant::now()));
    }
}

impl Job {
    fn new(name: &'static str, unit: &'static str, total: u64, first: u64) -> Job {
        let start = Instant::now();
        Job { name, unit, total, start, first_unit: start, first, done: first, note: String::new() }
    }

    /// Units per second.
    fn rate(&self, now: Instant) -> f64 {
        let seconds = now.saturating_duration_since(self.first_unit).as_secs_f64();
        self.done.saturating_sub(self.first) as f64 / seconds
    }

    /// Rate, remaining time, note.
    fn tail(&self, now: Instant) -> String {
        let rate = self.rate(now);
        let left = self.total.saturating_sub(self.done) as f64 / rate;
        let mut text = units::rate(rate, self.unit);
        if let (true, Ok(left)) = (self.done < self.total, Duration::try_from_secs_f64(left)) {
            text.push_str(&format!(", {} left", units::duration(left)));
        }
        if !self.note.is_empty() {
            text.push_str(&format!(", {}", self.note));
        }
        text
    }

    /// The numbers next to a bar, if a line of `columns` columns has room for it.
    fn beside_bar(&self, now: Instant, columns: usize) -> Option<String> {
        let text = format!("{}/{} {}", self.done, self.total, self.tail(now));
        let used = self.name.len() + " [] ".len() + text.chars().count();
        (used + MIN_BAR <= columns).then_some(text)
    }

    /// The name and the numbers, without the last fields that a line of `columns` columns has no room for.
    fn within(&self, now: Instant, columns: usize) -> String {
        let line = format!("{} {}/{}", self.name, self.done, self.total);
        let tail = self.tail(now);
        let text = format!("{line} {tail}");
        let cuts = tail.match_indices(", ").map(|(at, _)| line.len() + 1 + at);
        let ends = [line.len()].into_iter().chain(cuts).chain([text.len()]);
        let fits =
            |end: &usize| text[..*end].chars().count() <= columns || faults::on(Fault::NarrowLineNotCut);
        match ends.filter(fits).last() {
            Some(end) => text[..end].to_string(),
            None => line.chars().take(columns).collect(),
        }
    }

    fn plain(&self, now: Instant) -> String {
        let share = 100 * self.done.min(self.total) / self.total.max(1);
        format!("{}: {}/{} ({share} %), {}", self.name, self.done, self.total, self.tail(now))
    }

    fn end(&self, now: Instant) -> String {
        let took = units::duration(now.saturating_duration_since(self.start));
        format!("{}: {}/{} in {took}, {}", self.name, self.done, self.total, self.tail(now))
    }
}

/// Prints a line on standard error. Errors are ignored: they are no reason to stop a job.
fn to_stderr(text: &str) {
    eprintln!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_percentage_rate_remaining_time_and_note() {
        let mut job = Job::new("train", "step", 2000, 0);
        let now = job.start + Duration::from_secs(10);
        assert_eq!(job.plain(job.start), "train: 0/2000 (0 %), - step/s");
        job.done = 500;
        job.note = "loss 2.10".to_string();
        assert_eq!(job.plain(now), "train: 500/2000 (25 %), 50.0 step/s, 30 s left, loss 2.10");
        job.done = 2000;
        assert_eq!(job.end(now), "train: 2000/2000 in 10 s, 200 step/s, loss 2.10");
    }

    #[test]
    fn a_narrow_terminal_loses_the_bar_and_then_the_last_fields() {
        let job = Job { done: 500, note: "loss 2.10".to_string(), ..Job::new("train", "step", 2000, 0) };
        let now = job.start + Duration::from_secs(10);
        let numbers = "500/2000 50.0 step/s, 30 s left, loss 2.10";
        assert_eq!(job.beside_bar(now, 61).as_deref(), Some(numbers));
        assert_eq!(job.beside_bar(now, 60), None);
        for (columns, want) in [
            (60, "train 500/2000 50.0 step/s, 30 s left, loss 2.10"),
            (48, "train 500/2000 50.0 step/s, 30 s left, loss 2.10"),
            (47, "train 500/2000 50.0 step/s, 30 s left"),
            (36, "train 500/2000 50.0 step/s"),
            (20, "train 500/2000"),
            (8, "train 50"),
        ] {
            assert_eq!(job.within(now, columns), want, "{columns} columns");
        }
        #[cfg(feature = "faults")]
        assert!(faults::with(Fault::NarrowLineNotCut, || job.within(now, 20)).len() > 20);
    }

    #[test]
    fn units_done_before_a_resume_do_not_count_towards_the_rate() {
        let mut job = Job::new("train", "step", 2000, 1000);
        job.done = 1100;
        let now = job.start + Duration::from_secs(10);
        assert_eq!(job.plain(now), "train: 1100/2000 (55 %), 10.0 step/s, 1m 30s left");
    }

    /// The rate of 10 units in 10 seconds, of which at least 5 ms are preparations.
    fn rate_after_preparations() -> f64 {
        let mut progress = Progress::on(Screen::Lines, Job::new("grpo", "step", 2000, 0));
        std::thread::sleep(Duration::from_millis(5));
        progress.begin_units();
        progress.job.done = 10;
        progress.job.rate(progress.job.start + Duration::from_secs(10))
    }

    #[test]
    fn preparations_do_not_count_towards_the_rate() {
        assert!(rate_after_preparations() > 1.0004);
    }

    #[test]
    #[cfg(feature = "faults")]
    fn preparations_that_count_towards_the_rate_are_found() {
        assert_eq!(faults::with(Fault::PreparationsInRate, rate_after_preparations), 1.0);
    }

    #[test]
    fn only_a_terminal_that_is_not_dumb_shows_a_bar() {
        let of = |terminal, term: Option<&str>, no_color: Option<&str>| {
            let variable = |name: &str| match name {
                "TERM" => term.map(str::to_string),
                "NO_COLOR" => no_color.map(str::to_string),
                _ => None,
            };
            Screen::of(terminal, &variable)
        };
        for term in [None, Some("xterm"), Some("dumb")] {
            assert_eq!(of(false, term, None), Screen::Lines, "{term:?}");
        }
        assert_eq!(of(true, Some("dumb"), None), Screen::Lines);
        assert_eq!([of(true, None, None), of(true, Some("xterm"), Some(""))], [Screen::Color; 2]);
        assert_eq!(of(true, Some("xterm"), Some("1")), Screen::Mono);
    }

    #[test]
    fn every_screen_shows_a_job_from_start_to_end() {
        for screen in [Screen::Color, Screen::Mono, Screen::Lines] {
            let mut progress = Progress::on(screen, Job::new("train", "step", 3, 0));
            for done in 1..=3 {
                progress.at(done, "loss 2.1");
                progress.line("a sample");
            }
            progress.finish();
        }
    }

    #[test]
    fn an_empty_job_has_no_rate() {
        let job = Job::new("read", "line", 0, 0);
        assert_eq!(job.plain(job.start), "read: 0/0 (0 %), - line/s");
    }
}
