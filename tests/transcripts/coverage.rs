//! Every flag of every command and every configuration key occurs in a transcript, or is listed below with the reason.
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::{NAMES, directory, script};

/// Commands without a transcript.
const COMMANDS: [(&str, &str); 8] = [
    ("xtrain bench kv", "it measures times"),
    ("xtrain bench cache-kinds", "it measures times"),
    ("xtrain bench linear", "it measures times"),
    ("xtrain bench load", "it measures times"),
    ("xtrain bench trace", "its schedule depends on measured times"),
    ("xtrain bench scale", "it measures times"),
    ("xtrain bench guard", "it measures times"),
    ("xtrain doctor", "it describes the machine"),
];

/// Flags of commands that a transcript has with other commands, which read them by the same code.
const SHARED: [(&str, &[&str]); 6] = [
    ("--device", &["xtrain"]),
    ("--threads", &["xtrain grpo", "xtrain bench decode"]),
    ("--seed", &["xtrain bench"]),
    (
        "--kv --page-size --prefill-chunk --kv-sinks --kv-window",
        &[
            "xtrain train",
            "xtrain grpo",
            "xtrain eval",
            "xtrain quickstart",
            "xtrain verify",
            "xtrain replay",
        ],
    ),
    (
        "--sync-every --kv-sinks --kv-window --page-size --prefill-chunk",
        &["xtrain bench decode", "xtrain chat"],
    ),
    ("--model --steps --speculate --draft", &["xtrain bench train", "xtrain bench decode"]),
];

/// Flags of commands that measure times.
const MEASURED: [(&str, &str); 1] = [("--repeats", "xtrain bench")];

fn reference(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference").join(name)).unwrap()
}

/// The command lines of all transcripts.
fn command_lines() -> Vec<String> {
    let text = |name: &&str| fs::read_to_string(directory::data("transcripts").join(name)).unwrap();
    let steps = NAMES.iter().flat_map(|name| script::parse(&text(name)));
    steps.map(|step| step.command.replace("\\\n", " ")).collect()
}

/// The first column of the rows of a table whose first cell begins with `start`.
fn cell<'a>(line: &'a str, start: &str) -> Option<&'a str> {
    line.strip_prefix("| `").filter(|rest| rest.starts_with(start))?.split('`').next()
}

fn is_exempt(command: &str, flag: &str) -> bool {
    let has = |(flags, commands): &(&str, &[&str])| {
        flags.split(' ').any(|name| name == flag) && commands.iter().any(|name| command.starts_with(name))
    };
    let is_measured = |(name, start): &(&str, &str)| *name == flag && command.starts_with(start);
    SHARED.iter().any(has) || MEASURED.iter().any(is_measured)
}

/// The number of flags of all commands, and those without a command line among `lines`.
fn flags(lines: &[String]) -> (usize, BTreeSet<String>) {
    let (mut all, mut missing) = (0, BTreeSet::new());
    let reference = reference("cli.md");
    let mut command = "";
    for line in reference.lines() {
        if let Some(name) = line.strip_prefix("## ").or(line.strip_prefix("### ")) {
            command = name;
        } else if let Some(names) = cell(line, "-")
            && !COMMANDS.iter().any(|(name, _)| *name == command)
        {
            all += 1;
            // `--flag VALUE` or `--flag[=VALUE]`
            let names: Vec<&str> =
                names.split(", ").filter_map(|name| name.split([' ', '[']).next()).collect();
            let is_flag = |word: &str| names.contains(&word.split('=').next().unwrap_or(word));
            let is_used =
                lines.iter().any(|line| line.contains(command) && line.split_whitespace().any(is_flag));
            if !is_used && !names.iter().any(|name| is_exempt(command, name)) {
                missing.insert(format!("{command} {}", names.join(", ")));
            }
        }
    }
    (all, missing)
}

/// The number of configuration keys, and those without a command line among `lines`.
fn keys(lines: &[String]) -> (usize, BTreeSet<String>) {
    let (mut all, mut missing) = (0, BTreeSet::new());
    let reference = reference("config.md");
    let mut section = "";
    for line in reference.lines() {
        if let Some(name) = line.strip_prefix("## `[") {
            section = name.trim_end_matches("]`");
        } else if let Some(key) = cell(line, "") {
            all += 1;
            let setting = format!("{section}.{key}=");
            if !lines.iter().any(|line| line.contains(&setting)) {
                missing.insert(setting);
            }
        }
    }
    (all, missing)
}

#[test]
fn every_flag_occurs() {
    let lines = command_lines();
    for flag in SHARED.iter().flat_map(|(flags, _)| flags.split(' ')) {
        let is_flag = |word: &str| word.split('=').next() == Some(flag);
        assert!(lines.iter().any(|line| line.split_whitespace().any(is_flag)), "{flag} is in no transcript");
    }
    let (all, missing) = flags(&lines);
    assert!(missing.is_empty(), "flags without a transcript: {missing:#?}");
    let without: Vec<String> = lines.into_iter().filter(|line| !line.contains("--kv-resident")).collect();
    let missing = flags(&without).1;
    assert!(missing.iter().any(|flag| flag.ends_with(" --kv-resident")), "of {all} flags: {missing:?}");
    assert!(all >= 250, "the reference has {all} flags");
}

#[test]
fn every_key_occurs() {
    let lines = command_lines();
    let (all, missing) = keys(&lines);
    assert!(missing.is_empty(), "keys without a transcript: {missing:#?}");
    let without: Vec<String> = lines.into_iter().filter(|line| !line.contains("train.warmup=")).collect();
    assert!(keys(&without).1.contains("train.warmup="), "of {all} keys");
    assert!(all >= 80, "the reference has {all} keys");
}

#[test]
fn commands_without_a_transcript_exist() {
    let reference = reference("cli.md");
    for (command, _) in COMMANDS {
        let is_heading = |line: &str| line.trim_start_matches('#').trim() == command;
        assert!(reference.lines().any(is_heading), "{command} is not in docs/reference/cli.md");
    }
}
