//! A reward process: its pipes, the threads that serve them, and how it is stopped.
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::tensor::faults::{self, Fault};

/// Maximum length of a line of standard output in bytes, without its line break.
pub(super) const MAX_LINE: usize = 1 << 20;
/// Number of bytes that are read from standard output at once.
const READ: usize = 1 << 16;
/// Number of lines of standard error that errors show.
const STDERR_LINES: usize = 8;
/// Maximum length of such a line in bytes.
const STDERR_LINE: usize = 400;
/// How long a process may take to end after its standard input was closed.
const GRACE: Duration = Duration::from_secs(2);
/// How often a process that should end is polled.
const POLL: Duration = Duration::from_millis(5);

/// What a process printed, or that it ended.
#[derive(Debug)]
pub(super) enum Output {
    /// A line without its line break.
    Line(Vec<u8>),
    /// A line that is too long: its beginning.
    LongLine(Vec<u8>),
    /// The end of standard output.
    End,
    /// Reading failed.
    Failed(io::Error),
}

/// What processes printed, in order, each with the number of its process.
pub(super) type Outputs = Vec<(usize, Output)>;

/// The process groups of running processes, on Unix.
static GROUPS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn groups() -> MutexGuard<'static, BTreeSet<u32>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills all reward processes, before this process ends without dropping them. Until then, no other one is started.
#[cfg(unix)]
pub(crate) fn kill_all() {
    if !faults::on(Fault::RewardProcessesOutlive) {
        let groups = groups();
        groups.iter().for_each(|&group| kill_group(group));
        std::mem::forget(groups);
    }
}

/// A running process. Dropping it kills it. See [`close`].
#[derive(Debug)]
pub(super) struct RewardProcess {
    child: Child,
    /// Text for its standard input. `None`: closed.
    input: Option<Sender<Vec<u8>>>,
    stderr: Arc<Mutex<VecDeque<String>>>,
    stderr_thread: JoinHandle<()>,
    /// Its exit status was collected, and its process group killed.
    ended: bool,
}

