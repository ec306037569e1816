//! SIGINT and SIGTERM: the first requests a clean stop, the second ends the process.
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::exit::{CliError, Exit};
#[cfg(unix)]
use crate::tensor::faults::{self, Fault};

/// Makes `signal` set `flag`, or end the process with `code` if the flag is already set.
pub(super) fn set_or_exit(signal: i32, code: Exit, flag: &Arc<AtomicBool>) -> std::io::Result<()> {
    // The order matters: at the first signal, the shutdown handler must run before the flag is set.
    flag::register_conditional_shutdown(signal, code as i32, flag.clone())?;
    flag::register(signal, flag.clone()).map(|_| ())
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) an error, which names the file, instead of the end of the
/// process. A started program has the default again.
#[cfg(unix)]
pub(super) fn report_file_size_limit() {
    if faults::on(Fault::FileSizeLimitEndsProcess) {
        return;
    }
    // Without the handler, which cannot fail for this signal, the limit would only be reported less well.
    let _ = flag::register(nix::libc::SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Whether a signal requested a stop. Long jobs check it between steps.
#[derive(Debug, Clone)]
pub(super) struct Interrupt {
    exit: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Installs handlers. The first SIGINT or SIGTERM sets a flag; the next one ends the process immediately with the
    /// exit code of its signal.
    pub(super) fn install() -> Result<Interrupt, CliError> {
        let again = Arc::new(AtomicBool::new(false));
        let exit = Arc::new(AtomicUsize::new(0));
        for (signal, code) in [(SIGINT, Exit::Interrupted), (SIGTERM, Exit::Terminated)] {
            set_or_exit(signal, code, &again)
                .and_then(|()| flag::register_usize(signal, exit.clone(), code as usize))
                .map_err(|error| CliError::io(Path::new("signal handler"), &error))?;
        }
        Ok(Interrupt { exit })
    }

    /// The exit code of the signal that arrived. `None`: no signal so far.
    pub(super) fn requested(&self) -> Option<Exit> {
        Exit::from_code(self.exit.load(Ordering::SeqCst) as i32).filter(|&exit| exit != Exit::Ok)
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::process::Command;

    use signal_hook::low_level::raise;

    use super::*;

    const CHILD: &str = "XTRAIN_TEST_SIGNALS";

    /// Runs this test in a child process that raises the signals in `plan`.
    #[track_caller]
    fn child(plan: &str, want: i32) {
        let name = "cli::interrupt::tests::the_first_signal_sets_a_flag_and_the_second_ends_the_process";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, plan)
            .output()
            .unwrap();
        assert_eq!(child.status.code(), Some(want), "{plan}: {child:?}");
    }

    #[test]
    fn the_first_signal_sets_a_flag_and_the_second_ends_the_process() {
        if let Ok(plan) = std::env::var(CHILD) {
            let interrupt = Interrupt::install().unwrap();
            assert_eq!(interrupt.requested(), None);
            for signal in plan.split(' ') {
                raise(if signal == "int" { SIGINT } else { SIGTERM }).unwrap();
            }
            std::process::exit(interrupt.requested().map_or(0, |exit| exit as i32 + 100));
        }
        child("int", 230);
        child("term", 243);
        child("int int", 130);
        child("int term", 143);
        child("term int", 130);
    }
}
