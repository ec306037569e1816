//! Copies between the GPUs of the processes of a run: what host code requires of NCCL, and of the emulator in its place.
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use xtrain_comm::Communicator;

use crate::error::{Error, Result};
use crate::faults::{self, Fault};

/// Bytes in the memory of a device that a process sends or receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    /// The process at the other end.
    pub(crate) process: usize,
    pub(crate) at: u64,
    pub(crate) bytes: usize,
}

/// The connection of a device with those of the other processes. Every process calls the same operations in the same
/// order. A transfer begins after everything launched before, and may end as late as [`Peers::join`]: until then the
/// memory that is sent must not change, and that which is received must not be read.
pub(crate) trait Peers: Send + Sync {
    /// Starts to copy messages. Those from one process to another are matched in order and have equal lengths. A
    /// process may send to itself.
    fn exchange(&self, sends: &[Message], receives: &[Message]) -> Result<()>;

    /// Starts to copy `bytes` bytes at `from` of each process r to `to + r bytes` of every process.
    fn all_gather(&self, from: u64, to: u64, bytes: usize) -> Result<()>;

    /// Everything launched later runs after the transfers that were started before.
    fn join(&self) -> Result<()>;

    /// Gives up the transfers that were started: they may never end, or end at any time, so their memory must not be
    /// freed. Every operation is refused from then on.
    fn abandon(&self);
}

/// The error of an operation after [`Peers::abandon`].
pub(crate) fn given_up() -> Error {
    Error::device(
        "transfer between GPUs: the connection was given up after a transfer that failed or was dropped",
    )
}

/// `own` of this process, or the first error of any process, the same in all. Collective.
pub(crate) fn agreed<T>(comm: &dyn Communicator, own: Result<T>) -> Result<T> {
    let text = own.as_ref().err().map_or(String::new(), Error::to_string);
    let errors = comm.all_gather(text.as_bytes()).map_err(|error| Error::device(error.to_string()))?;
    match errors.iter().find(|error| !error.is_empty()) {
        Some(error) => Err(Error::device(String::from_utf8_lossy(error))),
        None => own,
    }
}

/// How long a process waits for its own connection between two rounds.
const ROUND: Duration = Duration::from_millis(10);

/// The state of a connection, as it is sent: the first byte of a message. An error is followed by its text.
const WAITING: u8 = 0;
const CONNECTED: u8 = 1;
const FAILED: u8 = 2;
const LATE: u8 = 3;

/// Calls `connect`, which may wait for the other processes, on a thread of its own. Returns its result when all processes
/// are connected; otherwise the first error of any process, the same in all. After an error the threads of other
/// processes may still wait. Collective.
///
/// # Errors
/// [`Error::Device`]: that of `connect` in any process; a process is not connected within `limit`, or has ended.
pub(crate) fn connected<T: Send + 'static>(
    comm: &dyn Communicator,
    limit: Duration,
    connect: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (done, result) = channel();
    let thread = Builder::new().name("connection".to_string()).spawn(move || {
        let _ = done.send(connect()); // nobody receives it after an error of another process
    });
    let start = Instant::now();
    let mut own = thread.err().map(|error| Err(Error::device(format!("no thread to connect: {error}"))));
    loop {
        own = own.or_else(|| match result.recv_timeout(ROUND) {
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(Error::device("the connection has panicked"))),
            Ok(result) => Some(result),
        });
        let message = match &own {
            Some(Ok(_)) => vec![CONNECTED],
            Some(Err(_)) if faults::on(Fault::FailedConnectionNotSent) => vec![WAITING],
            Some(Err(error)) => [&[FAILED], error.to_string().as_bytes()].concat(),
            None if start.elapsed() < limit => vec![WAITING],
            None => vec![LATE],
        };
        let all = comm.all_gather(&message).map_err(|error| Error::device(error.to_string()))?;
        let with = |state: u8| all.iter().position(|message| message.first() == Some(&state));
        if let Some(failed) = with(FAILED) {
            return Err(Error::device(String::from_utf8_lossy(&all[failed][1..])));
        }
        if let Some(late) = with(LATE) {
            let size = comm.size();
            return Err(Error::device(format!("process {late} of {size} is not connected within {limit:?}")));
        }
        if with(WAITING).is_none() {
            return own.expect("this process is connected");
        }
    }
}

/// The description of the device of a process for the other processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// The name of the device.
    pub(crate) name: String,
    /// An id that is unique among all devices.
    pub(crate) id: String,
    /// The library that copies, with its version, or why this process has none.
    pub(crate) library: Result<String, String>,
}

impl Member {
    /// A device that cannot copy to others.
    pub(crate) fn without(name: String, why: String) -> Member {
        Member { name, id: String::new(), library: Err(why) }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (has, text) = match &self.library {
            Ok(library) => ("1", library),
            Err(why) => ("0", why),
        };
        [&self.name, &self.id, has, text].map(|field| field.replace('\0', " ")).join("\0").into_bytes()
    }

