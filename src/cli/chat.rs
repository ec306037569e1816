//! `xtrain chat`: an interactive conversation.
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;

use super::CliError;
use super::cache_flags::CacheFlags;
use super::common::{Common, Sampling, StopFlag, at_least_one, whole};
use super::constraint::ConstraintFlags;
use super::memory_check::require_cache;
use super::model_arg::ModelArg;
use super::prefix::{PrefixFlag, SavePrefixFlag};
use super::speculation::SpeculationFlags;
use super::template::TemplateFlags;
use crate::decode::{Engine, EngineOptions, PrefixCaching, Request, StopConditions};

mod conversation;
mod input;
mod line_editor;
mod reply;
mod signals;

use conversation::Conversation;
use input::{Input, UserInput};
use reply::{Output, Replies, ReplyEnd};
use signals::ChatSignals;

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
On a terminal, replies are streamed and the line editor has a history. /reset clears the conversation but keeps the \
system prompt, /help lists the commands, /exit or Ctrl-D exits. Ctrl-C stops a reply and keeps its text; a second \
Ctrl-C exits (exit code 130).

A reply ends at an end-of-text id, before a --stop text, after --max-new tokens, or when the model's context is full. \
If the conversation exceeds the context, the oldest turns are dropped and a note is printed. The paged cache (--kv paged, the default) \
keeps full pages of earlier turns, so each turn only computes its new tokens; the results are bit-identical. \
--save-prefix saves the keys and values of the first prompt: a later conversation with the same system prompt starts \
from them with --prefix.

If standard input is not a terminal, each input line is a message and each reply is one line of output, with line \
breaks replaced by spaces. --json prints the unmodified text and the token ids, with the names of `xtrain rollout`.

Examples:
  xtrain chat --model Qwen3-0.6B --system 'Be brief.' --temperature 0.7 --top-p 0.8
  printf 'Hello\\nAnd in French?\\n' | xtrain chat --model runs/chat --temperature 0")]
pub(super) struct ChatArgs {
    #[command(flatten)]
    model: ModelArg,
    /// System prompt.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Maximum number of new tokens per reply.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = at_least_one)]
    max_new: usize,
    /// Random seed, 0 to 2^64 - 1. Reply n has sample_id n.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole)]
    seed: u64,
    /// Print one JSON object per reply: completion, prompt_ids, completion_ids, logprobs, finish_reason,
    /// cached_tokens.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    template: TemplateFlags,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    stop: StopFlag,
    #[command(flatten)]
    constraint: ConstraintFlags,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    cache: CacheFlags,
    #[command(flatten)]
    prefix: PrefixFlag,
    #[command(flatten)]
    save: SavePrefixFlag,
    #[command(flatten)]
    speculation: SpeculationFlags,
}

impl ChatArgs {
    /// The files and directories that the command reads.
    fn inputs(&self) -> Vec<PathBuf> {
        let Self { model, template, prefix, speculation, constraint, .. } = self;
        let others = [
            template.template.clone(),
            prefix.prefix.clone(),
            speculation.draft.clone(),
            constraint.schema_file(),
        ];
        others.into_iter().flatten().chain([model.path().to_path_buf()]).collect()
    }

    /// The engine options of these flags.
    ///
    /// # Errors
    /// Flags that exclude each other.
    pub(super) fn engine(&self) -> Result<EngineOptions, CliError> {
        Ok(EngineOptions {
            prefix_caching: PrefixCaching::On,
            // the rows of a prompt are saved when its reply has finished
            continuation: self.save.continuation(),
            max_batch: 1,
            steps_per_sync: 1,
            ..self.speculation.apply(self.cache.engine())?
        })
    }

    /// The request for a reply, without its prompt and without a constraint. `eos`: the end-of-text tokens of the
    /// model.
    pub(super) fn request(&self, eos: &[u32]) -> Request {
        Request {
            id: 0,
            seed: self.seed,
            prompt: Vec::new(),
            options: self.sampling.options(),
            max_new: self.max_new,
            stop: StopConditions { eos: eos.to_vec(), tokens: Vec::new() },
            constraint: None,
            top_logprobs: 0,
        }
    }
}

