//! `xtrain report`: a run as one HTML file.
use std::path::PathBuf;

use clap::Args;

use super::atomic_file::AtomicFile;
use super::common::Force;
use super::exit::{CliError, Exit, shell_word};
use super::logs::warn_of_skipped;
use super::{out, output_path};
use crate::build_info::COMMIT;
use crate::report::html::{Bar, Page};
use crate::report::units;
use crate::run::{Activity, RunDir, RunView};

mod figures;
mod samples;
mod summary;

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
The file contains everything that it shows and loads nothing: it can be copied and sent. It has the learning curves, \
with the values under the pointer, the time of each phase, the newest samples or completions, the resolved \
configuration and the machine. --compare draws a second run into the same charts and lists the keys of the \
configuration that differ.

Examples:
  xtrain report runs/shakespeare
  xtrain report runs/grpo --out grpo.html
  xtrain report runs/b --compare runs/a --out a-b.html --force")]
pub(super) struct ReportArgs {
    /// Run of xtrain train or xtrain grpo: its directory, or its name under runs/. It may still be running.
    run: PathBuf,
    /// Second run, drawn dashed.
    #[arg(long, value_name = "RUN")]
    compare: Option<PathBuf>,
    /// Output file [default: report.html in the run directory; an earlier report there is replaced].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
}

pub(super) fn run(args: &ReportArgs) -> Result<(), CliError> {
    let run = RunDir::open(&args.run)?;
    args.out.as_ref().map_or(Ok(()), |path| output_path::check_absent(path, args.force))?;
    let path = args.out.clone().unwrap_or_else(|| run.path().join("report.html"));
    let mut views = vec![view(&run)?];
    if let Some(other) = &args.compare {
        views.push(view(&RunDir::open(other)?)?);
        if views[0].name == views[1].name {
            // Legends need two names.
            views.iter_mut().for_each(|view| view.name = view.path().display().to_string());
        }
    }
    let page = page(&views);
    let mut file = AtomicFile::create(&path)?;
    file.write(page.as_bytes())?;
    file.finish()?;
    out::print(format!("wrote {} ({})\n", path.display(), units::bytes(page.len() as u64)))
}

/// The hint for a run of `xtrain grpo` whose base model is being trained. `None`: it has no base model.
pub(super) fn base_instead(run: &RunDir, command: &str) -> Option<String> {
    let base = run.path().join("base");
    let word = shell_word(&base);
    base.join("metrics.jsonl")
        .is_file()
        .then(|| format!("only its base model has steps: xtrain {command} {word}"))
}

/// The run with at least one line of metrics.
fn view(run: &RunDir) -> Result<RunView, CliError> {
    let view = RunView::read(run)?;
    warn_of_skipped(view.skipped());
    if view.lines > 0 {
        return Ok(view);
    }
    let path = run.metrics();
    if !path.exists() {
        let error = CliError::new(Exit::Missing, format_args!("{}: no such file", path.display()));
        let other = || "expected the directory of a run of xtrain train or xtrain grpo".into();
        return Err(error.hint(base_instead(run, "report").unwrap_or_else(other)));
    }
    let word = shell_word(run.path());
    Err(CliError::new(Exit::Data, format_args!("{}: expected at least one step, found none", path.display()))
        .hint(format_args!("to wait for the first step: xtrain watch {word}")))
}

/// The page of one run, or of two.
fn page(views: &[RunView]) -> String {
    let view = &views[0];
    let names: Vec<&str> = views.iter().map(|view| view.name.as_str()).collect();
    let activity = view.activity();
    let class = match &activity {
        Activity::Finished => "good",
        Activity::Failed(_) => "bad",
        Activity::Running | Activity::Waiting => "busy",
        Activity::Stopped | Activity::Inactive => "idle",
    };
    let mut page = Page::new(&names.join(" and "), (class, activity.word()), &summary::subtitle(view));
    if let Activity::Failed(reason) = &activity {
        page.text("reason", reason);
    }
    match views {
        [_] => page.tiles(&summary::tiles(view)),
        _ => page.table(&[&[""][..], &names].concat(), &summary::rows(views)),
    }
    page.section("Curves over the steps");
    page.figures(&figures::figures(views));
    page.section("Time");
    for view in views {
        time(&mut page, view, views.len() > 1);
    }
    samples::section(&mut page, views);
    configuration(&mut page, views);
    page.section("Machine");
    let headers = [&[""][..], &names].concat();
    page.table(if views.len() > 1 { &headers } else { &[] }, &summary::machines(views));
    page.finish(&format!("xtrain {} ({COMMIT}), xtrain report", env!("CARGO_PKG_VERSION")))
}

/// The time of each phase.
fn time(page: &mut Page, view: &RunView, named: bool) {
    let parts = view.time_split();
    let total: f64 = parts.iter().map(|part| part.1).sum();
    if total <= 0.0 {
        page.paragraph(&format!("{}: timings.jsonl has no times.", view.name));
        return;
    }
    let bar = |(name, seconds): &(String, f64)| Bar {
        name: name.clone(),
        share: seconds / total,
        value: units::seconds(*seconds),
    };
    let total = format!("{} in all", units::seconds(total));
    let title = if named { format!("{}: {total}", view.name) } else { total };
    page.bar(&title, &parts.iter().map(bar).collect::<Vec<_>>());
}

/// The configuration, and the keys that differ.
fn configuration(page: &mut Page, views: &[RunView]) {
    page.section("Configuration");
    if let [a, b] = views {
        let rows = summary::differences(a, b);
        match rows.is_empty() {
            true => page.paragraph("Both runs have the same configuration."),
            false => page.table(&["differs", &a.name, &b.name], &rows),
        }
    }
    for view in views {
        match &view.config {
            None => page.paragraph(&format!("{}: config.toml is missing or not readable.", view.name)),
            Some(config) => {
                page.open_details(&format!("config.toml of {}", view.name));
                page.text("resolved configuration", config.to_toml().trim_end());
                page.close_details();
            }
        }
    }
}
