//! Macros that print to standard error, in place of the standard ones, which panic if nothing reads it, as in
//! `xtrain train 2>&1 | head`.

/// Prints to standard error. A text that cannot be written is lost.
macro_rules! eprint {
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!($($text)*));
    }};
}

/// [`eprint`] with a line break.
macro_rules! eprintln {
    ($($text:tt)*) => {
        eprint!("{}\n", format_args!($($text)*))
    };
}
