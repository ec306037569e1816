//! Copies between the GPUs of the processes of a run: what host code requires of NCCL, and of the emulator in its place.
use xtrain_comm::Communicator;

use crate::error::{Error, Result};

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

    /// Gives up the transfers that were started: they may never end, and their memory may be freed. No operation
    /// follows.
    fn abandon(&self);
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
    use super::*;

    fn member(id: &str, library: &str) -> Member {
        Member { name: "H200".into(), id: id.into(), library: Ok(library.into()) }
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
