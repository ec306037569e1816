//! Rewards from external programs.
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::error::{ReplyLocation, RewardError};
use super::pending::Pending;
use super::process::{self, MAX_LINE, Output, RewardProcess};
use super::protocol::{self, Mismatch, Reply, mismatch};
use super::queue::OutputQueue;
use super::reward::{Reward, RewardInput, RewardReply, RewardRow};
use crate::tensor::faults::{self, Fault};

/// Number of bytes of an invalid line that an error shows.
const SHOWN: usize = 200;

/// Options of [`ExternalReward`].
#[derive(Debug, Clone)]
pub struct ExternalOptions {
    /// Number of processes; at least 1. Completion c of prompt p goes to process (p + c) mod `processes`.
    pub processes: usize,
    /// Time limit of a batch. The first batch includes the start of the program.
    pub time_limit: Duration,
    /// Directory in which the processes run. `None`: that of this process.
    pub dir: Option<PathBuf>,
    /// Directory to which the standard error of process k is appended, as `reward-k.log`. `None`: only the last lines
    /// are kept, for errors.
    pub log_dir: Option<PathBuf>,
    /// The number k of the log of the first process.
    pub first_log: usize,
}

impl Default for ExternalOptions {
    /// One process, 60 seconds, no log.
    fn default() -> ExternalOptions {
        let time_limit = Duration::from_secs(60);
        ExternalOptions { processes: 1, time_limit, dir: None, log_dir: None, first_log: 0 }
    }
}

/// Rewards from persistent processes of an external program, one JSON line per completion in each direction. See
/// docs/guide/rewards.md for the protocol. The line of an announced completion is sent at once.
///
/// The names of the rewards are those of the first reply, sorted. After an error all processes are killed, and every
/// further batch is [`RewardError::Stopped`]. Dropping it closes the standard input of the processes, waits for up to
/// 2 seconds for their end and kills those that remain.
#[derive(Debug)]
pub struct ExternalReward {
    command: String,
    names: Vec<String>,
    time_limit: Duration,
    /// Empty after an error.
    processes: Vec<RewardProcess>,
    /// Whether each process has closed its standard output.
    ended: Vec<bool>,
    output: OutputQueue,
    /// The id of the first completion of the next batch. Ids are never used twice, so a late reply is recognized.
    next_id: u64,
    /// The places in the next batch of the completions that were announced and whose lines were sent.
    announced: BTreeSet<usize>,
    /// The ids of lines whose replies are ignored.
    discarded: BTreeSet<u64>,
}

impl ExternalReward {
    /// Starts the processes of `command`. The command line is split into words as a POSIX shell does (quotation marks
    /// and backslashes), but no shell runs: there are no variables, globs, pipes and redirections.
    ///
    /// # Errors
    /// [`RewardError::Command`]: quotation marks that do not match, or no words; [`RewardError::Start`];
    /// [`RewardError::Log`].
    pub fn start(command: &str, options: &ExternalOptions) -> Result<ExternalReward, RewardError> {
        let refused = |want, got| RewardError::Command { command: command.into(), want, got };
        let words = shlex::split(command)
            .ok_or_else(|| refused("words as in a shell", "a quotation mark or backslash without its end"))?;
        if words.is_empty() {
            return Err(refused("a program and its arguments", "no words"));
        }
        let (sender, output) = OutputQueue::new();
        let mut processes = Vec::new();
        for number in 0..options.processes.max(1) {
            let log = options
                .log_dir
                .as_ref()
                .map(|dir| open_log(dir.join(format!("reward-{}.log", options.first_log + number))));
            let process = RewardProcess::start(
                &words,
                options.dir.as_deref(),
                number,
                sender.clone(),
                log.transpose()?,
            );
            processes.push(process.map_err(|source| {
                let program = words[0].clone();
                RewardError::Start { command: command.into(), program, source }
            })?);
        }
        Ok(ExternalReward {
            command: command.into(),
            names: Vec::new(),
            time_limit: options.time_limit,
            ended: vec![false; processes.len()],
            processes,
            output,
            next_id: 0,
            announced: BTreeSet::new(),
            discarded: BTreeSet::new(),
        })
    }

