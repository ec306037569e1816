//! What other programs call a command, a flag or an argument, and what is used here: hints for users of nanoGPT,
//! llama.cpp and Hugging Face.
use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::exit::shell_word;
use crate::config::check::KnownKeys;
use crate::config::{absent, familiar_key};

/// Names of other programs, and the hint for them.
type Names = &'static [(&'static [&'static str], &'static str)];

const COMMANDS: Names = &[
    (
        &["sample", "sample.py", "complete", "completion", "infer", "inference", "predict"],
        "xtrain generate MODEL --prompt TEXT",
    ),
    (&["run", "cli"], "xtrain chat MODEL, or xtrain generate MODEL --prompt TEXT"),
    (&["serve", "server"], "there is no server; for many prompts: xtrain rollout MODEL --prompts FILE"),
    (&["finetune", "fine-tune", "sft"], "xtrain train --objective sft --init MODEL --data FILE"),
    (&["pretrain", "train.py"], "xtrain train --data FILE"),
    (
        &["init", "new", "create"],
        "xtrain train --data FILE, which creates a run; xtrain train --dry-run prints its configuration",
    ),
    (&["logprobs", "logprob", "log-probs", "loglikelihood", "likelihood"], "xtrain score MODEL --data FILE"),
    (&["lr-find", "lr_find", "lr-finder", "find-lr"], "xtrain train --data FILE --lr-find"),
    (
        &["estimate", "dry-run", "memory"],
        "xtrain train --dry-run, which prints an estimate of the memory, or xtrain inspect MODEL",
    ),
    (&["rl", "ppo", "rlhf"], "xtrain grpo --init MODEL --prompts FILE --reward COMMAND"),
    (
        &["dpo", "ipo", "kto", "orpo", "simpo"],
        "training on preferences, such as DPO, is not supported; with rewards: xtrain grpo, on answers: \
         xtrain train --objective sft",
    ),
    (&["resume"], "xtrain train --resume RUN, or xtrain grpo --resume RUN"),
    (&["convert", "quantize"], "xtrain export MODEL FILE.gguf --type q8_0, or xtrain import MODEL RUN"),
    (&["perplexity", "evaluate", "test"], "xtrain eval MODEL --data FILE"),
    (&["info", "show", "describe"], "xtrain inspect MODEL"),
    (&["logs", "log", "metrics", "history"], "xtrain plot RUN, xtrain watch RUN, or xtrain report RUN"),
    (
        &["list", "ls", "runs"],
        "runs are directories, usually in runs/; to see one: xtrain plot RUN, xtrain watch RUN, or xtrain report RUN",
    ),
    (&["compare", "diff"], "xtrain report RUN --compare RUN"),
    (&["encode", "decode"], "xtrain tokenize TEXT, or xtrain tokenize --ids IDS"),
    (&["download", "pull"], "nothing is downloaded: name the path of a directory or of a GGUF file"),
    (&["version"], "xtrain --version"),
];

/// Flags of the commands that continue text.
const GENERATION: Names = &[
    (&["-p", "--text", "--input", "--start"], "--prompt TEXT"),
    (&["-f", "--file", "--prompt-file"], "--prompt -, which reads standard input"),
    (
        &[
            "-n",
            "--n-predict",
            "--predict",
            "--max-tokens",
            "--max-new-tokens",
            "--max-length",
            "--num-tokens",
            "--length",
        ],
        "--max-new N",
    ),
    (
        &["--n", "--num-return-sequences", "--num-samples", "--best-of"],
        "several completions: xtrain rollout MODEL -n G",
    ),
    (&["--temp"], "--temperature T; 0 is greedy"),
    (&["--do-sample", "--greedy"], "--temperature 0 is greedy; above 0 samples"),
    (&["--repeat-penalty"], "--repetition-penalty X"),
    (&["-s", "--rng-seed"], "--seed N"),
    (&["-r", "--reverse-prompt", "--stop-sequence", "--stop-strings"], "--stop TEXT"),
    (
        &["-c", "--ctx-size", "--n-ctx", "--context", "--ctx"],
        "the context length is that of the model: xtrain inspect MODEL",
    ),
    (&["-b", "--batch-size", "--ubatch-size"], "--prefill-chunk TOKENS, for prompts"),
    (&["--no-kv-cache", "--no-cache"], "--kv off"),
    (
        &["--prompt-cache", "--prompt-cache-all"],
        "--save-prefix FILE saves the keys and values of the prompt, --prefix FILE uses them",
    ),
    (&["-i", "--interactive", "-cnv", "--conversation"], "xtrain chat MODEL"),
    (&["--grammar", "--grammar-file"], "--regex RE, or --json-schema SCHEMA"),
    (&["--stream", "--streaming"], "not needed: generate and chat print the text as it is generated"),
];

