//! `xtrain plot`: plots the metrics of a run.
use std::path::PathBuf;

use clap::Args;

use super::common::Force;
use super::out::AtomicFile;
use super::{CliError, Exit, out};
use crate::config::nearest;
use crate::report::{Chart, Glyphs, Scale, Series, Stroke, svg, text_plot};
use crate::run::{Metrics, RunDir};

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
The plot of a run of `xtrain grpo` is its reward; SVG files with its rewards, completion lengths, entropy and time per \
phase are written to the run directory.

Examples:
  xtrain plot runs/shakespeare
  xtrain plot runs/grpo
  xtrain plot shakespeare --keys grad_norm --log-y --out grad_norm.svg")]
pub(super) struct PlotArgs {
    /// Run: its directory, or its name under runs/.
    run: PathBuf,
    /// Keys of metrics.jsonl to plot; the first is drawn as a line [default: loss,val_loss, or the rewards].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    keys: Vec<String>,
    /// SVG output file [default: loss.svg, reward.svg and others, or plot-KEYS.svg, in the run directory; an
    /// earlier plot of the same keys is replaced].
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
    /// Width of the terminal plot, in columns.
    #[arg(long, value_name = "N", default_value_t = 72, value_parser = clap::value_parser!(u16).range(10..=1000))]
    width: u16,
    /// Height of the terminal plot, in lines.
    #[arg(long, value_name = "N", default_value_t = 18, value_parser = clap::value_parser!(u16).range(4..=500))]
    height: u16,
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
    args.out.as_ref().map_or(Ok(()), |path| out::check_absent(path, args.force))?;
    let run = RunDir::open(&args.run)?;
    let metrics = run.read_metrics()?;
    let defaults = args.keys.is_empty() && args.out.is_none();
    if !defaults || metrics.curve("reward").is_none() {
        let chart = chart(args, &run, series(&metrics, &args.keys)?);
        let path = args.out.clone().unwrap_or_else(|| run.path().join(default_name(&args.keys)));
        return write(args, &[(path, chart)]);
    }
    let known = |metrics: &Metrics, keys: &[&str]| {
        let keys: Vec<_> =
            keys.iter().filter(|key| metrics.curve(key).is_some()).map(ToString::to_string).collect();
        if keys.is_empty() { Ok(Vec::new()) } else { series(metrics, &keys) }
    };
    let mut charts = Vec::new();
    for (file, keys) in REWARD_CHARTS {
        charts.push((run.path().join(file), chart(args, &run, known(&metrics, keys)?)));
    }
    // A copy of a run may lack its timings.
    let timings = run.path().join("timings.jsonl");
    if timings.exists() {
        let times = Metrics::read(&timings)?;
        charts.push((run.path().join("time.svg"), chart(args, &run, known(&times, &TIMES)?)));
    }
    write(args, &charts)
}

/// The file name of a plot of `keys`. The names of two different plots differ.
fn default_name(keys: &[String]) -> String {
    if keys.is_empty() {
        return "loss.svg".to_string();
    }
    let keys: Vec<String> = keys.iter().map(|key| key.replace('/', "_")).collect();
    format!("plot-{}.svg", keys.join("-"))
}

fn chart(args: &PlotArgs, run: &RunDir, series: Vec<Series>) -> Chart {
    let scale = |log: bool| if log { Scale::Log } else { Scale::Linear };
    let (x_scale, y_scale) = (scale(args.log_x), scale(args.log_y));
    Chart { title: run.name(), x_label: "step".to_string(), x_scale, y_scale, series }
}

/// Writes every chart as SVG and prints the first one.
fn write(args: &PlotArgs, charts: &[(PathBuf, Chart)]) -> Result<(), CliError> {
    let mut text = String::new();
    for (at, (path, chart)) in charts.iter().enumerate() {
        let mut file = AtomicFile::create(path)?;
        file.write(svg(chart).as_bytes())?;
        file.finish()?;
        if at == 0 {
            let glyphs = if args.ascii || !utf8_locale() { Glyphs::Ascii } else { Glyphs::Braille };
            text = text_plot(chart, args.width.into(), args.height.into(), glyphs) + "\n";
        }
        text += &format!("wrote {}\n", path.display());
    }
    out::print(text)
}

/// The requested curves, by default the losses.
fn series(metrics: &Metrics, keys: &[String]) -> Result<Vec<Series>, CliError> {
    let requested: Vec<&str> = match keys {
        [] => ["loss", "val_loss"].into_iter().filter(|key| metrics.curve(key).is_some()).collect(),
        keys => keys.iter().map(String::as_str).collect(),
    };
    let all = || metrics.keys().collect::<Vec<_>>().join(", ");
    if requested.is_empty() {
        return Err(CliError::new(Exit::Data, "metrics.jsonl has neither `loss` nor `val_loss`")
            .hint(format_args!("--keys accepts: {}", all())));
    }
    let curve = |key: &str| {
        let points = metrics.curve(key).ok_or_else(|| {
            let near = nearest(key, metrics.keys()).unwrap_or("none");
            let message = format_args!("metrics.jsonl has no key `{key}`; did you mean `{near}`?");
            CliError::new(Exit::Usage, message).hint(format_args!("available keys: {}", all()))
        })?;
        let stroke = match key {
            _ if key.starts_with("val_") => Stroke::Marks,
            _ if key.starts_with("eval/") => Stroke::Scores,
            _ => Stroke::Line,
        };
        Ok(Series { name: key.to_string(), points: points.to_vec(), stroke })
    };
    requested.into_iter().map(curve).collect()
}

/// Whether the first non-empty locale variable names UTF-8.
fn utf8_locale() -> bool {
    let variables = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| std::env::var(name).ok());
    let first = variables.into_iter().find(|text| !text.is_empty()).unwrap_or_default().to_lowercase();
    first.contains("utf-8") || first.contains("utf8")
}