    /// The reverse of [`Member::to_bytes`]. `None`: other bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Member> {
        let text = std::str::from_utf8(bytes).ok()?;
        let [name, id, has, text] = <[&str; 4]>::try_from(text.split('\0').collect::<Vec<_>>()).ok()?;
        let library = if has == "1" { Ok(text.to_string()) } else { Err(text.to_string()) };
        Some(Member { name: name.to_string(), id: id.to_string(), library })
    }
}

/// Whether these devices, in the order of the processes, can connect. The result is the same in every process.
///
/// # Errors
/// The first process without a library; the first with another version than process 0; two that have one device.
pub(crate) fn check(members: &[Member]) -> Result<(), String> {
    let n = members.len();
    for (rank, member) in members.iter().enumerate() {
        if let Err(why) = &member.library {
            return Err(format!("process {rank} of {n}: {why}"));
        }
    }
    for (rank, Member { name, id, library }) in members.iter().enumerate() {
        if *library != members[0].library {
            let [first, found] = [&members[0].library, library].map(|x| x.as_deref().unwrap_or_default());
            return Err(format!("process {rank} of {n}: expected {first}, as process 0 has, found {found}"));
        }
        if let Some(other) = members[..rank].iter().position(|other| other.id == *id) {
            return Err(format!(
                "processes {other} and {rank} of {n} use one GPU, {name}: expected another GPU for each process; \
                 start at most one process per GPU"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use xtrain_comm::ThreadProcess;

    use super::*;

    fn member(id: &str, library: &str) -> Member {
        Member { name: "H200".into(), id: id.into(), library: Ok(library.into()) }
    }

    /// The result of each of three processes: the second one does `second`, and the others wait for ever.
    fn on_three(limit: Duration, second: fn() -> Result<u8>) -> Vec<String> {
        let fault = faults::current();
        std::thread::scope(|scope| {
            let start = |process: ThreadProcess| {
                let work = move || {
                    let is_second = process.rank() == 1;
                    let connect = move || if is_second { second() } else { Ok(park()) };
                    connected(&process, limit, connect).expect_err("a connection").to_string()
                };
                scope.spawn(move || fault.enter(work))
            };
            let threads: Vec<_> = ThreadProcess::group(3).into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn park() -> u8 {
        loop {
            std::thread::park();
        }
    }

    /// A process that fails ends the wait of the others.
    fn failure_is_agreed() -> std::result::Result<(), String> {
        let found = on_three(Duration::from_millis(500), || Err(Error::device("no memory")));
        match found.iter().all(|error| error.contains("no memory")) {
            true => Ok(()),
            false => Err(format!("{found:?}")),
        }
    }

    #[test]
    fn a_process_that_fails_to_connect_ends_the_wait_of_the_others() {
        failure_is_agreed().unwrap();
        let late = on_three(Duration::from_millis(50), || Ok(1));
        // of the two that wait, the one whose time is over first
        let waits = |rank| format!("process {rank} of 3 is not connected within 50ms");
        assert!([0, 2].iter().any(|rank| late.iter().all(|error| error.contains(&waits(*rank)))), "{late:?}");
    }

    #[test]
    #[cfg(feature = "faults")]
    fn a_failure_that_is_not_sent_is_found() {
        let found = faults::with(Fault::FailedConnectionNotSent, failure_is_agreed).expect_err("the fault");
        assert!(found.contains("is not connected within"), "{found}");
    }

    #[test]
    fn processes_that_connect_return_their_own_connection() {
        let found = std::thread::scope(|scope| {
            let start = |process: ThreadProcess| {
                scope.spawn(move || {
                    let rank = process.rank();
                    connected(&process, Duration::from_secs(60), move || Ok(rank)).unwrap()
                })
            };
            let threads: Vec<_> = ThreadProcess::group(3).into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(found, [0, 1, 2]);
    }

    #[test]
    fn devices_that_cannot_connect_are_refused_by_name() {
        let text = |members: &[Member]| check(members).unwrap_err();
        let none = Member::without("portable".into(), "libnccl.so cannot be loaded".into());
        assert_eq!(check(&[member("a", "NCCL 2.27.3"), member("b", "NCCL 2.27.3")]), Ok(()));
        assert_eq!(
            text(&[member("a", "NCCL 2.27.3"), none.clone()]),
            "process 1 of 2: libnccl.so cannot be loaded"
        );
        assert_eq!(
            text(&[member("a", "NCCL 2.27.3"), member("b", "NCCL 2.20.5")]),
            "process 1 of 2: expected NCCL 2.27.3, as process 0 has, found NCCL 2.20.5"
        );
        assert_eq!(
            text(&[member("a", "NCCL 2.27.3"), member("b", "NCCL 2.27.3"), member("a", "NCCL 2.27.3")]),
            "processes 0 and 2 of 3 use one GPU, H200: expected another GPU for each process; start at most one \
             process per GPU"
        );
        for member in [none, member("a", "NCCL 2.27.3")] {
            assert_eq!(Member::from_bytes(&member.to_bytes()), Some(member));
        }
        assert_eq!(Member::from_bytes(b"H200"), None);
    }
}
