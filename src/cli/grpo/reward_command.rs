//! Reward commands that look as if a shell ran them.

/// Warns of a word that is an argument of the program, because no shell runs.
pub(super) fn warn_of_shell_syntax(command: &str) {
    if let Some(word) = shell_syntax(command) {
        eprintln!(
            "warning: reward command \"{command}\": no shell runs, so {word} is an argument of the program; with a \
             shell: sh -c '...'"
        );
    }
}

/// The first word of a command that only a shell would treat as its syntax.
fn shell_syntax(command: &str) -> Option<String> {
    const SYNTAX: [&str; 10] = ["|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1"];
    shlex::split(command)?.into_iter().find(|word| SYNTAX.contains(&&**word))
}

#[cfg(test)]
mod tests {
    use super::shell_syntax;

    #[test]
    fn a_word_that_only_a_shell_understands_is_found() {
        for (command, want) in [
            ("python3 r.py | cat", Some("|")),
            ("a > b", Some(">")),
            ("sh -c 'a | b'", None),
            ("awk '$1 > 3'", None),
            ("a 'b", None),
        ] {
            assert_eq!(shell_syntax(command).as_deref(), want, "{command}");
        }
    }
}