    /// Sends the lines of the completions of `batch` that were not announced, and receives all replies.
    fn exchange(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
        let deadline = Instant::now() + self.time_limit;
        self.begin_batch()?;
        let announced = std::mem::take(&mut self.announced);
        self.send(batch.iter().enumerate().filter(|(at, _)| !announced.contains(at)))?;
        let mut pending = Pending::new(batch, self.next_id, self.processes.len());
        self.next_id += batch.len() as u64;
        self.check_not_ended(&pending)?;
        while pending.missing() > 0 {
            let starts_again = faults::on(Fault::TimeLimitPerReply);
            let left = if starts_again {
                self.time_limit
            } else {
                deadline.saturating_duration_since(Instant::now())
            };
            match self.output.next(left) {
                Ok((number, output)) => self.receive(number, output, &mut pending)?,
                Err(_) => return Err(self.time_limit_exceeded(&pending)),
            }
        }
        Ok(pending.into_rows())
    }

    /// Sends the lines of completions, each with its place in the next batch.
    fn send<'a>(
        &mut self,
        completions: impl Iterator<Item = (usize, &'a RewardInput<'a>)>,
    ) -> Result<(), RewardError> {
        let mut lines = vec![Vec::new(); self.processes.len()];
        for (at, input) in completions {
            let process = input.location().process(self.processes.len());
            protocol::write_request(&mut lines[process], self.next_id + at as u64, input)?;
        }
        for (process, lines) in self.processes.iter().zip(lines).filter(|(_, lines)| !lines.is_empty()) {
            process.send(lines);
        }
        Ok(())
    }

    /// Before the first line of a batch: checks that no process has written anything after its last reply.
    fn begin_batch(&mut self) -> Result<(), RewardError> {
        while self.announced.is_empty()
            && let Some((number, output)) = self.output.try_next()
        {
            match output {
                Output::Line(line) if self.is_discarded(&line) => {}
                Output::Line(line) | Output::LongLine(line) => {
                    let error = mismatch("no output before the next batch", "text");
                    return Err(self.refused(number, ReplyLocation::AfterLastReply, error, &line));
                }
                Output::Failed(source) => {
                    return Err(RewardError::Read { process: self.describe(number), source });
                }
                Output::End => self.ended[number] = true,
            }
        }
        Ok(())
    }

    /// Whether a line is the reply to a discarded completion, whose first reply this is.
    fn is_discarded(&mut self, line: &[u8]) -> bool {
        let id = || protocol::parse_object(line).ok()?.get("id")?.as_u64();
        !self.discarded.is_empty() && id().is_some_and(|id| self.discarded.remove(&id))
    }

    /// Processes one event of process `number`.
    fn receive(
        &mut self,
        number: usize,
        output: Output,
        pending: &mut Pending<'_>,
    ) -> Result<(), RewardError> {
        let line = match output {
            Output::Line(line) if self.is_discarded(&line) => return Ok(()),
            Output::Line(line) => line,
            Output::LongLine(line) => {
                let want = format!("a line of at most {MAX_LINE} bytes");
                let error = mismatch(want, "more");
                return Err(self.refused(number, pending.location_of_text(number, &line), error, &line));
            }
            Output::Failed(source) => {
                return Err(RewardError::Read { process: self.describe(number), source });
            }
            Output::End => {
                self.ended[number] = true;
                return self.check_not_ended(pending);
            }
        };
        let object = match protocol::parse_object(&line) {
            Ok(object) => object,
            Err(error) => {
                let location = pending.location_of_text(number, &line);
                return Err(self.refused(number, location, error, &line));
            }
        };
        let at = match pending.find(number, object.get("id")) {
            Ok(at) => at,
            Err((location, error)) => return Err(self.refused(number, location, error, &line)),
        };
        match protocol::parse_reply(&object).and_then(|reply| self.reply(reply, pending.can_append(at))) {
            Ok(reply) => pending.insert(at, reply),
            Err(error) => {
                let location = ReplyLocation::Completion(pending.location(at));
                return Err(self.refused(number, location, error, &line));
            }
        }
        Ok(())
    }

    /// A reply with its rewards in the order of the names. The first rewards determine the names.
    ///
    /// # Errors
    /// Other names than those of the first rewards; text to append to a completion that cannot be continued.
    fn reply(&mut self, reply: Reply, can_append: bool) -> Result<RewardReply, Mismatch> {
        let rewards = match reply {
            Reply::Rewards(rewards) => rewards,
            Reply::Append(text) if can_append => return Ok(RewardReply::Append(text)),
            Reply::Append(_) => {
                let want = "\"rewards\" or \"reward\" for a completion that cannot be continued";
                return Err(mismatch(want, "\"append\" (see \"can_append\" and grpo.max_turns)"));
            }
        };
        if self.names.is_empty() {
            self.names = rewards.keys().cloned().collect();
        }
        if !rewards.keys().eq(&self.names) {
            let want = format!("the rewards {} of the first reply", quoted(&self.names));
            return Err(mismatch(want, quoted(rewards.keys())));
        }
        Ok(RewardReply::Rewards(rewards.into_values().collect()))
    }

    /// # Errors
    /// A process has ended and there are completions without its reply.
    fn check_not_ended(&mut self, pending: &Pending<'_>) -> Result<(), RewardError> {
        for number in (0..self.processes.len()).filter(|&number| self.ended[number]) {
            if let Some(at) = pending.first_missing_of(number) {
                return Err(RewardError::Ended {
                    process: self.describe(number),
                    at: pending.location(at),
                    end: self.processes[number].end(),
                    missing: pending.missing_of(number),
                    stderr: self.processes[number].stderr(),
                });
            }
        }
        Ok(())
    }

    fn time_limit_exceeded(&self, pending: &Pending<'_>) -> RewardError {
        let (number, at) = pending.first_missing().unwrap_or_default();
        RewardError::TimeLimit {
            process: self.describe(number),
            at: pending.location(at),
            limit: self.time_limit,
            missing: pending.missing(),
            stderr: self.processes[number].stderr(),
        }
    }

    fn refused(&self, number: usize, at: ReplyLocation, error: Mismatch, line: &[u8]) -> RewardError {
        let Mismatch { want, got } = error;
        RewardError::Reply { process: self.describe(number), at, want, got, line: shortened(line) }
    }

    /// Kills all processes after an error.
    fn kill_after<T>(&mut self, result: &Result<T, RewardError>) {
        if result.is_err() {
            self.processes.clear();
        }
    }

    fn describe(&self, number: usize) -> String {
        format!("reward process {number} ({:?})", self.command)
    }
}

