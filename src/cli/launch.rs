//! The processes that run the command: this one, or those that `mpirun` or `srun` started.
use std::sync::Arc;

use super::exit::{CliError, Exit};
use crate::model::comm::{Communicator, SingleProcess};
use crate::tensor::enumerate_gpus;

/// The variables in which launchers store the number of processes: Open MPI; MPICH and its relatives; Slurm. The first
/// one that is set counts: `mpirun` may itself run under Slurm.
const SIZES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];

/// The number of processes that a launcher started, from its variables.
fn launched() -> usize {
    let number = |name: &&str| std::env::var(name).ok()?.parse().ok();
    SIZES.iter().find_map(number).unwrap_or(1)
}

/// The GPU of this process: its number among the processes of its machine, modulo the number of GPUs that it sees. A
/// launcher may show each process one GPU only, which then has number 0.
pub(super) fn gpu_of_process() -> u32 {
    match number_on_machine(|name| std::env::var(name).ok()) {
        0 => 0,
        number => gpu_of(number, enumerate_gpus().devices.map_or(0, |gpus| gpus.len())),
    }
}

/// The GPU of process `number` of a machine if it sees `gpus` GPUs.
fn gpu_of(number: u32, gpus: usize) -> u32 {
    number % gpus.max(1) as u32
}

/// The number of this process among those of its machine, from the variables of Open MPI, of MPICH and its relatives, and
/// of Slurm, in this order. 0 without a launcher.
fn number_on_machine(variable: impl Fn(&str) -> Option<String>) -> u32 {
    let number = |name: &&str| variable(name)?.parse().ok();
    ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"].iter().find_map(number).unwrap_or(0)
}

/// Joins the processes that a launcher started. Of several, only the first one prints.
///
/// # Errors
/// A launcher started several processes, and this build has no MPI.
pub(super) fn start() -> Result<Arc<dyn Communicator>, CliError> {
    match launched() {
        0 | 1 => Ok(Arc::new(SingleProcess)),
        n => join(n),
    }
}

#[cfg(feature = "mpi")]
fn join(launched: usize) -> Result<Arc<dyn Communicator>, CliError> {
    let process = crate::mpi::Mpi::start()?;
    if process.size() != launched {
        let found = process.size();
        let message = format!("{launched} processes were started, but MPI connects {found} of them");
        return Err(CliError::new(Exit::Usage, message)
            .hint("use the mpirun of the MPI library of this build, or srun --mpi=pmix"));
    }
    if process.rank() > 0 {
        crate::standard_error::silence();
    }
    Ok(Arc::new(process))
}

#[cfg(not(feature = "mpi"))]
fn join(launched: usize) -> Result<Arc<dyn Communicator>, CliError> {
    let message = format!(
        "{launched} processes were started, but this build has no MPI: each would run the whole command"
    );
    Err(CliError::new(Exit::Usage, message).hint(
        "cargo install --path . --features mpi (needs an MPI library and libclang), or start one process",
    ))
}

/// Refuses several processes for a command whose work is not divided among them.
pub(super) fn require_single(comm: &dyn Communicator) -> Result<(), CliError> {
    match comm.size() {
        1 => Ok(()),
        n => Err(CliError::new(Exit::Usage, format!("this command runs as one process, found {n}"))
            .hint("commands for several processes: train, grpo, rollout, eval --data, verify, bench scale")),
    }
}

/// The end of a command on several processes: an error of one ends all of them, and is printed with its number.
#[cfg(feature = "mpi")]
pub(super) fn end(comm: &dyn Communicator, result: Result<(), CliError>) -> Result<(), CliError> {
    use std::io::Write;
    use std::time::Duration;

    use crate::mpi::Mpi;

    /// An error that all processes have is printed by the first one only, which ends the others within this time.
    const WAIT: Duration = Duration::from_secs(5);

    let Err(error) = &result else { return result };
    if comm.size() == 1 {
        return result;
    }
    let mut number = String::new();
    if comm.rank() > 0 {
        std::thread::sleep(WAIT);
        number = format!("process {} of {}: ", comm.rank(), comm.size());
    }
    if error.exit() != Exit::Ok {
        let _ = writeln!(std::io::stderr(), "{number}{error}");
    }
    Mpi::abort(error.exit() as i32)
}

/// The end of a command on one process.
#[cfg(not(feature = "mpi"))]
pub(super) fn end(_comm: &dyn Communicator, result: Result<(), CliError>) -> Result<(), CliError> {
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_take_the_gpus_in_turn() {
        assert_eq!(
            [(0, 0), (3, 0), (3, 1), (3, 2), (3, 4)].map(|(n, gpus)| gpu_of(n, gpus)),
            [0, 0, 0, 1, 3]
        );
    }

    #[test]
    fn the_number_on_the_machine_is_that_of_the_innermost_launcher() {
        let number = |set: &[(&str, &str)]| {
            let found =
                |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_string());
            number_on_machine(found)
        };
        let [open_mpi, mpich, slurm] =
            [("OMPI_COMM_WORLD_LOCAL_RANK", "3"), ("MPI_LOCALRANKID", "2"), ("SLURM_LOCALID", "1")];
        assert_eq!([&[][..], &[slurm], &[slurm, mpich], &[slurm, mpich, open_mpi]].map(number), [0, 1, 2, 3]);
    }
}
