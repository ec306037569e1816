//! Builds what xtrain-tensor embeds: the kernels for GPUs and the kernels for the emulator. Needs nothing but Rust:
//! what a missing compiler would have built is left out, and the reason is kept, for `xtrain doctor` and for errors.
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

/// Ends the build: something that is there does not work, and going on without it would hide that.
fn refuse(what: &str) -> ! {
    eprintln!("error: {what}");
    std::process::exit(1);
}
