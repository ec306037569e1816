//! The command `xtrain`: flags become structs, and each command is one call.
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub mod ask;
pub mod bench;
pub mod chat;
pub mod common;
pub mod completions;
pub mod doctor;
pub mod dry_run;
pub mod eval;
pub mod export;
pub mod generate;
pub mod import;
pub mod init;
pub mod inspect;
pub mod interrupt;
pub mod job;
pub mod loaded;
pub mod logits;
pub mod monitor;
pub mod out;
pub mod plot;
pub mod prepare;
pub mod prompts;
pub mod quickstart;
pub mod rollout;
pub mod sample;
pub mod source;
pub mod template;
pub mod tokenize;
pub mod tokenizer;
pub mod train;
pub mod verify;

mod exit;
mod failure;
mod timed;
mod version;

use crate::model::third_party;

pub use exit::{CliError, Exit};

/// Train tiny transformers and roll them out: one token, one number.
///
/// What a rollout computes is what training computes, bit for bit: with or without a cache, alone or in
/// a batch, on any number of threads. `xtrain quickstart` shows it; `xtrain verify` proves it.
#[derive(Debug, Parser)]
#[command(name = "xtrain", arg_required_else_help = true, after_help = exit::EXIT_HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Switches a planted fault on, to see what notices it. No release has this flag.
    #[cfg(feature = "faults")]
    #[arg(long, hide = true, global = true)]
    pub fault: Option<crate::tensor::faults::Fault>,
}

impl Cli {
    #[cfg(feature = "faults")]
    fn run(&self) -> Result<(), CliError> {
        match self.fault {
            Some(fault) => crate::tensor::faults::with(fault, || run(&self.command)),
            None => run(&self.command),
        }
    }

    #[cfg(not(feature = "faults"))]
    fn run(&self) -> Result<(), CliError> {
        run(&self.command)
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Trains, samples, rolls out and verifies a small model in two minutes; needs no file.
    Quickstart(quickstart::QuickstartArgs),
    /// Packs text or JSONL into a file of tokens.
    Prepare(prepare::PrepareArgs),
    /// Turns text into ids and back, and conversations into both.
    Tokenize(tokenize::TokenizeArgs),
    /// Makes tokenizers.
    #[command(subcommand)]
    Tokenizer(tokenizer::TokenizerCommand),
    /// Trains a model on text; a stopped run goes on with the same bits.
    Train(train::TrainArgs),
    /// Measures a model on a file: loss, perplexity, bits per byte, answers.
    Eval(eval::EvalArgs),
    /// Continues a prompt.
    Generate(generate::GenerateArgs),
    /// Holds a conversation in the terminal.
    Chat(chat::ChatArgs),
    /// Completes every prompt of a JSONL file G times, all in one batch.
    Rollout(rollout::RolloutArgs),
    /// Proves on this machine that a model's rollouts have the bits of its training forward.
    Verify(verify::VerifyArgs),
    /// Measures speed.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Writes a model as a Hugging Face directory or a GGUF file.
    Export(export::ExportArgs),
    /// Makes a run of a model that was made elsewhere.
    Import(import::ImportArgs),
    /// Says what a model is made of and what memory it takes.
    Inspect(inspect::InspectArgs),
    /// Writes the logits of given tokens, as the training forward computes them.
    Logits(logits::LogitsArgs),
    /// DeviceSampler the loss curves of a run, as SVG and as text.
    Plot(plot::PlotArgs),
    /// Says which devices this build and this machine have, and why not.
    Doctor(doctor::DoctorArgs),
    /// Prints completions for a shell.
    Completions(completions::CompletionsArgs),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        if third_party::is_guarded() {
            return; // it becomes an error of ours
        }
        let payload = panic.payload();
        let owned = payload.downcast_ref::<String>().map(String::as_str);
        let text = owned.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let at = panic.location().map(|at| format!(" ({}:{})", at.file(), at.line())).unwrap_or_default();
        let error = CliError::new(Exit::Bug, format_args!("bug in xtrain: {text}{at}"));
        eprintln!("{}", error.hint("please report it, with the command line and the version"));
    }));
    guarded(|| {
        let done = parse(std::env::args_os()).and_then(|cli| cli.map_or(Ok(()), |cli| cli.run()));
        done.map_or_else(
            |error| {
                if error.exit() != Exit::Ok {
                    eprintln!("{error}");
                }
                error.exit()
            },
            |()| Exit::Ok,
        )
    })
    .into()
}

/// What `work` ends with; [`Exit::Bug`] where it panics.
fn guarded(work: impl FnOnce() -> Exit) -> Exit {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Exit::Bug)
}

/// The command line as structs; nothing where it asked for help or the version, which are printed.
fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Option<Cli>, CliError> {
    let parsed = command().try_get_matches_from(words).and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        Ok((cli, matches))
    });
    match parsed {
        Ok((cli, matches)) => common::check_page_size(&matches).map(|()| Some(cli)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                out::print(error.render().to_string()).map(|()| None)
            }
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                eprint!("{}", error.render());
                Err(CliError::new(Exit::Usage, "a command is missing"))
            }
            _ => Err(usage(&error.render().to_string())),
        },
    }
}

/// The command tree, with the version of this build.
fn command() -> clap::Command {
    Cli::command().version(version::version())
}

/// clap's message in one line, and its advice as a hint.
fn usage(text: &str) -> CliError {
    let mut parts = text.split("\n\n");
    let message = parts.next().unwrap_or_default();
    let error = CliError::new(Exit::Usage, message.trim().trim_start_matches("error: "));
    let part = |start: &str| text.split("\n\n").map(str::trim).find_map(|part| part.strip_prefix(start));
    match (part("tip: "), part("Usage: ")) {
        (Some(tip), _) => error.hint(tip),
        (None, Some(usage)) => error.hint(format_args!("usage: {usage}")),
        (None, None) => error.hint("--help lists commands, flags and examples"),
    }
}

fn run(command: &Command) -> Result<(), CliError> {
    match command {
        Command::Quickstart(args) => quickstart::run(args),
        Command::Prepare(args) => prepare::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Tokenizer(args) => tokenizer::run(args),
        Command::Train(args) => train::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Rollout(args) => rollout::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Plot(args) => plot::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Completions(args) => completions::run(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_tree_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_command_teaches_an_example() {
        fn walk(command: &clap::Command, path: &str) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.is_empty(), "{path} has no promise");
            if command.get_subcommands().next().is_none() {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains(path), "{path}: no example in {help:?}");
                // The terminal wraps a paragraph; a break of our own inside one would show as a ragged line.
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

    #[test]
    fn a_panic_is_a_bug() {
        assert_eq!(guarded(|| panic!("planted by this test")), Exit::Bug);
        assert_eq!(guarded(|| Exit::Data), Exit::Data);
    }
}
