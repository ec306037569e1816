//! `xtrain plot`: plots the metrics of a run.
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;

use super::atomic_file::AtomicFile;
use super::common::{Force, number};
use super::locale::utf8_locale;
use super::logs::warn_of_skipped;
use super::report::base_instead;
use super::{CliError, Exit, out, output_path};
use crate::config::nearest;
use crate::report::{Chart, Glyphs, Scale, Series, Stroke, printable, svg, text_plot};
use crate::run::{Metrics, RunDir};

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
The plot of a run of `xtrain grpo` is its reward; without --out, SVG files with its rewards, completion lengths, \
entropy and time per phase are written to the run directory. Several runs are compared in one chart, which is \
written as SVG only with --out. A curve of more than 150 values is drawn as its moving mean; the legend has the \
number of values of a mean, and the last mean.

Examples:
  xtrain plot runs/shakespeare
  xtrain plot runs/grpo
  xtrain plot runs/a runs/b --keys val_loss --out a-b.svg
  xtrain plot runs/shakespeare --csv metrics.csv
  xtrain plot shakespeare --keys grad_norm --log-y --out grad_norm.svg")]
pub(super) struct PlotArgs {
    /// Runs: their directories, or their names under runs/.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// Keys of metrics.jsonl to plot; the first is drawn as a line [default: loss,val_loss, or the rewards; of several
    /// runs, the first of reward, val_loss and loss that all of them have].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    keys: Vec<String>,
    /// SVG output file; its name must end in .svg [default: loss.svg, reward.svg and others, or plot-KEYS.svg, in the
    /// run directory; an earlier plot of the same keys is replaced; for several runs, no file].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// Logarithmic x axis.
    #[arg(long)]
    log_x: bool,
    /// Logarithmic y axis.
    #[arg(long)]
    log_y: bool,
    /// Plot in the terminal with ASCII characters only [default: unless the locale is UTF-8].
    #[arg(long)]
    ascii: bool,
    /// Maximum width of the terminal plot, in columns [default: 80, or the width of the terminal if it is narrower].
    #[arg(long, value_name = "N", value_parser = width)]
    width: Option<u16>,
    /// Height of the terminal plot, in lines.
    #[arg(long, value_name = "N", default_value_t = 18, value_parser = height)]
    height: u16,
    /// Write all metrics of one run as CSV to this file instead of plotting: one column per key, one row per step. `-`:
    /// standard output.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["keys", "out", "log_x", "log_y", "ascii", "width", "height"])]
    csv: Option<PathBuf>,
}

fn width(text: &str) -> Result<u16, String> {
    number(text, |n| (20..=1000).contains(n), "expected a number from 20 to 1000")
}

fn height(text: &str) -> Result<u16, String> {
    number(text, |n| (4..=500).contains(n), "expected a number from 4 to 500")
}

/// The default charts of a run of reinforcement learning: the SVG file and its keys.
const REWARD_CHARTS: [(&str, &[&str]); 3] = [
    ("reward.svg", &["reward", "eval/reward_sampled", "eval/reward_greedy"]),
    ("length.svg", &["completions/mean_length", "completions/max_length"]),
    ("entropy.svg", &["entropy"]),
];

/// Keys of timings.jsonl in the chart of a run of reinforcement learning.
const TIMES: [&str; 4] = ["rollout_time", "reward_time", "update_time", "reference_time"];

pub(super) fn run(args: &PlotArgs) -> Result<(), CliError> {
    let csv = args.csv.as_ref().filter(|path| path.as_os_str() != "-");
    args.out.as_deref().map_or(Ok(()), require_svg)?;
    args.out.iter().chain(csv).try_for_each(|path| output_path::check_absent(path, args.force))?;
    let [run] = &args.runs[..] else { return compare(args) };
    let run = RunDir::open(run)?;
    let (file, metrics) = (run.metrics(), read(&run)?);
    if let Some(path) = &args.csv {
        return write_csv(&metrics, path);
    }
    let is_grpo = args.keys.is_empty() && metrics.curve("reward").is_some();
    let known = |metrics: &Metrics, keys: &[&str]| {
        let keys: Vec<_> =
            keys.iter().filter(|key| metrics.curve(key).is_some()).map(ToString::to_string).collect();
        if keys.is_empty() { Ok(Vec::new()) } else { series(&file, metrics, &keys) }
    };
    if !is_grpo || args.out.is_some() {
        let [(_, rewards), ..] = REWARD_CHARTS;
        let curves = if is_grpo { known(&metrics, rewards)? } else { series(&file, &metrics, &args.keys)? };
        let path = args.out.clone().unwrap_or_else(|| run.path().join(default_name(&args.keys)));
        return write(args, &[(path, chart(args, run.name(), curves))]);
    }
    let mut charts = Vec::new();
    for (file, keys) in REWARD_CHARTS {
        charts.push((run.path().join(file), chart(args, run.name(), known(&metrics, keys)?)));
    }
    // A copy of a run may lack its timings.
    let timings = run.path().join("timings.jsonl");
    if timings.exists() {
        let times = Metrics::read(&timings)?;
        warn_of_skipped(times.skipped());
        charts.push((run.path().join("time.svg"), chart(args, run.name(), known(&times, &TIMES)?)));
    }
    write(args, &charts)
}