impl RewardProcess {
    /// Starts `words[0]` with the arguments `words[1..]` in `dir`; `None`: in the working directory. Its output is sent
    /// to `output` with `number`. Its standard error is appended to `log`; `None`: only the last lines are kept, for
    /// errors.
    ///
    /// On Unix, the process leads a process group of its own, so that Ctrl-C in the terminal ends xtrain first.
    ///
    /// # Errors
    /// The operating system cannot start the program or a thread.
    pub(super) fn start(
        words: &[String],
        dir: Option<&Path>,
        number: usize,
        output: SyncSender<Outputs>,
        log: Option<File>,
    ) -> io::Result<RewardProcess> {
        // a relative path with directories is one in `dir` on every system; a name alone is searched in PATH
        let program = Path::new(&words[0]);
        let mut command = match dir.filter(|_| program.components().count() > 1) {
            Some(dir) => Command::new(dir.join(program)),
            None => Command::new(program),
        };
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(dir) = dir {
            command.current_dir(dir);
        }
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut groups = groups();
        let mut child = command.spawn()?;
        groups.insert(child.id());
        drop(groups);
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            unreachable!("the three pipes were requested")
        };
        let (input, lines) = channel();
        let (tail, fault) = (Arc::new(Mutex::new(VecDeque::new())), faults::current());
        let thread = |name: &str| thread::Builder::new().name(format!("reward-{number}-{name}"));
        let threads = (|| {
            thread("stdin").spawn(move || write_input(stdin, &lines))?;
            thread("stdout").spawn(move || read_output(stdout, number, &output))?;
            let tail = Arc::clone(&tail);
            thread("stderr").spawn(move || fault.enter(|| read_errors(stderr, &tail, log)))
        })();
        match threads {
            Ok(stderr_thread) => {
                Ok(RewardProcess { child, input: Some(input), stderr: tail, stderr_thread, ended: false })
            }
            Err(error) => {
                kill(&mut child);
                Err(error)
            }
        }
    }

    /// Queues `lines` for its standard input. Does not wait. A process that does not read them is noticed by its end
    /// or by the time limit.
    pub(super) fn send(&self, lines: Vec<u8>) {
        if let Some(input) = &self.input {
            let _ = input.send(lines);
        }
    }

    /// How it ended, as text: waits for a short time for the end after its standard output was closed.
    pub(super) fn end(&mut self) -> String {
        match self.wait(GRACE / 4) {
            Some(Ok(status)) => format!("ended with {status}"),
            Some(Err(error)) => format!("ended with an unknown status ({error})"),
            None => "closed its standard output".into(),
        }
    }

    /// The last lines of its standard error, as text that continues an error.
    pub(super) fn stderr(&self) -> String {
        self.await_stderr();
        let lines = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_empty() {
            return "; it wrote nothing to standard error".into();
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        format!("; the last lines of its standard error:\n{}", lines.join("\n"))
    }

    /// Waits for a short time for the end of its standard error.
    fn await_stderr(&self) {
        let start = Instant::now();
        while !self.stderr_thread.is_finished() && start.elapsed() < GRACE / 8 {
            thread::sleep(POLL);
        }
    }

    /// Its exit status if it ends within `limit`. Processes that it started and that still run are killed then.
    fn wait(&mut self, limit: Duration) -> Option<io::Result<std::process::ExitStatus>> {
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    if !self.ended {
                        // Now: when its group is empty, the number of the group may be used again.
                        end_group(&self.child);
                        self.ended = true;
                    }
                    return Some(Ok(status));
                }
                Ok(None) if start.elapsed() < limit => thread::sleep(POLL),
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Drop for RewardProcess {
    fn drop(&mut self) {
        if !self.ended {
            kill(&mut self.child);
        }
        // the log has its last lines when the command ends
        self.await_stderr();
    }
}

/// Closes the standard input of `processes` and waits for their end, for at most 2 seconds in total.
pub(super) fn close(processes: &mut [RewardProcess]) {
    for process in processes.iter_mut() {
        process.input = None;
    }
    let start = Instant::now();
    for process in processes {
        let _ = process.wait(GRACE.saturating_sub(start.elapsed()));
    }
}

/// Kills a process whose exit status was not collected, on Unix with its process group, and collects its exit status.
fn kill(child: &mut Child) {
    end_group(child);
    let _ = child.kill();
    let _ = child.wait();
}

/// Kills the process group of `child` on Unix, also if `child` itself has ended.
fn end_group(child: &Child) {
    let mut groups = groups();
    if groups.remove(&child.id()) {
        kill_group(child.id());
    }
}

fn kill_group(group: u32) {
    #[cfg(unix)]
    if let Ok(group) = i32::try_from(group) {
        use nix::sys::signal::{Signal, killpg};
        let _ = killpg(nix::unistd::Pid::from_raw(group), Signal::SIGKILL);
    }
    #[cfg(not(unix))]
    let _ = group;
}

/// Writes to standard input until the sender is dropped or the process does not read any more.
fn write_input(mut stdin: ChildStdin, lines: &Receiver<Vec<u8>>) {
    for text in lines {
        if stdin.write_all(&text).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

/// Sends the lines of standard output until its end, an error, or a line that is too long. Lines that were read
/// together are sent together.
fn read_output(stdout: ChildStdout, number: usize, output: &SyncSender<Outputs>) {
    let mut reader = BufReader::with_capacity(READ, stdout);
    loop {
        let (mut outputs, mut more) = (Vec::new(), true);
        while more && (outputs.is_empty() || reader.buffer().contains(&b'\n')) {
            let next = next_output(&mut reader);
            more = matches!(next, Output::Line(_));
            outputs.push((number, next));
        }
        if output.send(outputs).is_err() || !more {
            return;
        }
    }
}

/// Reads the next line.
fn next_output(reader: &mut impl BufRead) -> Output {
    let mut line = Vec::new();
    match reader.take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line) {
        Err(error) => Output::Failed(error),
        Ok(0) => Output::End,
        Ok(_) if line.last() == Some(&b'\n') => {
            line.pop();
            Output::Line(line)
        }
        Ok(length) if length > MAX_LINE => Output::LongLine(line),
        // the last line has no line break
        Ok(_) => Output::Line(line),
    }
}

/// Keeps the last lines of standard error, and appends all of it to `log`.
fn read_errors(stderr: ChildStderr, tail: &Mutex<VecDeque<String>>, mut log: Option<File>) {
    let mut reader = BufReader::new(stderr);
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line) {
            Err(_) | Ok(0) => return,
            Ok(_) => {}
        }
        if faults::on(Fault::LogLineCut) {
            line.truncate(STDERR_LINE);
        }
        if let Some(file) = &mut log {
            let _ = file.write_all(&line);
        }
        line.truncate(STDERR_LINE);
        let line = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.len() == STDERR_LINES {
            tail.pop_front();
        }
        tail.push_back(line);
    }
}