/// Flags of the commands that train.
const TRAINING: Names = &[
    (
        &["--num-epochs", "--num-train-epochs", "--n-epochs"],
        "xtrain train --epochs EPOCHS; --steps N sets the number of steps",
    ),
    (&["--max-iters", "--max-steps", "--iters", "--num-steps", "--n-steps"], "--steps N"),
    (&["--bs", "--per-device-train-batch-size"], "--batch N"),
    (
        &["--gradient-accumulation-steps", "--grad-accum"],
        "each step accumulates the gradients of its micro-batches: --set train.micro_batch=N, or grpo.micro_batch=N \
         for xtrain grpo",
    ),
    (&["-o", "--out", "--out-dir", "--output", "--output-dir", "--save-dir"], "--run DIR"),
    (
        &["-m", "--model", "--model-name-or-path", "--init-from", "--base-model", "--pretrained", "--from"],
        "--init MODEL",
    ),
    (&["--resume-from-checkpoint", "--resume-from", "--checkpoint"], "--resume RUN"),
    (&["-f", "--file", "--train-data", "--train-file", "--dataset", "--input", "--text"], "--data FILE"),
    (
        &[
            "--val-file",
            "--val-files",
            "--validation-file",
            "--eval-data",
            "--eval-file",
            "--eval-files",
            "--test-data",
            "--test-file",
        ],
        "--val-data FILE",
    ),
    (&["--val-fraction", "--val-split", "--validation-split"], "--set data.val_fraction=X"),
    (&["--bf16", "--fp16", "--mixed-precision"], "--dtype bf16"),
    (
        &["--report-to", "--wandb", "--wandb-log", "--logging-dir"],
        "each run has events for TensorBoard: RUN/logs",
    ),
    (&["--compile", "--flash-attn"], "not needed: there is one forward pass"),
    (&["--template", "--chat-template"], "the chat template is that of the model or tokenizer"),
];

/// Flags of export and import.
const EXCHANGE: Names = &[
    (
        &["-o", "--out", "--output", "--outfile", "--out-dir", "--output-dir"],
        "the output is the last argument: xtrain export MODEL OUT, xtrain import MODEL RUN",
    ),
    (&["--outtype", "--quantize", "--quantization", "--dtype", "--ftype"], "--type TYPE"),
];

/// Flags of every command that computes.
const DEVICE: Names = &[
    (&["-t", "-j", "--num-threads", "--n-threads", "--workers"], "--threads N"),
    (&["--gpu", "--cuda", "-ngl", "--n-gpu-layers", "--gpu-layers"], "--device cuda"),
    (&["--cpu"], "--device cpu, which is the default"),
    (&["--precision", "--torch-dtype"], "--dtype f32 or bf16"),
    (&["--weights", "--ckpt", "--checkpoint", "--model-path"], "--model MODEL"),
    (&["-f", "--file", "--dataset"], "--data FILE"),
    (&["-v"], "--version"),
];

/// The names that a command knows, the most specific ones first.
fn tables(command: &str) -> [Names; 2] {
    match command {
        "generate" | "chat" | "rollout" => [GENERATION, DEVICE],
        "train" | "grpo" | "quickstart" => [TRAINING, DEVICE],
        "export" | "import" => [EXCHANGE, DEVICE],
        _ => [&[], DEVICE],
    }
}

