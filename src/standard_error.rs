//! Macros that print to standard error, in place of the standard ones, which panic if nothing reads it, as in
//! `xtrain train 2>&1 | head`. Of several processes, only the first one prints.
use std::sync::atomic::{AtomicBool, Ordering};

static SILENT: AtomicBool = AtomicBool::new(false);

/// From now on, this process prints nothing.
#[cfg(feature = "mpi")]
pub(crate) fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Whether another process prints.
pub(crate) fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// Prints to standard error. A text that cannot be written is lost.
macro_rules! eprint {
    ($($text:tt)*) => {{
        if !$crate::standard_error::is_silent() {
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!($($text)*));
        }
    }};
}

/// [`eprint`] with a line break.
macro_rules! eprintln {
    ($($text:tt)*) => {
        eprint!("{}\n", format_args!($($text)*))
    };
}
