//! SIGINT, SIGTERM and SIGHUP request a clean stop. The second SIGINT or SIGTERM ends the process.
#[cfg(unix)]
use std::io::Read;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[cfg(target_os = "linux")]
use signal_hook::consts::SIGHUP;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
#[cfg(unix)]
use signal_hook::iterator::Signals;
#[cfg(unix)]
use signal_hook::low_level::{self, pipe};

use super::exit::{CliError, Exit};
#[cfg(unix)]
use crate::model::temporary::{lock_names, remove_temporary};
#[cfg(unix)]
use crate::rewards;
#[cfg(unix)]
use crate::tensor::faults::{self, Fault};

/// Makes `signal` set `flag`, or end the process with `code` if the flag is already set.
pub(super) fn set_or_exit(signal: i32, code: Exit, flag: &Arc<AtomicBool>) -> std::io::Result<()> {
    // The order matters: at the first signal, the shutdown handler must run before the flag is set.
    flag::register_conditional_shutdown(signal, code as i32, flag.clone())?;
    flag::register(signal, flag.clone()).map(|_| ())
}

/// Makes the second of `signals` end the process with the code in `exit`, after the end of the reward programs: they are
/// in process groups of their own, and one that does not read its standard input would not end.
#[cfg(unix)]
fn exit_at_second(signals: &[i32], exit: Arc<AtomicUsize>) -> std::io::Result<()> {
    let (mut arrived, sender) = UnixStream::pair()?;
    for &signal in signals {
        pipe::register(signal, sender.try_clone()?)?;
    }
    let fault = faults::current();
    let wait = move || {
        // a byte for each signal
        if arrived.read_exact(&mut [0; 2]).is_ok() {
            fault.enter(rewards::kill_all);
            // without the handlers of an exit: other threads still compute
            low_level::exit(exit.load(Ordering::SeqCst) as i32);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

/// Elsewhere, the handler of the second signal ends the process.
#[cfg(not(unix))]
fn exit_at_second(signals: &[i32], _: Arc<AtomicUsize>) -> std::io::Result<()> {
    let again = Arc::new(AtomicBool::new(false));
    let code =
        |signal| stops().find(|(other, _)| *other == signal).map_or(Exit::Interrupted, |(_, code)| code);
    signals.iter().try_for_each(|&signal| set_or_exit(signal, code(signal), &again))
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

fn not_installed(error: std::io::Error) -> CliError {
    CliError::io(Path::new("signal handler"), &error)
}

/// Whether this process was started to outlive its terminal, as by `nohup`. Elsewhere than on Linux this is unknown, and
/// SIGHUP keeps its effect.
#[cfg(target_os = "linux")]
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // an unreadable list counts as one with all signals, which changes nothing
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(u64::MAX);
    ignored >> (SIGHUP - 1) & 1 == 1 && !faults::on(Fault::NohupNotNoticed)
}

/// Makes a signal end this process with its exit code, after the removal of the temporary file or directory for `out`,
/// and of the one for `path`, under which `out` is written.
#[cfg(unix)]
pub(super) fn remove_unfinished(path: &Path, out: &Path) -> Result<(), CliError> {
    let mut signals = Signals::new(stops().map(|(signal, _)| signal)).map_err(not_installed)?;
    let [path, out] = [path, out].map(Path::to_path_buf);
    let [is_kept, writes_on] = [Fault::UnfinishedOutputKept, Fault::WriterGoesOnAfterSignal].map(faults::on);
    std::thread::spawn(move || {
        let first = signals.forever().next();
        let exit = stops().find(|(signal, _)| first == Some(*signal)).map(|(_, exit)| exit);
        // until the process ends, so that nothing incomplete gets its name
        let _names = (!writes_on).then(lock_names);
        let removed = !is_kept && [&path, &out].map(|path| remove_temporary(path)).contains(&true);
        if removed {
            eprintln!("stopped by a signal; {} was not written", out.display());
        }
        if writes_on {
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        std::process::exit(exit.unwrap_or(Exit::Interrupted) as i32);
    });
    Ok(())
}

/// Elsewhere, a file that is open cannot be removed.
#[cfg(not(unix))]
pub(super) fn remove_unfinished(_: &Path, _: &Path) -> Result<(), CliError> {
    Ok(())
}

/// The signals that request a stop, with their exit codes.
fn stops() -> impl Iterator<Item = (i32, Exit)> {
    [(SIGINT, Exit::Interrupted), (SIGTERM, Exit::Terminated)].into_iter().chain(hangup())
}

/// The signal of a closed terminal. `None`: it keeps its effect.
#[cfg(target_os = "linux")]
fn hangup() -> Option<(i32, Exit)> {
    let stops = !hangup_is_ignored() && !faults::on(Fault::HangupEndsProcess);
    stops.then_some((SIGHUP, Exit::HungUp))
}

#[cfg(not(target_os = "linux"))]
fn hangup() -> Option<(i32, Exit)> {
    None
}

/// Whether a signal requested a stop. Long jobs check it between steps.
#[derive(Debug, Clone)]
pub(super) struct Interrupt {
    exit: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Installs handlers. The first SIGINT or SIGTERM sets a flag; the next one ends the process immediately with the
    /// exit code of its signal. SIGHUP only sets the flag, because a terminal that ends sends it once and its shell
    /// once more.
    pub(super) fn install() -> Result<Interrupt, CliError> {
        Interrupt::of(stops())
    }

    /// [`Interrupt::install`] for a command that is of no use without its terminal: SIGHUP ends it.
    pub(super) fn install_in_terminal() -> Result<Interrupt, CliError> {
        Interrupt::of(stops().filter(|(_, exit)| *exit != Exit::HungUp))
    }

    fn of(stops: impl Iterator<Item = (i32, Exit)>) -> Result<Interrupt, CliError> {
        let exit = Arc::new(AtomicUsize::new(0));
        let mut ends = Vec::new();
        for (signal, code) in stops {
            flag::register_usize(signal, exit.clone(), code as usize).map_err(not_installed)?;
            if code != Exit::HungUp {
                ends.push(signal);
            }
        }
        exit_at_second(&ends, Arc::clone(&exit)).map_err(not_installed)?;
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
                let number = match signal {
                    "int" => SIGINT,
                    "term" => SIGTERM,
                    _ => nix::libc::SIGHUP,
                };
                raise(number).unwrap();
            }
            // the second signal ends the process soon
            if plan.split(' ').filter(|signal| *signal != "hup").count() > 1 {
                std::thread::sleep(std::time::Duration::from_secs(100));
            }
            std::process::exit(interrupt.requested().map_or(0, |exit| exit as i32 + 100));
        }
        child("int", 230);
        child("term", 243);
        child("int int", 130);
        child("int term", 143);
        child("term int", 130);
        #[cfg(target_os = "linux")]
        {
            // if nohup started this test, the child goes on
            let stopped = if hangup_is_ignored() { 0 } else { 229 };
            child("hup", stopped);
            child("hup hup", stopped);
            child("hup int int", 130);
        }
    }
}
