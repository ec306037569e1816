//! `xtrain completions`: shell completion scripts.
use std::sync::LazyLock;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap_complete::Shell;

use super::{CliError, out};
use crate::config::check::KnownKeys;

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  xtrain completions bash > ~/.local/share/bash-completion/completions/xtrain
  xtrain completions zsh > ~/.zfunc/_xtrain
  xtrain completions fish > ~/.config/fish/completions/xtrain.fish

The scripts complete commands, flags, values, and the configuration keys of --set.")]
pub(super) struct CompletionsArgs {
    /// Shell.
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs, mut command: clap::Command) -> Result<(), CliError> {
    let mut script = Vec::new();
    command = with_config_keys(command);
    clap_complete::generate(args.shell, &mut command, "xtrain", &mut script);
    if args.shell == Shell::Bash {
        // A value follows the key without a space.
        let text = String::from_utf8_lossy(&script);
        return out::print(text.replace(BASH_SET, &format!("{BASH_SET}compopt -o nospace 2> /dev/null; ")));
    }
    out::print(script)
}

/// The beginning of the completion of `--set` in a script for bash.
const BASH_SET: &str = "                --set)\n                    ";

/// Each configuration key with the `=` that its value follows.
static SETTINGS: LazyLock<Vec<String>> =
    LazyLock::new(|| KnownKeys::new().keys().map(|key| format!("{key}=")).collect());

/// The command tree in which every `--set` offers the configuration keys, each followed by `=`. For scripts only: parsed
/// values have more than the key.
fn with_config_keys(command: clap::Command) -> clap::Command {
    let offered = |arg: clap::Arg| match arg.get_id() == "set" {
        true => arg.value_parser(PossibleValuesParser::new(
            SETTINGS.iter().map(|setting| PossibleValue::new(setting.as_str())),
        )),
        false => arg,
    };
    let names: Vec<String> =
        command.get_subcommands().map(|command| command.get_name().to_string()).collect();
    names
        .into_iter()
        .fold(command.mut_args(offered), |command, name| command.mut_subcommand(name, with_config_keys))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn the_scripts_offer_every_configuration_key() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let (mut script, mut command) = (Vec::new(), with_config_keys(cli::command()));
            clap_complete::generate(shell, &mut command, "xtrain", &mut script);
            let script = String::from_utf8(script).unwrap();
            for setting in &*SETTINGS {
                assert!(script.contains(setting), "{shell}: {setting}");
            }
        }
    }
}