/// Printed at the start on a terminal, and by /help.
const HELP: &str = "/reset clears the conversation, /exit or Ctrl-D exits, Ctrl-C stops a reply, // starts a message \
                    with /";

pub(super) fn run(args: &ChatArgs) -> Result<(), CliError> {
    args.save.check(args.cache.engine().kv, &args.inputs())?;
    let loaded = args.prefix.opener(Some(&args.save))(args.model.path(), &args.common)?;
    let tokenizer = loaded.require_tokenizer("xtrain chat", "xtrain generate accepts ids: --tokens 1,2,3")?;
    let template_options = args.template.options(tokenizer);
    let template = args.template.open(tokenizer, &template_options)?;
    let has_template = args.template.template.is_some() || !tokenizer.chat_templates().is_empty();
    let context = args.cache.engine().kv.max_positions(loaded.model.config());
    let mut conversation =
        Conversation::new(tokenizer, template, template_options, args.system.as_deref(), context);
    let engine = args.engine()?;
    let draft = args.speculation.open_draft(&loaded.model, Some(tokenizer), &args.common)?;
    let draft_model = draft.as_ref().map(|draft| &draft.model);
    require_cache(&loaded.model, draft_model, &engine, "use --kv growing, or end other programs")?;
    let mut engine = Engine::new(&loaded.model, engine)?;
    draft_model.map_or(Ok(()), |draft| engine.draft_with(draft))?;
    let mut prefix = args.prefix.load(&loaded, &mut engine)?;
    let mut save = Some(&args.save);
    let signals = ChatSignals::install()?;
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if !has_template {
        eprintln!("note: {} has no chat template; using the built-in one", loaded.path.display());
    }
    if terminal {
        eprintln!("{HELP}");
    }
    let output = match terminal {
        _ if args.json => Output::Json,
        true => Output::Stream,
        false => Output::Line,
    };
    let constraint = args.constraint.compile(&loaded)?;
    let request = Request { constraint, ..args.request(&loaded.eos) };
    let mut replies = Replies::new(tokenizer, engine, request, args.stop.stop.clone(), output);
    let (mut input, mut reply_stopped) = (Input::new(terminal)?, false);
    loop {
        let message = match input.next(&signals, std::mem::take(&mut reply_stopped))? {
            UserInput::Message(message) => message,
            UserInput::Reset => {
                conversation.reset();
                eprintln!("[conversation cleared]");
                continue;
            }
            UserInput::Help => {
                eprintln!("{HELP}");
                continue;
            }
            UserInput::Unknown(command) => {
                eprintln!("[unknown command {command}; {HELP}]");
                continue;
            }
            UserInput::End => return save.map_or(Ok(()), SavePrefixFlag::require_unused),
        };
        let reply_tokens = args.max_new.min(context / 4).max(1);
        let turn = match conversation.prepare_turn(&message, reply_tokens) {
            Ok(turn) => turn,
            // The user can rephrase the message.
            Err(error) if terminal => {
                eprintln!("[{error}]");
                continue;
            }
            Err(error) if conversation.is_system_prompt_too_long(reply_tokens) => {
                return Err(error.in_file(Path::new("--system")));
            }
            Err(error) => return Err(input.at_line(error)),
        };
        if turn.dropped > 0 {
            let exceeds = format!("the conversation exceeds the context of {context} tokens");
            eprintln!("[{exceeds}: dropped the {} oldest messages]", turn.dropped);
        }
        let reply = replies.reply(turn.ids.clone(), &signals);
        let reply = reply.map_err(|error| match save {
            Some(save) => save.unsaved(error),
            None => error,
        })?;
        let saved = match save.filter(|_| !reply.completion.tokens.is_empty()) {
            Some(first) => {
                save = None;
                first.save(&loaded, replies.engine(), (reply.completion.index, turn.ids.len()))?
            }
            None => None,
        };
        replies.engine().release_finished();
        let reused = prefix.take().map(|prefix| prefix.report(&turn.ids, reply.cached_tokens));
        [reused, saved].iter().flatten().for_each(|line| eprintln!("[{line}]"));
        reply_stopped = reply.end == ReplyEnd::Interrupted;
        conversation.commit(turn, &reply);
        if let Some(exit) = signals.exit(terminal) {
            return Err(CliError::new(exit, "stopped by a signal"));
        }
    }
}
