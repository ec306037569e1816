//! Ctrl-C in a conversation: the first stops what is under way, the second ends.
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::{CliError, Exit};

/// What signals asked for.
#[derive(Debug)]
pub(super) struct Stops {
    interrupted: Arc<AtomicBool>,
    terminated: Arc<AtomicBool>,
}

impl Stops {
    /// From now on the first SIGINT sets a flag, and one more before [`Stops::begin`] ends the process with its
    /// exit code; likewise SIGTERM.
    pub(super) fn install() -> Result<Stops, CliError> {
        let [interrupted, terminated] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let each = [(SIGINT, Exit::Interrupted, &interrupted), (SIGTERM, Exit::Terminated, &terminated)];
        for (signal, code, set) in each {
            // in this order: at the first signal the flag that the first line reads is not yet set
            flag::register_conditional_shutdown(signal, code as i32, set.clone())
                .and_then(|_| flag::register(signal, set.clone()))
                .map_err(|error| CliError::io(Path::new("signal handler"), &error))?;
        }
        Ok(Stops { interrupted, terminated })
    }

    /// Whether a reply has to stop.
    pub(super) fn asked(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst) || self.terminated.load(Ordering::SeqCst)
    }

    /// What has to end, after a reply: SIGTERM always, an interrupt where nobody types.
    pub(super) fn ended(&self, terminal: bool) -> Option<Exit> {
        if self.terminated.load(Ordering::SeqCst) {
            return Some(Exit::Terminated);
        }
        (!terminal && self.interrupted.load(Ordering::SeqCst)).then_some(Exit::Interrupted)
    }

    /// A new message: the next Ctrl-C is a first one again.
    pub(super) fn begin(&self) {
        self.interrupted.store(false, Ordering::SeqCst);
    }
}
