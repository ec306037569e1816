//! Errors of rewards.
use std::io;
use std::time::Duration;

use super::index::CompletionIndex;

/// Why completions could not be scored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RewardError {
    /// The command line cannot be split into words.
    #[error("reward command {command:?}: expected {want}, found {got}")]
    Command {
        /// The command line.
        command: String,
        /// What the command line must be.
        want: &'static str,
        /// What it is.
        got: &'static str,
    },
    /// A reward process could not be started.
    #[error("reward command {command:?}: cannot start {program:?}: {source}")]
    Start {
        /// The command line.
        command: String,
        /// The first word of the command line.
        program: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file for the standard error of a reward process could not be opened.
    #[error("{path}: cannot open the log of the reward process: {source}")]
    Log {
        /// The file.
        path: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// A process printed a line that is not the reply to a completion.
    #[error("{process}: {at}: expected {want}, found {got} in the line {line}")]
    Reply {
        /// The process.
        process: String,
        /// The completion that the line belongs to, or that is unanswered.
        at: ReplyLocation,
        /// What the line must contain.
        want: String,
        /// What it contains.
        got: String,
        /// The line, shortened, in quotation marks.
        line: String,
    },
    /// A process did not answer in time.
    #[error("{process}: {at}: no reply within {} s ({} without a reply){stderr}", limit.as_secs_f64(), completions(*missing))]
    TimeLimit {
        /// The process.
        process: String,
        /// The first completion without a reply.
        at: CompletionIndex,
        /// The time limit of a batch.
        limit: Duration,
        /// Number of completions without a reply.
        missing: usize,
        /// The last lines of its standard error, as text that continues the sentence.
        stderr: String,
    },
    /// A process ended or closed its standard output.
    #[error("{process}: {at}: {end} before it replied ({} without a reply){stderr}", completions(*missing))]
    Ended {
        /// The process.
        process: String,
        /// The first completion without a reply.
        at: CompletionIndex,
        /// How it ended.
        end: String,
        /// Number of completions without a reply.
        missing: usize,
        /// The last lines of its standard error, as text that continues the sentence.
        stderr: String,
    },
    /// Reading from a process failed.
    #[error("{process}: cannot read its standard output: {source}")]
    Read {
        /// The process.
        process: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// A column of a prompt has the name of a key that xtrain writes.
    #[error(
        "{at}: column {name:?}: expected another name, found one that is reserved in the lines to reward processes"
    )]
    Column {
        /// The completion.
        at: CompletionIndex,
        /// The column.
        name: &'static str,
    },
    /// An error of the caller's own [`Reward`](super::Reward).
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
    /// A batch after an error.
    #[error("reward command {command:?}: its processes were stopped after an error")]
    Stopped {
        /// The command line.
        command: String,
    },
}

fn completions(n: usize) -> String {
    format!("{n} completion{}", if n == 1 { "" } else { "s" })
}

/// The completion that an invalid line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyLocation {
    /// The completion whose id is in the line.
    Completion(CompletionIndex),
    /// The line has no valid id. The first completion that waits for a reply of this process.
    WaitingFor(CompletionIndex),
    /// The line has no valid id, and the process has replied to all its completions.
    AfterLastReply,
}

impl std::fmt::Display for ReplyLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReplyLocation::Completion(at) => write!(f, "{at}"),
            ReplyLocation::WaitingFor(at) => write!(f, "waiting for {at}"),
            ReplyLocation::AfterLastReply => write!(f, "when no reply was due"),
        }
    }
}
