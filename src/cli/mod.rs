//! The command line interface: one module per command.
use std::ffi::OsString;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod atomic_file;
mod bench;
mod byte_size;
mod cache_flags;
mod chat;
mod common;
mod completion_writer;
mod completions;
mod constraint;
mod data_format;
mod device_name;
mod doctor;
mod dry_run;
mod epochs;
mod estimate;
mod eval;
mod exit;
mod exit_codes;
mod export;
mod familiar;
#[cfg(test)]
mod flag_effects;
mod follower;
mod generate;
mod generation_args;
mod gpu_peers;
mod grpo;
mod identity;
mod import;
mod init;
mod input_file;
mod inspect;
mod interrupt;
mod job;
mod kept_completions;
mod launch;
mod layer_offload;
mod loaded;
mod locale;
mod logits;
mod logs;
mod lr_find;
mod memory_check;
mod model_arg;
mod model_files;
mod monitor;
mod multiple_choice;
mod offload;
mod offload_place;
mod out;
mod output_dir;
mod output_path;
mod parameters;
mod paths;
mod plot;
mod prefix;
mod preflight;
mod prepare;
#[cfg(test)]
mod processes_tests;
mod prompt_input;
mod prompts;
mod quickstart;
mod replay;
mod report;
mod resumable;
mod resumed;
mod rollout;
mod scheduler_flags;
mod score;
mod source;
mod speculation;
mod template;
mod timed;
mod tokenize;
mod tokenizer;
mod train;
mod usage_error;
mod verify;
mod watch;

use crate::build_info::COMMIT;
use crate::model::comm::Communicator;
use crate::model::third_party;
use crate::tensor::Simd;
use exit::{CliError, Exit};

/// Train and run small transformer language models with bit-exact numerics.
///
/// Inference computes bitwise the same logits as training: with or without a KV cache, for any batch size and any
/// number of threads. `xtrain quickstart` demonstrates this on a small model; `xtrain verify` checks it for your
/// model.
#[derive(Debug, Parser)]
#[command(name = "xtrain", arg_required_else_help = true, after_help = exit::EXIT_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Enables a planted fault, to test that the gates detect it. Not part of release builds.
    #[cfg(feature = "faults")]
    #[arg(long, hide = true, global = true)]
    fault: Option<crate::tensor::faults::Fault>,
}

impl Cli {
    fn run(&self) -> Result<(), CliError> {
        #[cfg(feature = "faults")]
        if let Some(fault) = self.fault {
            return crate::tensor::faults::with(fault, || launched(&self.command));
        }
        launched(&self.command)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train, evaluate and verify a small model on generated data.
    Quickstart(quickstart::QuickstartArgs),
    /// Tokenize text or JSONL files into a packed token file.
    Prepare(prepare::PrepareArgs),
    /// Convert text to token ids and back; render conversations.
    Tokenize(tokenize::TokenizeArgs),
    /// Train tokenizers.
    #[command(subcommand)]
    Tokenizer(tokenizer::TokenizerCommand),
    /// Train or fine-tune a model; interrupted runs resume bit-identically.
    Train(train::TrainArgs),
    /// Train a model with rewards (GRPO); the sampler's log-probabilities are the trainer's.
    Grpo(grpo::GrpoArgs),
    /// Evaluate a model on a file: loss, perplexity, bits per byte, accuracy.
    Eval(eval::EvalArgs),
    /// Compute log-probabilities of given texts, for each line of a JSONL file.
    Score(score::ScoreArgs),
    /// Continue a prompt.
    Generate(generate::GenerateArgs),
    /// Chat with a model.
    Chat(chat::ChatArgs),
    /// Generate completions for all prompts of a JSONL file.
    Rollout(rollout::RolloutArgs),
    /// Regenerate logged completions and compare them bit for bit.
    Replay(replay::ReplayArgs),
    /// Verify that inference is bitwise equal to the training forward pass.
    Verify(verify::VerifyArgs),
    /// Run benchmarks.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Export a model as a Hugging Face directory or a GGUF file.
    Export(export::ExportArgs),
    /// Import a Hugging Face directory or a GGUF file as a run.
    Import(import::ImportArgs),
    /// Print configuration, parameter count and memory use of a model.
    Inspect(inspect::InspectArgs),
    /// Write the logits of given tokens to a file.
    Logits(logits::LogitsArgs),
    /// Plot the loss curves of a run in the terminal and as SVG.
    Plot(plot::PlotArgs),
    /// Watch a run in the terminal: live curves, progress, samples, time per phase.
    Watch(watch::WatchArgs),
    /// Write a run as one HTML file: curves, samples, configuration, machine.
    Report(report::ReportArgs),
    /// List the available devices and the reasons for missing ones.
    Doctor(doctor::DoctorArgs),
    /// Print a shell completion script.
    Completions(completions::CompletionsArgs),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        if third_party::is_guarded() {
            return; // converted to an error by the guard
        }
        let payload = panic.payload();
        let owned = payload.downcast_ref::<String>().map(String::as_str);
        let text = owned.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let location = panic.location();
        let at = location.map(|at| format!(" ({}:{})", at.file(), at.line())).unwrap_or_default();
        let hint = "please report it with the command line and the output of xtrain --version";
        let error = CliError::new(Exit::Bug, format_args!("bug in xtrain: {text}{at}")).hint(hint);
        let _ = writeln!(std::io::stderr(), "{error}"); // every process reports its own bug
    }));
    run_command(std::env::args_os())
}

/// Runs a command line in this process. `args` begins with the name of the program.
pub fn run_command(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    guarded(|| {
        let result = parse(args).and_then(|cli| cli.map_or(Ok(()), |cli| cli.run()));
        let Err(error) = result else { return Exit::Ok };
        if error.exit() != Exit::Ok {
            eprintln!("{error}");
        }
        error.exit()
    })
    .into()
}

