//! Errors of the command line, as one line and a hint.
use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::exit::{CliError, Exit, shell_word};
use super::familiar;

/// The error of clap for the words `args`.
pub(super) fn of(error: &clap::Error, root: &clap::Command, args: &[OsString]) -> CliError {
    let usage = one_line(&error.render().to_string());
    let hint = value_after_flag(error, root, args)
        .or_else(|| lone_argument(error, root, args))
        .or_else(|| familiar::hint(error, root, args));
    match hint {
        Some(hint) => usage.hint(hint),
        None => usage,
    }
}

/// Converts an error message of clap to one line and a hint.
fn one_line(text: &str) -> CliError {
    let message = text.split("\n\n").next().unwrap_or_default();
    let error = CliError::new(Exit::Usage, message.trim().trim_start_matches("error: "));
    let part = |start: &str| text.split("\n\n").map(str::trim).find_map(|part| part.strip_prefix(start));
    // `use '-- -x'` is of use to a command that takes any text.
    let tip = part("tip: ").filter(|tip| !tip.starts_with("to pass ") || text.contains("[TEXT]"));
    match (tip, part("Usage: ")) {
        (Some(tip), _) => error.hint(tip),
        (None, Some(usage)) => error.hint(format_args!("usage: {usage}")),
        (None, None) => error.hint("run with --help for commands, flags and examples"),
    }
}

/// The hint for an argument after a flag that clap rejected, if it is the value of this flag: it begins with `-`, or the
/// flag requires `=`. The hint has both as one word of a shell command. `None`: another error.
fn value_after_flag(error: &clap::Error, root: &clap::Command, args: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    let words: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    words.windows(2).find_map(|pair| {
        let (flag, value) = (pair[0], pair[1]);
        let name = flag.strip_prefix("--")?;
        let word = shell_word(Path::new(value));
        // clap names the first letters of a value that begins with -
        if value.starts_with('-') && value.starts_with(unknown.as_str()) {
            return has_flag(root, name, |flag| flag.get_action().takes_values())
                .then(|| format!("a value that begins with - follows its flag and =: {flag}={word}"));
        }
        (value == unknown && has_flag(root, name, clap::Arg::is_require_equals_set))
            .then(|| format!("the value of {flag} follows it and =: {flag}={word}"))
    })
}

/// Whether a command has a flag with this name of which `holds` is true.
fn has_flag(command: &clap::Command, name: &str, holds: fn(&clap::Arg) -> bool) -> bool {
    command.get_arguments().any(|arg| arg.get_long() == Some(name) && holds(arg))
        || command.get_subcommands().any(|command| has_flag(command, name, holds))
}

/// The hint for a command with two arguments that got one, which clap takes for the last. `None`: another error.
fn lone_argument(error: &clap::Error, root: &clap::Command, args: &[OsString]) -> Option<String> {
    let command = familiar::innermost(root, args);
    let last = command.get_positionals().last().filter(|_| command.is_allow_missing_positional_set())?;
    let last = last.get_value_names()?.first()?;
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_lone = error.kind() == ErrorKind::MissingRequiredArgument
        && !missing.iter().any(|name| name.trim_matches(['<', '>']) == last.as_str());
    let name = command.get_name();
    is_lone.then(|| format!("use xtrain {name} MODEL {last}; one argument alone is read as {last}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    fn hint(words: &[&str]) -> String {
        let args: Vec<OsString> = ["xtrain"].iter().chain(words).map(OsString::from).collect();
        let error = command().try_get_matches_from(&args).unwrap_err();
        let error = of(&error, &command(), &args).to_string();
        error.split_once("\nhint: ").map(|(_, hint)| hint.to_string()).unwrap_or_default()
    }

    #[test]
    fn the_hint_for_a_value_that_needs_an_equals_sign_names_its_flag() {
        let value = |word: &str| format!("a value that begins with - follows its flag and =: {word}");
        assert_eq!(hint(&["generate", "m", "--prompt", "-x"]), value("--prompt=-x"));
        assert_eq!(hint(&["generate", "m", "--prompt", "- a b"]), value("--prompt='- a b'"));
        assert_eq!(hint(&["chat", "m", "--stop", "--user:"]), value("--stop=--user:"));
        let find = "the value of --lr-find follows it and =: --lr-find=50";
        assert_eq!(hint(&["train", "--lr-find", "50"]), find);
        assert_eq!(hint(&["train", "--steps", "500", "--lr-find", "50"]), find);
        // A repeated word begins with no dash.
        assert!(!hint(&["generate", "m", "--prompt", "ab", "ab"]).contains("begins with -"));
        // A flag without a value, and an unknown flag that follows no flag.
        assert!(hint(&["rollout", "m", "--force", "--forse"]).contains("similar argument"));
        assert!(hint(&["generate", "m", "--prompt", "a", "--promt"]).contains("similar argument"));
    }

    #[test]
    fn one_of_two_arguments_is_the_last() {
        for (command, last) in [("export", "OUT"), ("import", "RUN")] {
            let want = format!("use xtrain {command} MODEL {last}; one argument alone is read as {last}");
            assert_eq!(hint(&[command, "m"]), want);
            let usage = hint(&[command]);
            assert!(usage.starts_with("usage: "), "{usage}");
        }
    }
}