impl Reward for ExternalReward {
    /// Empty before the first batch; then the names of the first reply, sorted.
    fn names(&self) -> &[String] {
        &self.names
    }

    fn announce(&mut self, places: &[usize], inputs: &[RewardInput<'_>]) -> Result<(), RewardError> {
        if self.processes.is_empty() {
            return Err(RewardError::Stopped { command: self.command.clone() });
        }
        let result = self.begin_batch().and_then(|()| self.send(places.iter().copied().zip(inputs)));
        self.kill_after(&result);
        self.announced.extend(places);
        result
    }

    fn discard_announced(&mut self) {
        let Some(last) = self.announced.last() else { return };
        let ids = if faults::on(Fault::IdsOfDiscardedUsedAgain) { 0 } else { *last as u64 + 1 };
        let next_id = self.next_id + ids;
        self.discarded.extend(self.announced.iter().map(|&at| self.next_id + at as u64));
        self.announced.clear();
        self.next_id = next_id;
    }

    fn score(&mut self, batch: &[RewardInput<'_>]) -> Result<Vec<RewardRow>, RewardError> {
        if self.processes.is_empty() {
            return Err(RewardError::Stopped { command: self.command.clone() });
        }
        let result = self.exchange(batch);
        self.kill_after(&result);
        result
    }
}

impl Drop for ExternalReward {
    fn drop(&mut self) {
        process::close(&mut self.processes);
    }
}

fn open_log(path: PathBuf) -> Result<File, RewardError> {
    let file = OpenOptions::new().create(true).append(true).open(&path);
    file.map_err(|source| RewardError::Log { path: path.display().to_string(), source })
}

/// Names in quotation marks, separated by commas.
fn quoted<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    names.into_iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// The beginning of a line in quotation marks.
fn shortened(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]);
    let dots = if line.len() > SHOWN { " ..." } else { "" };
    format!("{text:?}{dots}")
}
