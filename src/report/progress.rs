//! How far a long job is: a bar on a terminal, a plain line every few seconds anywhere else.
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::units;

/// The time between two plain lines.
const EVERY: Duration = Duration::from_secs(5);

/// Where progress is shown; always standard error, so that standard output holds results alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Screen {
    /// A terminal that shows colours.
    Colour,
    /// A terminal without colours.
    Mono,
    /// Not a terminal: a file, a pipe, a log.
    Lines,
}

impl Screen {
    /// What standard error is; `NO_COLOR` with any text in it asks for none.
    pub fn detect() -> Screen {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|text| !text.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        match std::io::stderr().is_terminal() && !dumb {
            false => Screen::Lines,
            true if plain => Screen::Mono,
            true => Screen::Colour,
        }
    }
}

/// The progress of one job of a known length.
#[derive(Debug)]
pub struct Progress {
    job: Job,
    bar: Option<ProgressBar>,
    said: Instant,
}

/// What a line about a job says.
#[derive(Debug)]
struct Job {
    what: &'static str,
    unit: &'static str,
    total: u64,
    began: Instant,
    first: u64,
    done: u64,
    note: String,
}

impl Progress {
    /// A job `what` of `total` units, `first` of them already done (a resumed run: they do not count
    /// towards the rate).
    pub fn new(what: &'static str, unit: &'static str, total: u64, first: u64) -> Progress {
        Progress::on(Screen::detect(), Job::new(what, unit, total, first))
    }

    fn on(screen: Screen, job: Job) -> Progress {
        let colour = match screen {
            Screen::Colour => ".cyan/blue",
            Screen::Mono | Screen::Lines => "",
        };
        let bar = (screen != Screen::Lines).then(|| {
            let template = format!("{{prefix}} [{{bar:28{colour}}}] {{pos}}/{{len}} {{msg}}");
            let style = ProgressStyle::with_template(&template).expect("a template of known keys");
            let bar = ProgressBar::with_draw_target(Some(job.total), ProgressDrawTarget::stderr());
            bar.set_style(style.progress_chars("=> "));
            bar.set_prefix(job.what);
            bar.set_position(job.first);
            bar
        });
        Progress { job, bar, said: Instant::now() }
    }

    /// Says that `done` units are done; `note` is what there is to say about the last, as `loss 1.23`.
    pub fn at(&mut self, done: u64, note: &str) {
        self.job.done = done;
        note.clone_into(&mut self.job.note);
        match &self.bar {
            Some(bar) => {
                bar.set_position(done);
                bar.set_message(self.job.tail(Instant::now()));
            }
            None if self.said.elapsed() >= EVERY => self.say(),
            None => {}
        }
    }

    /// Prints a line that stays, above the bar.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| to_stderr(text)),
            None => to_stderr(text),
        }
    }

    /// Ends the job: removes the bar and prints one last line.
    pub fn finish(mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        to_stderr(&self.job.end(Instant::now()));
    }

    fn say(&mut self) {
        self.said = Instant::now();
        to_stderr(&self.job.plain(self.said));
    }
}

impl Job {
    fn new(what: &'static str, unit: &'static str, total: u64, first: u64) -> Job {
        Job { what, unit, total, began: Instant::now(), first, done: first, note: String::new() }
    }

    /// Units per second since the job began.
    fn rate(&self, now: Instant) -> f64 {
        let seconds = now.saturating_duration_since(self.began).as_secs_f64();
        self.done.saturating_sub(self.first) as f64 / seconds
    }

    /// Rate, time left, note.
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

    fn plain(&self, now: Instant) -> String {
        let share = 100 * self.done.min(self.total) / self.total.max(1);
        format!("{}: {}/{} ({share} %), {}", self.what, self.done, self.total, self.tail(now))
    }

    fn end(&self, now: Instant) -> String {
        let took = units::duration(now.saturating_duration_since(self.began));
        format!("{}: {}/{} in {took}, {}", self.what, self.done, self.total, self.tail(now))
    }
}

/// A line on standard error. That it cannot be written is no reason to stop a job.
fn to_stderr(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_share_rate_time_left_and_note() {
        let mut job = Job::new("train", "step", 2000, 0);
        let now = job.began + Duration::from_secs(10);
        assert_eq!(job.plain(job.began), "train: 0/2000 (0 %), - step/s");
        job.done = 500;
        job.note = "loss 2.10".to_string();
        assert_eq!(job.plain(now), "train: 500/2000 (25 %), 50.0 step/s, 30 s left, loss 2.10");
        job.done = 2000;
        assert_eq!(job.end(now), "train: 2000/2000 in 10 s, 200 step/s, loss 2.10");
    }

    #[test]
    fn what_a_resumed_run_found_done_does_not_count_towards_its_rate() {
        let mut job = Job::new("train", "step", 2000, 1000);
        job.done = 1100;
        let now = job.began + Duration::from_secs(10);
        assert_eq!(job.plain(now), "train: 1100/2000 (55 %), 10.0 step/s, 1m 30s left");
    }

    #[test]
    fn every_screen_shows_a_job_from_its_beginning_to_its_end() {
        for screen in [Screen::Colour, Screen::Mono, Screen::Lines] {
            let mut progress = Progress::on(screen, Job::new("train", "step", 3, 0));
            for done in 1..=3 {
                progress.at(done, "loss 2.1");
                progress.line("a sample");
            }
            progress.finish();
        }
    }

    #[test]
    fn an_empty_job_divides_by_nothing() {
        let job = Job::new("read", "line", 0, 0);
        assert_eq!(job.plain(job.began), "read: 0/0 (0 %), - line/s");
    }
}
