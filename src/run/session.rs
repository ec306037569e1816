//! `logs/session.json`: the process that runs a run, its machine, and how it ended.
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{Error, Result, durable};
use crate::build_info::COMMIT;
use crate::tensor::Device;

/// The last process that started or resumed a run. No result depends on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSession {
    /// Process id.
    pub pid: u32,
    /// Start of the process, in clock ticks since the start of the system: field 22 of `/proc/PID/stat`. It tells the
    /// process from a later one with its id, as in a container, whose first process is always 1. `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_start: Option<u64>,
    /// Start, in seconds since 1970.
    pub started: u64,
    /// The step that it started or resumed from.
    pub first_step: u64,
    /// The machine.
    pub machine: Machine,
    /// How it ended. `None`: it is running, or it was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<SessionEnd>,
}

/// A machine and a build of xtrain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Version of xtrain.
    pub version: String,
    /// Commit of xtrain.
    pub commit: String,
    /// Compute device and threads.
    pub device: String,
    /// Operating system and architecture.
    pub system: String,
    /// Model name of the CPU. `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Memory in bytes. `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionEnd {
    /// Time, in seconds since 1970.
    pub time: u64,
    /// The outcome.
    pub outcome: SessionOutcome,
    /// The reason of a failure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The outcome of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionOutcome {
    /// All steps are finished, or the run stopped early.
    Done,
    /// A signal stopped the run after a step.
    Stopped,
    /// An error ended the run.
    Failed,
}

impl SessionOutcome {
    /// The outcome as a word.
    pub fn word(self) -> &'static str {
        match self {
            SessionOutcome::Done => "finished",
            SessionOutcome::Stopped => "stopped",
            SessionOutcome::Failed => "failed",
        }
    }
}

impl Machine {
    /// This machine with `device`.
    fn current(device: &Device) -> Machine {
        let line = |file: &str, key: &str| {
            let text = fs::read_to_string(file).ok()?;
            let value = text.lines().find_map(|line| line.strip_prefix(key))?;
            Some(value.trim_start_matches([' ', '\t', ':']).to_string())
        };
        let memory = line("/proc/meminfo", "MemTotal");
        let kilobytes = memory.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        Machine {
            version: env!("CARGO_PKG_VERSION").to_string(),
            commit: COMMIT.to_string(),
            device: device.to_string(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            cpu: line("/proc/cpuinfo", "model name"),
            memory: kilobytes.map(|n| n << 10),
        }
    }
}

impl RunSession {
    /// A session of this process that starts now, after `first_step`.
    pub fn start(device: &Device, first_step: u64) -> RunSession {
        let machine = Machine::current(device);
        let pid = std::process::id();
        RunSession { pid, process_start: process_start(pid), started: now(), first_step, machine, end: None }
    }

    /// Records the end.
    pub fn end(&mut self, outcome: SessionOutcome, message: String) {
        self.end = Some(SessionEnd { time: now(), outcome, message });
    }

    /// Whether the process exists on this machine. Always false on other systems than Unix.
    pub fn is_alive(&self) -> bool {
        let (then, now) = (self.process_start, process_start(self.pid));
        if then.is_some() && now.is_some() && then != now {
            return false;
        }
        #[cfg(unix)]
        {
            let pid = i32::try_from(self.pid).ok().filter(|pid| *pid > 0);
            // EPERM: the process exists and belongs to another user.
            let found = pid.map(|pid| nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None));
            matches!(found, Some(Ok(()) | Err(nix::errno::Errno::EPERM)))
        }
        #[cfg(not(unix))]
        false
    }

    /// Reads a session. `None`: there is none, or it is not readable; a run of an earlier version has none.
    pub fn read(run: &Path) -> Option<RunSession> {
        serde_json::from_slice(&fs::read(file(run)).ok()?).ok()
    }

    /// Replaces the session of a run.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, run: &Path) -> Result<()> {
        let path = file(run);
        durable::ensure_dir(&run.join("logs")).map_err(|error| Error::io(&path, error))?;
        let text =
            serde_json::to_string_pretty(self).expect("a struct of strings and numbers is JSON") + "\n";
        durable::write(&path, text.as_bytes()).map_err(|error| Error::io(&path, error))
    }
}

fn file(run: &Path) -> std::path::PathBuf {
    run.join("logs").join("session.json")
}

fn process_start(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // field 2 is the name in parentheses, which may contain spaces
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_session_names_this_machine() {
        let before = now();
        let session = RunSession::start(&Device::cpu(), 7);
        assert!((before..=now()).contains(&session.started), "{before}: {session:?}");
        let info = fs::read_to_string("/proc/meminfo").unwrap();
        let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
        let kilobytes: u64 = total.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        assert_eq!((session.first_step, session.machine.memory), (7, Some(1024 * kilobytes)));
        assert_eq!(session.machine.device, Device::cpu().to_string());
        assert!(session.machine.system.starts_with("linux ") && session.is_alive());
        let info = fs::read_to_string("/proc/cpuinfo").unwrap();
        let cpu = info.lines().find_map(|line| line.strip_prefix("model name\t: "));
        assert_eq!(session.machine.cpu.as_deref(), cpu);
        assert_eq!(session.machine.version, env!("CARGO_PKG_VERSION"));
        assert_eq!(session.machine.commit, COMMIT);
        let (mut ended, before) = (session.clone(), now());
        ended.end(SessionOutcome::Failed, "full".to_string());
        let end = ended.end.unwrap();
        assert!((before..=now()).contains(&end.time), "{before}: {end:?}");
        assert_eq!((end.outcome, end.message.as_str()), (SessionOutcome::Failed, "full"));
        assert!(!RunSession { pid: 0, ..session.clone() }.is_alive());
        assert!(
            RunSession { process_start: None, ..session.clone() }.is_alive(),
            "a session of an earlier version"
        );
        let earlier = session.process_start.map(|ticks| ticks - 1);
        assert!(earlier.is_some());
        assert!(!RunSession { process_start: earlier, ..session }.is_alive(), "another process with this id");
    }
}
