//! `xtrain completions`: shell completion scripts.
use clap::Args;
use clap_complete::Shell;

use super::{CliError, out};

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  xtrain completions bash > ~/.local/share/bash-completion/completions/xtrain
  xtrain completions zsh > ~/.zfunc/_xtrain
  xtrain completions fish > ~/.config/fish/completions/xtrain.fish")]
pub(super) struct CompletionsArgs {
    /// Shell.
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs, mut command: clap::Command) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "xtrain", &mut script);
    out::print(script)
}
