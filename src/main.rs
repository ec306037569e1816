//! The command `xtrain`.
#![forbid(unsafe_code)]

/// Allocates on 2 MiB huge pages, which makes a training step about 10 % faster.
#[global_allocator]
static ALLOCATOR: xtrain::tensor::HugePages = xtrain::tensor::HugePages::new();

fn main() -> std::process::ExitCode {
    xtrain::cli::main()
}