/// What an argument without a flag is probably meant as.
const POSITIONALS: &[(&str, &str)] = &[
    ("train", "--data"),
    ("eval", "--data"),
    ("score", "--data"),
    ("generate", "--prompt"),
    ("rollout", "--prompts"),
    ("verify", "--prompts"),
    ("grpo", "--prompts"),
    ("report", "--compare"),
];

/// The hint for a command, flag or argument that clap does not know. `None`: there is none; another error.
pub(super) fn hint(error: &clap::Error, root: &clap::Command, args: &[OsString]) -> Option<String> {
    let hint = counterpart(error, root, args)?;
    let is_command = ["-", "xtrain "].iter().any(|start| hint.starts_with(start));
    Some(if is_command { format!("use {hint}") } else { hint })
}

fn counterpart(error: &clap::Error, root: &clap::Command, args: &[OsString]) -> Option<String> {
    let invalid = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let name = invalid(ContextKind::InvalidSubcommand)?;
            of(COMMANDS, name).map(ToString::to_string)
        }
        ErrorKind::UnknownArgument => {
            let (command, unknown) = (innermost(root, args), invalid(ContextKind::InvalidArg)?);
            if unknown.starts_with('-') {
                flag(command, unknown, args)
            } else {
                positional(command, unknown).filter(|(flag, _)| !is_given(flag, args)).map(|(_, hint)| hint)
            }
        }
        _ => None,
    }
}

fn of(names: Names, name: &str) -> Option<&'static str> {
    names.iter().find(|(names, _)| names.contains(&name)).map(|(_, hint)| *hint)
}

/// The command that `args` name.
pub(super) fn innermost<'a>(root: &'a clap::Command, args: &[OsString]) -> &'a clap::Command {
    let words = args.iter().skip(1).filter_map(|arg| arg.to_str());
    words.fold(root, |command, word| command.find_subcommand(word).unwrap_or(command))
}

fn accepts(command: &clap::Command, flag: &str) -> bool {
    command
        .get_arguments()
        .any(|arg| arg.get_long().is_some_and(|long| flag.strip_prefix("--") == Some(long)))
}

fn flag(command: &clap::Command, unknown: &str, args: &[OsString]) -> Option<String> {
    // Of `-ngl`, clap reports `-n`.
    let words = args.iter().filter_map(|arg| arg.to_str()?.split('=').next());
    let typed = words.into_iter().find(|word| word.starts_with(unknown)).unwrap_or(unknown);
    let dashed =
        if typed.starts_with("--") { typed.replace('_', "-").to_lowercase() } else { typed.to_string() };
    if dashed != typed && accepts(command, &dashed) {
        return Some(dashed);
    }
    let known = tables(command.get_name()).iter().find_map(|names| of(names, &dashed));
    let known = known.filter(|hint| is_possible(command, hint)).or_else(|| absent(&dashed));
    known.map(ToString::to_string).or_else(|| {
        let key = accepts(command, "--set").then(|| key_of(command.get_name(), &dashed)).flatten()?;
        Some(match key.as_str() {
            "grpo.stop" => format!("--set '{key}=[\"TEXT\"]'"),
            _ => format!("--set {key}=VALUE"),
        })
    })
}

/// Whether the command accepts the flag with which a hint begins.
fn is_possible(command: &clap::Command, hint: &str) -> bool {
    let flag = hint.split([' ', ',', ';']).next().unwrap_or_default();
    !flag.starts_with("--") || flag == "--version" || accepts(command, flag)
}

/// The configuration key that a flag of `command` is named after, here or in another program. `grpo` has that of its
/// section, if there is one.
fn key_of(command: &str, flag: &str) -> Option<String> {
    let name = flag.strip_prefix("--")?.replace('-', "_");
    let known = KnownKeys::new();
    let named = |key: &&str| *key == name || key.rsplit('.').next() == Some(&name);
    let first = |in_grpo: bool| known.keys().filter(named).find(|key| key.starts_with("grpo.") == in_grpo);
    let in_grpo = command == "grpo";
    let same_name = |key: &str| {
        let in_section = key.split_once('.').map(|(_, last)| format!("grpo.{last}"));
        in_section.filter(|of_grpo| in_grpo && known.keys().any(|key| key == of_grpo))
    };
    let own = first(in_grpo).or_else(|| first(!in_grpo));
    let own = own.map(|key| same_name(key).unwrap_or_else(|| key.to_string()));
    let of_grpo = || known.familiar_in_grpo(&name).filter(|_| in_grpo);
    own.or_else(of_grpo).or_else(|| familiar_key(&name).map(ToString::to_string))
}

