//! Gate: matrix products, all of which use `wgmma` where TMA can read the operands, are bit-identical to the reference
//! with the products of `mma.sync`, on the plain and on the checked emulator.
#![cfg(xtrain_emu)]
use super::gpu::gate;
use super::table::TABLE;
use crate::device::gpu::{Emulation, EmulatorBuild, LaunchOptions, WgmmaUse};
use crate::{Device, Gpu, ThreadSchedule};

const PRODUCTS: [&str; 10] = [
    "linear",
    "linear_add",
    "linear_add_norm",
    "linears",
    "swiglu",
    "swiglu_kept",
    "linear_backward_input",
    "linear_backward_rounded",
    "linear_backward_swiglu",
    "linear_backward_weight",
];
/// Without `linear_dx_swiglu_bf16_wgmma`: TMA cannot read the rows of its cases. gpu/linear/tests/wgmma_gradients.rs
/// compares it.
const KERNELS: [&str; 5] = [
    "linear_bf16_wgmma",
    "linears_bf16_wgmma",
    "swiglu_bf16_wgmma",
    "linear_dx_bf16_wgmma",
    "linear_dw_bf16_wgmma",
];

/// Runs the cases of the products. Returns the device.
fn run(build: EmulatorBuild) -> Gpu {
    let options = LaunchOptions { sync: true, wgmma: WgmmaUse::EveryProduct, ..LaunchOptions::default() };
    let gpu = Gpu::emulated_with(Emulation::new(ThreadSchedule::Priorities(11), build), options).unwrap();
    for entry in TABLE.iter().filter(|entry| PRODUCTS.contains(&entry.name)) {
        let cases = (entry.cases)();
        let counts =
            gate(&cases, &Device::Gpu(gpu.clone())).unwrap_or_else(|difference| panic!("{difference}"));
        println!("{:24} {counts}, {build:?}", entry.name);
    }
    gpu
}

#[test]
fn products_by_wgmma_have_the_bits_of_the_reference() {
    let launched = run(EmulatorBuild::Plain).launched_kernels();
    println!("{launched:?}");
    assert!(KERNELS.iter().all(|kernel| launched.contains_key(kernel)), "{launched:?}");
}

#[test]
fn products_by_wgmma_have_no_invalid_access_and_no_race() {
    run(EmulatorBuild::Checked);
}
