//! SIGINT and SIGTERM in a conversation: the first Ctrl-C stops the reply, the second one exits.
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::exit::{CliError, Exit};
use crate::cli::interrupt::set_or_exit;

/// The signals that arrived.
#[derive(Debug)]
pub(super) struct ChatSignals {
    interrupted: Arc<AtomicBool>,
    terminated: Arc<AtomicBool>,
}

impl ChatSignals {
    /// Installs handlers. The first SIGINT sets a flag; another one before [`ChatSignals::clear_interrupt`] ends the
    /// process with its exit code. The same applies to SIGTERM, whose flag is never cleared.
    pub(super) fn install() -> Result<ChatSignals, CliError> {
        let [interrupted, terminated] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let signals = [(SIGINT, Exit::Interrupted, &interrupted), (SIGTERM, Exit::Terminated, &terminated)];
        for (signal, code, flag) in signals {
            set_or_exit(signal, code, flag)
                .map_err(|error| CliError::io(Path::new("signal handler"), &error))?;
        }
        Ok(ChatSignals { interrupted, terminated })
    }

    /// Whether a reply must stop.
    pub(super) fn stop_requested(&self) -> bool {
        self.interrupted() || self.terminated.load(Ordering::SeqCst)
    }

    /// Whether Ctrl-C was pressed since the last message.
    pub(super) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }

    /// The exit code if the conversation must end: after SIGTERM, or after SIGINT without a terminal.
    pub(super) fn exit(&self, terminal: bool) -> Option<Exit> {
        if self.terminated.load(Ordering::SeqCst) {
            return Some(Exit::Terminated);
        }
        (!terminal && self.interrupted()).then_some(Exit::Interrupted)
    }

    /// A new message was entered: the next Ctrl-C counts as the first one.
    pub(super) fn clear_interrupt(&self) {
        self.interrupted.store(false, Ordering::SeqCst);
    }
}