/// Whether `args` have a flag.
fn is_given(flag: &str, args: &[OsString]) -> bool {
    args.iter().filter_map(|arg| arg.to_str()).any(|arg| arg.split('=').next() == Some(flag))
}

/// The flag for an argument that its command does not take, and the flag with its value.
fn positional<'a>(command: &clap::Command, text: &str) -> Option<(&'a str, String)> {
    let listed = POSITIONALS.iter().find(|(name, _)| *name == command.get_name()).map(|(_, flag)| *flag);
    // The commands of bench take no model as an argument without a flag.
    let model = command.get_positionals().next().is_none().then_some("--model");
    let flag = listed.or(model).filter(|flag| accepts(command, flag))?;
    let path = Path::new(text);
    let mut arguments = command.get_arguments();
    let resumes = arguments.any(|arg| arg.get_long() == Some("resume") && arg.get_action().takes_values());
    let flag = if resumes && path.join("config.toml").is_file() { "--resume" } else { flag };
    Some((flag, format!("{flag} {}", shell_word(path))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    fn hint_of(line: &str) -> Option<String> {
        let words = shlex::split(line).unwrap();
        let args: Vec<OsString> =
            ["xtrain".to_string()].into_iter().chain(words).map(OsString::from).collect();
        hint(&command().try_get_matches_from(&args).unwrap_err(), &command(), &args)
    }

    #[test]
    fn the_keys_of_gradient_accumulation_are_named_for_every_command_that_trains() {
        for (line, key) in [
            ("train --grad-accum 4", "train.micro_batch=N"),
            ("quickstart --grad-accum 4", "train.micro_batch=N"),
            ("grpo --gradient-accumulation-steps 4", "grpo.micro_batch=N"),
        ] {
            let hint = hint_of(line).unwrap_or_default();
            assert!(hint.contains(key), "{line}: {hint}");
        }
    }

    #[test]
    fn names_of_other_programs_lead_to_the_names_here() {
        for (line, want) in [
            ("sample m", "xtrain generate MODEL --prompt TEXT"),
            ("sample.py --start a", "xtrain generate MODEL --prompt TEXT"),
            ("logs runs/a", "xtrain plot RUN, xtrain watch RUN, or xtrain report RUN"),
            ("compare a b", "xtrain report RUN --compare RUN"),
            ("lr-find", "xtrain train --data FILE --lr-find"),
            ("version", "xtrain --version"),
            ("-v", "--version"),
            ("generate m -p hello", "--prompt TEXT"),
            ("generate m -p=hello", "--prompt TEXT"),
            ("generate m --start hello", "--prompt TEXT"),
            ("generate m --prompt a --grammar g", "--regex RE, or --json-schema SCHEMA"),
            ("generate -m m --n-predict 5", "--max-new N"),
            ("generate m --prompt a --max_new_tokens=5", "--max-new N"),
            ("generate m --prompt a --top_p 0.5", "--top-p"),
            ("generate m --prompt a -ngl 99", "--device cuda"),
            ("generate m --prompt a -n 9", "--max-new N"),
            ("generate m --prompt a -t 4", "--threads N"),
            ("chat m -t 4", "--threads N"),
            ("generate m 'a text'", "--prompt 'a text'"),
            ("train text.txt", "--data text.txt"),
            ("train --data t --max_iters 5", "--steps N"),
            ("train --data t --n_embd 5", "--set model.dim=VALUE"),
            ("train --data t --weight-decay 5", "--set train.weight_decay=VALUE"),
            ("train --data t --block_size=5", "--set train.context=VALUE"),
            ("grpo --num-generations 5", "--set grpo.num_generations=VALUE"),
            ("grpo --weight-decay 5", "--set grpo.weight_decay=VALUE"),
            ("grpo --stop x", "--set 'grpo.stop=[\"TEXT\"]'"),
            ("grpo --stop-strings x", "--set 'grpo.stop=[\"TEXT\"]'"),
            ("grpo --beta 5", "--set grpo.beta=VALUE"),
            (
                "train --data t --num-train-epochs 3",
                "xtrain train --epochs EPOCHS; --steps N sets the number of steps",
            ),
            ("loglikelihood m", "xtrain score MODEL --data FILE"),
            ("score m t.jsonl", "--data t.jsonl"),
            ("grpo --max-steps 5", "--steps N"),
            ("grpo --batch-size 5", "--set grpo.prompts_per_step=VALUE"),
            ("grpo --vocab-size 5", "--set model.vocab=VALUE"),
            ("export m o.gguf --outtype q8_0", "--type TYPE"),
            ("train --out d", "--run DIR"),
            ("train -m d", "--init MODEL"),
            ("eval m t.txt", "--data t.txt"),
            ("rollout m p.jsonl", "--prompts p.jsonl"),
            ("bench decode runs/quickstart", "--model runs/quickstart"),
            ("bench kv --long 'my model'", "--model 'my model'"),
            ("bench load m", "--model m"),
            ("bench trace m", "--model m"),
            ("bench cache-kinds m", "--model m"),
        ] {
            assert_eq!(hint_of(line), Some(format!("use {want}")), "{line}");
        }
        for line in [
            "nothing",
            "train --nothing",
            "doctor now",
            "plot",
            "generate m --promt a",
            "inspect m --report-to none",
            "chat",
            "chat m --start a",
            "bench train m",
            "bench linear m",
        ] {
            assert_eq!(hint_of(line), None, "{line}");
        }
    }

    #[test]
    fn what_is_not_there_is_said() {
        for (line, part) in [
            ("dpo", "DPO, is not supported"),
            ("ls", "xtrain report RUN"),
            ("init", "xtrain train --dry-run"),
            ("estimate m", "xtrain inspect MODEL"),
            ("train --data t --optimizer adam", "AdamW is the only optimizer"),
            ("grpo --optim adam", "AdamW is the only optimizer"),
            ("generate m --prompt a --stream", "not needed"),
            ("rollout m --prompts p --n 4", "xtrain rollout MODEL -n G"),
            ("generate m --prompt a --n 4", "xtrain rollout MODEL -n G"),
            ("quickstart --epochs 5", "the length of a run is its number of steps"),
        ] {
            let hint = hint_of(line).unwrap_or_default();
            assert!(hint.contains(part), "{line}: {hint}");
        }
    }

    #[test]
    fn every_hint_is_possible_and_no_name_is_one_of_xtrain() {
        let root = command();
        for (names, hint) in COMMANDS {
            assert!(names.iter().all(|name| root.find_subcommand(name).is_none()), "{hint}");
            for line in hint.split("xtrain ").skip(1).filter(|line| line.starts_with(char::is_lowercase)) {
                let name = line.split([' ', ',']).next().unwrap();
                assert!(root.find_subcommand(name).is_some(), "{hint}");
            }
        }
        let all: Vec<&clap::Command> = root.get_subcommands().collect();
        for (table, commands) in [
            (GENERATION, &["generate", "chat", "rollout"][..]),
            (TRAINING, &["train", "grpo", "quickstart"]),
            (EXCHANGE, &["export", "import"]),
            (DEVICE, &["generate", "train", "eval", "verify"]),
        ] {
            for (names, hint) in table {
                let of_table = || all.iter().filter(|command| commands.contains(&command.get_name()));
                assert!(of_table().any(|command| is_possible(command, hint)), "{hint}");
                for name in *names {
                    // A name may be a flag of some of the commands, such as -n of rollout.
                    assert!(of_table().any(|command| !accepts(command, name)), "{name}");
                }
            }
        }
    }
}
