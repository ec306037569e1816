//! Build script of xtrain-tensor: the GPU kernel image and the emulator. Only Rust is required. A part whose compiler
//! is missing is left out, and the reason is recorded for `xtrain doctor` and for error messages.
#[path = "build/emulator.rs"]
mod emulator;
#[path = "build/image.rs"]
mod image;
#[path = "build/nvcc.rs"]
mod nvcc;

fn main() {
    for path in ["build.rs", "build/emulator.rs", "build/image.rs", "build/nvcc.rs", "kernels"] {
        println!("cargo::rerun-if-changed=../{path}");
    }
    image::embed();
    emulator::embed();
}

/// Fails the build: a tool is present but does not work, and continuing without it would hide that.
fn fail(what: &str) -> ! {
    eprintln!("error: {what}");
    std::process::exit(1);
}
