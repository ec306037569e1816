//! `xtrain watch`: a live view of a run in the terminal.
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::exit::CliError;

mod ascii;
mod dashboard;
mod panels;
mod plain;
mod terminal;
mod watched;

use watched::Watched;

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Shows curves, progress, remaining time, the newest sample or completions, and the time of each phase. The run may be \
in another process, be finished, or not exist yet. It is only read: watching does not change it. q or Ctrl-C ends the \
view, not the run.

Without a terminal, in one with TERM=dumb, or with --plain, one line is printed for each update, and the command ends \
when the run ends.

Examples:
  xtrain watch runs/shakespeare
  xtrain watch grpo --interval 5
  xtrain watch runs/shakespeare --plain >> watch.log")]
pub(super) struct WatchArgs {
    /// Run of xtrain train or xtrain grpo: its directory, or its name under runs/.
    run: PathBuf,
    /// Seconds between two updates.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Print one line for each update [default: if standard output is not a terminal, or TERM=dumb].
    #[arg(long)]
    plain: bool,
}

pub(super) fn run(args: &WatchArgs) -> Result<(), CliError> {
    let mut watched = Watched::new(&args.run);
    let interval = Duration::from_secs_f64(args.interval);
    match args.plain
        || !std::io::stdout().is_terminal()
        || std::env::var("TERM").is_ok_and(|term| term == "dumb")
    {
        true => plain::watch(&mut watched, interval),
        false => terminal::watch(&mut watched, interval),
    }
}

fn interval(text: &str) -> Result<f64, String> {
    let want = "expected a number of seconds from 0.05 to 3600";
    text.parse().ok().filter(|seconds| (0.05..=3600.0).contains(seconds)).ok_or(want.to_string())
}
