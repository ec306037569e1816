//! `xtrain chat`: a conversation in the terminal.
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};

use super::ask::at_least_one;
use super::common::{CacheFlags, Common, Sampling};
use super::template::TemplateFlags;
use super::{CliError, Exit, loaded};
use crate::decode::{Engine, EngineOptions, FinishReason, PrefixCaching};

mod conversation;
mod input;
mod reply;
mod stops;

use conversation::Conversation;
use input::{Input, Said};
use reply::Replies;
use stops::Stops;

/// Flags of `xtrain chat`.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["path", "model"]))]
#[command(after_help = "\
In a terminal replies stream as they are drawn. /reset forgets the conversation (a system prompt stays), /help \
lists the commands, /exit or Ctrl-D ends. Ctrl-C stops a reply and keeps what was said; a second one ends \
(exit code 130).

A reply ends at the model's end-of-text ids, after --max-new tokens, or where the model's positions are full. A \
conversation that grows beyond them loses its oldest turns, and a line says so. Whole pages of keys and values of \
what was said before are kept: a turn computes what came after them, with the same bits (--kv paged, the default).

Where standard input is no terminal, each of its lines is a message and each reply is one line of standard \
output, its line breaks as spaces; --json gives them unchanged, with ids.

Examples:
  xtrain chat --model Qwen3-0.6B --system 'Be brief.' --temperature 0.7 --top-p 0.8
  printf 'Hello\\nAnd in French?\\n' | xtrain chat --model runs/sft --temperature 0")]
pub struct ChatArgs {
    /// A run (its newest checkpoint), a checkpoint, a Hugging Face directory or a GGUF file.
    #[arg(value_name = "MODEL")]
    pub path: Option<PathBuf>,
    /// The same, by name.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// What the conversation begins with.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Tokens of a reply, at most.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = at_least_one)]
    pub max_new: usize,
    /// Seed of every random number, from 0 to 2^64 - 1; reply n has the sample_id n.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Prints a JSON object a reply: prompt_ids, ids, text, finish_reason, recalled (rows that were kept).
    #[arg(long)]
    pub json: bool,
    /// How messages become text.
    #[command(flatten)]
    pub template: TemplateFlags,
    /// How tokens are drawn.
    #[command(flatten)]
    pub sampling: Sampling,
    /// Where and how the model runs.
    #[command(flatten)]
    pub common: Common,
    /// How keys and values are kept.
    #[command(flatten)]
    pub cache: CacheFlags,
}

/// What the terminal is told at the start, and by /help.
const HELP: &str = "/reset forgets the conversation, /exit ends (or Ctrl-D), Ctrl-C stops a reply, // begins a \
                    message with /";

/// Talks.
///
/// # Errors
/// See [`super::Exit`].
pub fn run(args: &ChatArgs) -> Result<(), CliError> {
    let path = args.path.as_ref().or(args.model.as_ref()).map_or(Path::new(""), PathBuf::as_path);
    let loaded = loaded::open(path, &args.common)?;
    let tokenizer = loaded.tokenizer_for("a conversation", "xtrain generate takes ids: --tokens 1,2,3")?;
    let options = args.template.options(tokenizer);
    let template = args.template.open(tokenizer, &options)?;
    let own = args.template.template.is_some() || !tokenizer.chat_templates().is_empty();
    let positions = loaded.model.config().max_positions;
    let mut talk = Conversation::new((tokenizer, template), options, args.system.as_deref(), positions);
    let engine = EngineOptions {
        prefix_caching: PrefixCaching::On,
        max_batch: 1,
        steps_per_sync: 1,
        ..args.cache.engine()
    };
    let engine = Engine::new(&loaded.model, engine)?;
    let stops = Stops::install()?;
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if !own {
        eprintln!("note: {} has no chat template: the built-in one is used", loaded.path.display());
    }
    if terminal {
        eprintln!("{HELP}");
    }
    let mut replies = Replies::new(args, &loaded, engine, terminal);
    let (mut input, mut stopped) = (Input::new(terminal)?, false);
    loop {
        let said = match input.next(&stops, std::mem::take(&mut stopped))? {
            Said::Message(said) => said,
            Said::Reset => {
                talk.reset();
                eprintln!("[the conversation is forgotten]");
                continue;
            }
            Said::Help => {
                eprintln!("{HELP}");
                continue;
            }
            Said::Unknown(command) => {
                eprintln!("[no command {command}; {HELP}]");
                continue;
            }
            Said::End => return Ok(()),
        };
        let room = args.max_new.min(positions / 4).max(1);
        let asked = match talk.ask(&said, room) {
            Ok(asked) => asked,
            // a person can say it otherwise
            Err(error) if terminal => {
                eprintln!("[{error}]");
                continue;
            }
            Err(error) => return Err(input.place(error)),
        };
        if asked.forgotten > 0 {
            let n = asked.forgotten;
            eprintln!("[beyond the model's {positions} positions: the {n} oldest messages are forgotten]");
        }
        let done = replies.reply(asked.ids.clone(), &stops)?;
        stopped = done.finish_reason == FinishReason::Stop;
        talk.answered(asked, &done);
        if let Some(exit) = stops.ended(terminal) {
            return Err(CliError::new(exit, "stopped by a signal"));
        }
    }
}

impl From<conversation::TooLong> for CliError {
    fn from(error: conversation::TooLong) -> CliError {
        CliError::new(Exit::Data, error)
    }
}
