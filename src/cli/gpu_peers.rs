//! How gradients and weights travel between the processes of a run: from GPU to GPU, or through host memory.
use std::sync::Arc;

use super::exit::{CliError, Exit};
use crate::model::Processes;
use crate::model::comm::Communicator;
use crate::tensor::{Device, GpuPeers};

/// The code of a value of the variable that is not 0 or 1.
const INVALID: u8 = u8::MAX;

/// 0: through host memory. 1: between GPUs, or an error. Unset: between GPUs if they can be connected.
const VARIABLE: &str = "XTRAIN_NCCL";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Host,
    Gpus,
    Either,
}

impl Choice {
    fn read(value: Option<&str>) -> Result<Choice, CliError> {
        match value {
            None => Ok(Choice::Either),
            Some("0") => Ok(Choice::Host),
            Some("1") => Ok(Choice::Gpus),
            Some(found) => {
                let message = format!("{VARIABLE}: expected 0 or 1, found {found:?}");
                Err(CliError::new(Exit::Usage, message))
            }
        }
    }
}

/// The processes of a run whose model is on `device`: connects the GPUs of all of them, and prints how gradients and
/// weights travel. `threads`: the threads of the CPU that updates a slice of a model on a GPU. Collective.
///
/// # Errors
/// With `XTRAIN_NCCL=1` in any process: the GPUs cannot be connected.
pub(super) fn connect(
    device: &Device,
    threads: Option<usize>,
    comm: &Arc<dyn Communicator>,
) -> Result<Processes, CliError> {
    let mut processes = Processes { host_threads: threads, ..Processes::new(Arc::clone(comm)) };
    if comm.size() > 1 {
        let value = std::env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned());
        processes.gpus = connect_by(Choice::read(value.as_deref()), device, comm)?;
    }
    Ok(processes)
}

/// The connection of `device`, the GPU of this process, with those of the others. `None`: through host memory.
fn connect_by(
    choice: Result<Choice, CliError>,
    device: &Device,
    comm: &Arc<dyn Communicator>,
) -> Result<Option<Arc<GpuPeers>>, CliError> {
    let is_gpu = device.gpu_counters().is_some();
    let own = choice.as_ref().map_or(INVALID, |choice| *choice as u8);
    let all = comm.all_gather(&[own, u8::from(is_gpu)])?;
    choice?;
    let with = |code: u8| all.iter().position(|message| message.first() == Some(&code));
    let error = |message: String| Err(CliError::new(Exit::Usage, message));
    if let Some(process) = with(INVALID) {
        return error(format!("{VARIABLE}: expected 0 or 1 in all processes, not in process {process}"));
    }
    if let (Some(host), Some(gpus)) = (with(Choice::Host as u8), with(Choice::Gpus as u8)) {
        let found = format!("found 0 in process {host} and 1 in process {gpus}");
        return error(format!("{VARIABLE}: expected one value in all processes, {found}"));
    }
    let any = |choice: Choice| with(choice as u8).is_some();
    let has_gpus = all.iter().any(|message| message.get(1) == Some(&1));
    if any(Choice::Host) || !(has_gpus || any(Choice::Gpus)) {
        if has_gpus {
            eprintln!("gradients and weights pass through host memory: {VARIABLE}=0");
        }
        return Ok(None);
    }
    match GpuPeers::connect(device, comm) {
        Ok(peers) => {
            eprintln!("gradients and weights travel between the GPUs: {}", peers.library());
            Ok(Some(Arc::new(peers)))
        }
        Err(error) if any(Choice::Gpus) => Err(CliError::new(Exit::Device, error).hint(format_args!(
            "{VARIABLE}=1 requires a connection of the GPUs; without it, gradients and weights pass through host memory"
        ))),
        Err(error) => {
            eprintln!("gradients and weights pass through host memory: {error}");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::comm::ThreadProcess;

    /// What two processes on CPUs get.
    fn on_cpus(choices: [Option<&'static str>; 2]) -> Vec<Result<bool, String>> {
        std::thread::scope(|scope| {
            let start = |(process, choice): (ThreadProcess, Option<&'static str>)| {
                scope.spawn(move || {
                    let comm: Arc<dyn Communicator> = Arc::new(process);
                    let found = connect_by(Choice::read(choice), &Device::reference(), &comm);
                    found.map(|peers| peers.is_some()).map_err(|error| error.message().to_string())
                })
            };
            let all: Vec<_> = ThreadProcess::group(2).into_iter().zip(choices).map(start).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn cpus_are_connected_through_host_memory_unless_a_process_requires_gpus() {
        assert_eq!(on_cpus([None, None]), [Ok(false), Ok(false)]);
        assert_eq!(on_cpus([Some("0"), None]), [Ok(false), Ok(false)]);
        let error = "process 0 of 2: expected a GPU, found the CPU (reference)";
        assert_eq!(on_cpus([None, Some("1")]), [Err(error.to_string()), Err(error.to_string())]);
    }

    #[test]
    fn values_that_differ_or_are_invalid_are_an_error_of_all_processes() {
        let error =
            "XTRAIN_NCCL: expected one value in all processes, found 0 in process 1 and 1 in process 0";
        assert_eq!(on_cpus([Some("1"), Some("0")]), [Err(error.to_string()), Err(error.to_string())]);
        let [own, other] = on_cpus([Some("on"), None]).try_into().unwrap();
        assert_eq!(own.unwrap_err(), "XTRAIN_NCCL: expected 0 or 1, found \"on\"");
        assert_eq!(other.unwrap_err(), "XTRAIN_NCCL: expected 0 or 1 in all processes, not in process 0");
    }

    #[test]
    fn the_variable_is_0_or_1() {
        let read = |value| Choice::read(value).map_err(|error| error.message().to_string());
        assert_eq!(
            [None, Some("0"), Some("1")].map(read),
            [Ok(Choice::Either), Ok(Choice::Host), Ok(Choice::Gpus)]
        );
        assert_eq!(read(Some("on")), Err("XTRAIN_NCCL: expected 0 or 1, found \"on\"".to_string()));
    }
}