/// The exit code of `work`; [`Exit::Bug`] if it panics.
fn guarded(work: impl FnOnce() -> Exit) -> Exit {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Exit::Bug)
}

/// Parses the command line. `None`: it requested help or the version, which were printed.
fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Option<Cli>, CliError> {
    let args: Vec<OsString> = args.into_iter().collect();
    let parsed = command()
        .try_get_matches_from(&args)
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    match parsed {
        Ok((cli, matches)) => cache_flags::check("xtrain", &matches).map(|()| Some(cli)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                out::print(error.render().to_string()).map(|()| None)
            }
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                eprint!("{}", error.render());
                Err(CliError::new(Exit::Usage, "no command given"))
            }
            _ => Err(usage_error::of(&error, &command(), &args)),
        },
    }
}

/// Version, commit, and the devices of this build with the SIMD instruction set in use.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!("{} (commit {COMMIT}; devices: cpu [{}])", env!("CARGO_PKG_VERSION"), Simd::detect())
});

/// The command tree, with the version of this build.
pub(crate) fn command() -> clap::Command {
    accept_numbers(Cli::command()).version(VERSION.as_str()).args_override_self(true)
}

/// Accepts negative numbers as values of all flags, so that errors describe the value and not an unknown flag `-1`.
fn accept_numbers(command: clap::Command) -> clap::Command {
    let names: Vec<String> =
        command.get_subcommands().map(|command| command.get_name().to_string()).collect();
    let command = command
        .mut_args(|arg| if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg });
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, accept_numbers))
}

/// Runs the command on the processes that a launcher started.
fn launched(command: &Command) -> Result<(), CliError> {
    #[cfg(unix)]
    interrupt::report_file_size_limit();
    let comm = launch::start()?;
    let result = run(command, &comm);
    launch::end(&*comm, result)
}

fn run(command: &Command, comm: &Arc<dyn Communicator>) -> Result<(), CliError> {
    use Command::{Bench, Eval, Grpo, Rollout, Train, Verify};
    let is_divided = matches!(command, Train(_) | Grpo(_) | Eval(_) | Rollout(_) | Verify(_) | Bench(_));
    if !is_divided {
        launch::require_single(&**comm)?;
    }
    match command {
        Command::Quickstart(args) => quickstart::run(args),
        Command::Prepare(args) => prepare::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Tokenizer(args) => tokenizer::run(args),
        Command::Train(args) => train::run(args, comm),
        Command::Grpo(args) => grpo::run(args, comm),
        Command::Eval(args) => eval::run(args, &**comm),
        Command::Score(args) => score::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Rollout(args) => rollout::run(args, &**comm),
        Command::Replay(args) => replay::run(args),
        Command::Verify(args) => verify::run(args, &**comm),
        Command::Bench(args) => bench::run(args, comm),
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Plot(args) => plot::run(args),
        Command::Watch(args) => watch::run(args),
        Command::Report(args) => report::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Completions(args) => completions::run(args, self::command()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_tree_is_valid() {
        command().debug_assert();
    }

    #[test]
    fn every_command_has_a_description_and_an_example() {
        fn walk(command: &clap::Command, path: &str) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.is_empty(), "{path} has no description");
            if command.get_subcommands().next().is_none() {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains(path), "{path}: no example in {help:?}");
                // The terminal wraps paragraphs; a line break inside one would show as a ragged line.
                let broken =
                    help.split("\n\n").find(|p| !p.starts_with("Example") && p.trim().contains('\n'));
                assert_eq!(broken, None, "{path}");
            }
            for inner in command.get_subcommands() {
                walk(inner, &format!("{path} {}", inner.get_name()));
            }
        }
        walk(&command(), "xtrain");
    }

    #[track_caller]
    fn parsed(args: &[&str]) -> Command {
        let args = ["xtrain"].iter().chain(args).map(OsString::from);
        parse(args).unwrap().unwrap().command
    }

    #[test]
    fn the_old_names_of_flags_are_accepted() {
        for flags in [["--look", "4", "--batch", "2"], ["--sync-every", "4", "--max-batch-size", "2"]] {
            let Command::Rollout(args) = parsed(&[&["rollout", "m"][..], &flags].concat()) else { panic!() };
            assert_eq!((args.sync_every.get(), args.max_batch_size.get()), (4, 2), "{flags:?}");
        }
        for flag in ["--look", "--sync-every"] {
            let command = parsed(&["bench", "decode", flag, "4"]);
            let Command::Bench(bench::BenchCommand::Decode(args)) = command else { panic!() };
            assert_eq!(args.sync_every.get(), 4, "{flag}");
        }
        for flag in ["--recompute", "--gradient-checkpointing"] {
            let Command::Train(args) = parsed(&["train", flag]) else { panic!() };
            assert!(args.gradient_checkpointing, "{flag}");
        }
    }

    #[test]
    fn old_names_of_flags_are_not_shown_in_the_help() {
        for (path, old) in [
            (&["rollout"][..], &["--look", "--batch "][..]),
            (&["bench", "decode"], &["--look"]),
            (&["train"], &["--recompute"]),
        ] {
            let mut command = command();
            let inner = path.iter().fold(&mut command, |at, name| at.find_subcommand_mut(name).unwrap());
            let help = inner.render_long_help().to_string();
            old.iter().for_each(|old| assert!(!help.contains(old), "{path:?} {old}: {help}"));
        }
    }

    #[test]
    fn a_panic_is_a_bug() {
        assert_eq!(guarded(|| panic!("planted by this test")), Exit::Bug);
        assert_eq!(guarded(|| Exit::Data), Exit::Data);
    }
}
