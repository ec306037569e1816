//! Ctrl-C and SIGTERM: the first asks the command to finish its step and save, the second ends it.
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::{CliError, Exit};

/// What a long job asks between its steps.
#[derive(Debug, Clone)]
pub struct Interrupt {
    exit: Arc<AtomicUsize>,
}

impl Interrupt {
    /// From now on the first SIGINT or SIGTERM only sets a flag; the next of either ends the process at
    /// once, with the exit code of its signal.
    ///
    /// # Errors
    /// The system does not let signals be handled.
    pub fn install() -> Result<Interrupt, CliError> {
        let again = Arc::new(AtomicBool::new(false));
        let exit = Arc::new(AtomicUsize::new(0));
        for (signal, code) in [(SIGINT, Exit::Interrupted), (SIGTERM, Exit::Terminated)] {
            // In this order: at the first signal the flag that the first line reads is not yet set.
            flag::register_conditional_shutdown(signal, code as i32, again.clone())
                .and_then(|_| flag::register(signal, again.clone()))
                .and_then(|_| flag::register_usize(signal, exit.clone(), code as usize))
                .map_err(|error| CliError::io(Path::new("signal handler"), &error))?;
        }
        Ok(Interrupt { exit })
    }

    /// The exit code to stop with, once a signal has come.
    pub fn asked(&self) -> Option<Exit> {
        [Exit::Interrupted, Exit::Terminated]
            .into_iter()
            .find(|&code| code as usize == self.exit.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::process::Command;

    use signal_hook::low_level::raise;

    use super::*;

    const CHILD: &str = "XTRAIN_TEST_SIGNALS";

    /// Runs this test again in a process of its own, which raises the signals `plan`.
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
            assert_eq!(interrupt.asked(), None);
            for signal in plan.split(' ') {
                raise(if signal == "int" { SIGINT } else { SIGTERM }).unwrap();
            }
            std::process::exit(interrupt.asked().map_or(0, |exit| exit as i32 + 100));
        }
        child("int", 230);
        child("term", 243);
        child("int int", 130);
        child("int term", 143);
        child("term int", 130);
    }
}