/// Refuses a name that does not end in .svg. Pipes and devices may have any name.
fn require_svg(path: &Path) -> Result<(), CliError> {
    let is_svg = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"));
    if is_svg || output_path::is_written_directly(path) {
        return Ok(());
    }
    let message = format!("--out: expected a name ending in .svg, found {}", path.display());
    Err(CliError::new(Exit::Usage, message).hint("plots are written as SVG"))
}

/// The file name of a plot of `keys`. The names of two different plots differ.
fn default_name(keys: &[String]) -> String {
    if keys.is_empty() {
        return "loss.svg".to_string();
    }
    let keys: Vec<String> = keys.iter().map(|key| key.replace('/', "_")).collect();
    format!("plot-{}.svg", keys.join("-"))
}

/// The metrics of a run, with at least one number.
fn read(run: &RunDir) -> Result<Metrics, CliError> {
    let with_hint = |error: CliError| match base_instead(run, "plot") {
        Some(hint) => error.hint(hint),
        None => error,
    };
    let metrics = run.read_metrics().map_err(|error| match CliError::from(error) {
        error if error.exit() == Exit::Missing => with_hint(error),
        error => error,
    })?;
    warn_of_skipped(metrics.skipped());
    if metrics.keys().next().is_none() {
        let message = format!("{}: no step with a number has been logged yet", run.metrics().display());
        return Err(with_hint(CliError::new(Exit::Data, message)));
    }
    Ok(metrics)
}

/// The curves of several runs in one chart: by default the reward, the validation loss or the loss, the first that all
/// runs have.
fn compare(args: &PlotArgs) -> Result<(), CliError> {
    if args.csv.is_some() {
        return Err(CliError::new(
            Exit::Usage,
            format_args!("--csv: expected one run, found {}", args.runs.len()),
        )
        .hint("write one file for each run"));
    }
    let runs = args.runs.iter().map(|run| RunDir::open(run)).collect::<Result<Vec<_>, _>>()?;
    let metrics = runs.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let in_all = |key: &&str| metrics.iter().all(|metrics| metrics.curve(key).is_some());
    let default = ["reward", "val_loss", "loss"].into_iter().find(in_all).unwrap_or("loss");
    let keys = if args.keys.is_empty() { vec![default.to_string()] } else { args.keys.clone() };
    let same_names = (1..runs.len()).any(|at| runs[..at].iter().any(|run| run.name() == runs[at].name()));
    let name = |run: &RunDir| if same_names { run.path().display().to_string() } else { run.name() };
    let mut all = Vec::new();
    for (run, metrics) in runs.iter().zip(&metrics) {
        let of_run = series(&run.metrics(), metrics, &keys)?;
        all.extend(
            of_run
                .into_iter()
                .map(|series| Series { name: format!("{}: {}", name(run), series.name), ..series }),
        );
    }
    let title = runs.iter().map(name).collect::<Vec<_>>().join(" and ");
    let chart = chart(args, title, all);
    match &args.out {
        Some(path) => write(args, &[(path.clone(), chart)]),
        None => out::print(in_terminal(&chart, args.width, args.height, args.ascii)),
    }
}

/// Writes every step as a row. A value that a step lacks is empty.
fn write_csv(metrics: &Metrics, path: &Path) -> Result<(), CliError> {
    let keys: Vec<&str> = metrics.keys().collect();
    let quoted = |key: &&str| {
        let special = key.contains([',', '"', '\n', '\r']);
        if special { format!("\"{}\"", key.replace('"', "\"\"")) } else { (*key).to_string() }
    };
    let mut text =
        ["step".to_string()].into_iter().chain(keys.iter().map(quoted)).collect::<Vec<_>>().join(",");
    text.push('\n');
    for (step, values) in metrics.steps() {
        let value =
            |key: &&str| values.iter().find(|(name, _)| name == key).map(|(_, value)| value.to_string());
        let row = keys.iter().map(|key| value(key).unwrap_or_default());
        text += &[step.to_string()].into_iter().chain(row).collect::<Vec<_>>().join(",");
        text.push('\n');
    }
    if path.as_os_str() == "-" {
        return out::print(text);
    }
    let mut file = AtomicFile::create(path)?;
    file.write(text.as_bytes())?;
    file.finish()?;
    out::print(format!("wrote {}\n", path.display()))
}

fn chart(args: &PlotArgs, title: String, series: Vec<Series>) -> Chart {
    let scale = |log: bool| if log { Scale::Log } else { Scale::Linear };
    Chart { x_scale: scale(args.log_x), y_scale: scale(args.log_y), ..Chart::of(title, series) }
}

