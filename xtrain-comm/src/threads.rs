//! Threads of one process that act as processes, connected by channels.
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use crate::communicator::{Communicator, Error, Result, one_per_process};

/// A thread that acts as a process. Gates compare any number of processes with one this way, without MPI. If a thread
/// drops it, operations of the others that need it fail.
#[derive(Debug)]
pub struct ThreadProcess {
    rank: usize,
    /// To each process.
    to: Vec<Sender<Vec<u8>>>,
    /// From each process. A channel keeps the order of its messages, so those of an operation are read by the same
    /// operation.
    from: Vec<Mutex<Receiver<Vec<u8>>>>,
}

impl ThreadProcess {
    /// `size` connected processes, one for each thread.
    pub fn group(size: usize) -> Vec<ThreadProcess> {
        let mut group: Vec<ThreadProcess> =
            (0..size).map(|rank| ThreadProcess { rank, to: Vec::new(), from: Vec::new() }).collect();
        for from in 0..size {
            for to in 0..size {
                let (sender, receiver) = channel();
                group[from].to.push(sender);
                group[to].from.push(Mutex::new(receiver));
            }
        }
        group
    }

    fn send(&self, to: usize, message: Vec<u8>) -> Result<()> {
        self.to[to].send(message).map_err(|_| self.ended(to))
    }

    fn receive(&self, from: usize) -> Result<Vec<u8>> {
        let receiver = self.from[from].lock().unwrap_or_else(PoisonError::into_inner);
        receiver.recv().map_err(|_| self.ended(from))
    }

    fn ended(&self, rank: usize) -> Error {
        Error::Ended { rank, size: self.size() }
    }
}

impl Communicator for ThreadProcess {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.to.len()
    }

    fn barrier(&self) -> Result<()> {
        self.all_gather(&[]).map(drop)
    }

    fn broadcast(&self, root: usize, message: &[u8]) -> Result<Vec<u8>> {
        if self.rank == root {
            (0..self.size()).try_for_each(|to| self.send(to, message.to_vec()))?;
        }
        self.receive(root)
    }

    fn all_to_all(&self, messages: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        one_per_process(self.size(), [messages.len()])?;
        messages.into_iter().enumerate().try_for_each(|(to, message)| self.send(to, message))?;
        (0..self.size()).map(|from| self.receive(from)).collect()
    }

    fn transfer(&self, send: &[Vec<&[u8]>], receive: Vec<Vec<&mut [u8]>>) -> Result<()> {
        one_per_process(self.size(), [send.len(), receive.len()])?;
        let others = || (0..self.size()).filter(|&process| process != self.rank);
        others().try_for_each(|to| self.send(to, send[to].concat()))?;
        for (from, pieces) in receive.into_iter().enumerate().filter(|(from, _)| *from != self.rank) {
            let message = self.receive(from)?;
            let want = pieces.iter().map(|piece| piece.len()).sum();
            if message.len() != want {
                return Err(Error::Length { from, size: self.size(), want, got: message.len() });
            }
            let mut rest = message.as_slice();
            for piece in pieces {
                let (values, others) = rest.split_at(piece.len());
                piece.copy_from_slice(values);
                rest = others;
            }
        }
        Ok(())
    }

    fn all_gather(&self, message: &[u8]) -> Result<Vec<Vec<u8>>> {
        (0..self.size()).try_for_each(|to| self.send(to, message.to_vec()))?;
        (0..self.size()).map(|from| self.receive(from)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `work` as each of `size` processes. Returns the results in the order of the processes.
    fn on_each<T: Send>(size: usize, work: impl Fn(ThreadProcess) -> T + Sync) -> Vec<T> {
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                ThreadProcess::group(size).into_iter().map(|one| scope.spawn(move || work(one))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn messages_arrive_in_the_order_of_the_processes() {
        let found = on_each(3, |one| {
            let rank = one.rank() as u8;
            let messages: Vec<Vec<u8>> = (0..3).map(|to| vec![rank; to]).collect();
            let sent = one.all_to_all(messages).unwrap();
            one.barrier().unwrap();
            (sent, one.broadcast(2, &[rank]).unwrap(), one.all_gather(&[rank, 9]).unwrap())
        });
        for (to, (sent, root, all)) in found.into_iter().enumerate() {
            assert_eq!(sent, [vec![0; to], vec![1; to], vec![2; to]]);
            assert_eq!((root, all), (vec![2], vec![vec![0, 9], vec![1, 9], vec![2, 9]]));
        }
    }

    #[test]
    fn a_process_that_has_ended_is_named() {
        let found = on_each(3, |one| if one.rank() == 1 { Ok(()) } else { one.barrier() });
        let named = |result: &Result<()>| *result == Err(Error::Ended { rank: 1, size: 3 });
        assert_eq!(found[1], Ok(()));
        assert!(found.iter().any(named), "{found:?}");
        assert!(found[0].is_err() && found[2].is_err(), "{found:?}");
    }

    #[test]
    fn pieces_arrive_in_the_pieces_of_the_receiver() {
        let found = on_each(3, |one| {
            let rank = one.rank() as u8;
            let (first, second) = ([rank, 10], [20 + rank; 3]);
            let send = vec![vec![&first[..], &second[..]]; 3];
            let mut received = [[0u8; 5]; 3];
            let receive = received.iter_mut().map(|bytes| bytes.split_at_mut(2)).map(|(a, b)| vec![a, b]);
            one.transfer(&send, receive.collect()).unwrap();
            received
        });
        for (rank, received) in found.into_iter().enumerate() {
            for (from, bytes) in received.into_iter().enumerate() {
                let from_byte = from as u8;
                let sent = [from_byte, 10, 20 + from_byte, 20 + from_byte, 20 + from_byte];
                assert_eq!(bytes, if from == rank { [0; 5] } else { sent });
            }
        }
    }

    #[test]
    fn pieces_of_other_lengths_are_an_error() {
        let found = on_each(2, |one| {
            let mut received = [0u8; 3];
            let (bytes, mut receive) = ([7u8; 4], vec![Vec::new(), Vec::new()]);
            receive[1 - one.rank()].push(&mut received[..]);
            one.transfer(&[vec![&bytes[..]], vec![&bytes[..]]], receive).unwrap_err().to_string()
        });
        assert_eq!(found[0], "message of process 1 of 2: expected 3 bytes, found 4");
    }

    #[test]
    fn a_wrong_number_of_messages_is_an_error() {
        let found = on_each(2, |one| one.all_to_all(vec![Vec::new()]).unwrap_err());
        assert_eq!(found[0].to_string(), "expected one message for each of 2 processes, found 1");
    }
}
