//! Copies between the processes that run one command. No operation computes: a collective that adds has no fixed order,
//! so every sum is computed by its receiver, in an order that does not depend on the number of processes.
//!
//! Those that `mpirun` or `srun` started are `xtrain::mpi::Mpi`, in builds of xtrain with the feature `mpi`. Here are:
//!
//! | type | processes |
//! |---|---|
//! | [`SingleProcess`] | one |
//! | [`ThreadProcess`] | threads of one process, for tests |
//!
//! ```
//! use xtrain_comm::{Communicator, ThreadProcess};
//!
//! let work = |process: ThreadProcess| process.all_gather(&[process.rank() as u8]).unwrap();
//! std::thread::scope(|scope| {
//!     let threads = ThreadProcess::group(3).into_iter().map(|process| scope.spawn(move || work(process)));
//!     for thread in threads.collect::<Vec<_>>() {
//!         assert_eq!(thread.join().unwrap(), [[0], [1], [2]]);
//!     }
//! });
//! ```
#![forbid(unsafe_code)]
mod communicator;
mod single;
mod threads;

pub use communicator::{Communicator, Error, Result, one_per_process};
pub use single::SingleProcess;
pub use threads::ThreadProcess;