/// The chart as text, in lines of at most `width` characters. `None`: 80, or the width of a narrower terminal.
pub(super) fn in_terminal(chart: &Chart, width: Option<u16>, height: u16, ascii: bool) -> String {
    let glyphs = if ascii || !utf8_locale() { Glyphs::Ascii } else { Glyphs::Braille };
    let terminal =
        || std::io::stdout().is_terminal().then(|| ratatui::crossterm::terminal::size().ok()).flatten();
    let width = width.unwrap_or_else(|| terminal().map_or(80, |(columns, _)| columns_of(columns)));
    printable(&text_plot(chart, width.into(), height.into(), glyphs))
}

/// The default width in a terminal of `columns` columns. Some consoles report 0.
fn columns_of(columns: u16) -> u16 {
    if columns == 0 { 80 } else { columns.clamp(20, 80) }
}

/// Writes every chart as SVG and prints the first one. If files in the run directory cannot be created, this warns of the
/// first of them.
fn write(args: &PlotArgs, charts: &[(PathBuf, Chart)]) -> Result<(), CliError> {
    let (mut text, mut unwritten) = (String::new(), None);
    for (at, (path, chart)) in charts.iter().enumerate() {
        if at == 0 {
            text = in_terminal(chart, args.width, args.height, args.ascii) + "\n";
        }
        let mut file = match AtomicFile::create(path) {
            Err(error) if args.out.is_none() => {
                unwritten = unwritten.or(Some(error));
                continue;
            }
            file => file?,
        };
        file.write(svg(chart).as_bytes())?;
        file.finish()?;
        text += &printable(&format!("wrote {}\n", path.display()));
    }
    out::print(text)?;
    if let Some(error) = unwritten {
        let message = printable(error.message());
        eprintln!(
            "warning: {message}\nhint: the plot was not written as SVG; to write it elsewhere: --out FILE.svg"
        );
    }
    Ok(())
}

/// The requested curves, by default the losses.
fn series(file: &Path, metrics: &Metrics, keys: &[String]) -> Result<Vec<Series>, CliError> {
    let requested: Vec<&str> = match keys {
        [] => ["loss", "val_loss"].into_iter().filter(|key| metrics.curve(key).is_some()).collect(),
        keys => keys.iter().map(String::as_str).collect(),
    };
    let all = || printable(&metrics.keys().collect::<Vec<_>>().join(", "));
    if requested.is_empty() {
        let message = format_args!("{}: neither `loss` nor `val_loss` found", file.display());
        return Err(CliError::new(Exit::Data, message).hint(format_args!("--keys accepts: {}", all())));
    }
    let curve = |key: &str| {
        let points = metrics.curve(key).ok_or_else(|| {
            let near =
                nearest(key, metrics.keys()).map(|near| format!("; did you mean `{}`?", printable(near)));
            let near = near.unwrap_or_default();
            let message = format!("{}: no key `{key}`{near}", file.display());
            CliError::new(Exit::Usage, message).hint(format_args!("available keys: {}", all()))
        })?;
        Ok(Series { name: key.to_string(), points: points.to_vec(), stroke: Stroke::of_key(key) })
    };
    requested.into_iter().map(curve).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;
    use tempfile::TempDir;

    use super::*;

    /// A run with these lines in its metrics.
    fn run_with(metrics: &str) -> (TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("metrics.jsonl"), metrics).unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        (dir, run)
    }

    #[test]
    fn only_a_plot_of_the_default_name_may_stay_unwritten() {
        #[derive(clap::Parser)]
        struct Plot {
            #[command(flatten)]
            args: PlotArgs,
        }
        let (dir, run) = run_with("{\"step\":1,\"loss\":2}\n");
        let in_the_way = run.path().join("loss.svg");
        fs::create_dir(&in_the_way).unwrap();
        let plot = |out: Option<&Path>| {
            let args = ["plot".as_ref(), dir.path()].into_iter();
            let args = args.chain(out.into_iter().flat_map(|path| [Path::new("--out"), path]));
            let args = Plot::parse_from(args).args;
            let curves = series(&run.metrics(), &read(&run)?, &[])?;
            write(&args, &[(in_the_way.clone(), chart(&args, run.name(), curves))])
        };
        plot(None).unwrap();
        assert_eq!(plot(Some(&in_the_way)).unwrap_err().exit(), Exit::Io);
    }

    #[test]
    fn an_output_is_svg_or_a_device() {
        for path in ["a.svg", "A.SVG", "runs/b.c.svg", "/dev/stdout"] {
            require_svg(Path::new(path)).unwrap();
        }
        for path in ["a.png", "svg", "a.svg.gz", "-"] {
            let error = require_svg(Path::new(path)).unwrap_err();
            let want = format!("--out: expected a name ending in .svg, found {path}");
            assert_eq!((error.exit(), error.message()), (Exit::Usage, want.as_str()));
        }
    }

    #[test]
    fn a_run_without_a_number_has_nothing_to_plot() {
        for lines in ["{\"step\":0}\n", "{\"step\":1,\"loss\":null}\n"] {
            let (_dir, run) = run_with(lines);
            let error = read(&run).unwrap_err();
            let want =
                format!("error: {}: no step with a number has been logged yet", run.metrics().display());
            assert_eq!((error.exit(), error.to_string()), (Exit::Data, want), "{lines}");
        }
    }
}
