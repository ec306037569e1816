//! The command `xtrain`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    xtrain::cli::main()
}
