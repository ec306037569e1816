//! Gate: a tensor core has the bits of its model and the properties that kernels rely on: its operands can be swapped,
//! a step of zeros changes nothing except a zero's sign, and wgmma has the bits of mma.sync. A difference is described
//! by its operands and by the models that fit.
#![cfg(xtrain_emu)]
use half::bf16;

use crate::device::gpu::{Emulation, EmulatorBuild, KINDS, Operands, SIDE};
use crate::gpu::{Gpu, Grid, args};
use crate::tensor_core::{Model, TensorCore};
use crate::testing::{compare_bits, cuda, skip_emulated};
use crate::{Device, Error, ThreadSchedule};

impl Operands {
    /// The operands of step `step` of result `i`.
    fn step(&self, i: usize, step: usize) -> [[f32; 16]; 2] {
        let (product, row, column) = (i / (SIDE * SIDE), i / SIDE % SIDE, i % SIDE);
        let values = |x: &[u16], line: usize| {
            let at = (product * SIDE + line) * SIDE + step * 16;
            std::array::from_fn(|k| bf16::from_bits(x[at + k]).to_f32())
        };
        [values(&self.a, row), values(&self.b, column)]
    }

    /// Result `i` after `steps` steps of a model.
    fn after(&self, model: Model, i: usize, steps: usize) -> f32 {
        (0..steps).fold(self.c[i], |c, s| {
            let [a, b] = self.step(i, s);
            model.step(&a, &b, c)
        })
    }

    /// The result of a model.
    fn by_model(&self, model: Model) -> Vec<f32> {
        (0..self.c.len()).map(|i| self.after(model, i, 4)).collect()
    }

    /// The first `steps` steps, the others zero.
    fn first(&self, steps: usize) -> Operands {
        let keep = |x: &[u16]| {
            x.iter().enumerate().map(|(i, &x)| if i % SIDE < steps * 16 { x } else { 0 }).collect()
        };
        Operands { a: keep(&self.a), b: keep(&self.b), ..self.clone() }
    }

    /// The same sums with steps of zeros before, between and after the two steps of 16 that are kept.
    fn spread(&self) -> [Operands; 2] {
        let step = |k: usize| k / 16;
        let keep = |x: &[u16], from: [Option<usize>; 4]| -> Vec<u16> {
            let at = |i: usize| from[step(i % SIDE)].map_or(0, |s| x[i / SIDE * SIDE + s * 16 + i % 16]);
            (0..x.len()).map(at).collect()
        };
        [[Some(0), Some(1), None, None], [None, Some(0), None, Some(1)]].map(|from| Operands {
            a: keep(&self.a, from),
            b: keep(&self.b, from),
            ..self.clone()
        })
    }

    /// Compares the result of a kernel with the model `name`. A difference comes with its operands, the results of all
    /// models, and the number of values in which each model differs from the device.
    fn compare(
        &self,
        gpu: &Gpu,
        kernel: &'static str,
        (name, model): (&str, Model),
    ) -> Result<usize, String> {
        let failed = |error: Error| {
            format!("gate tensor_core: {kernel} on {}, seed {}: {error}", gpu.name(), self.seed)
        };
        let got = self.by(gpu, kernel).map_err(failed)?;
        let Some(i) = first_difference(&got, &self.by_model(model)) else { return Ok(got.len()) };
        let mut steps = 4;
        while steps > 1 {
            let got = self.first(steps - 1).by(gpu, kernel).map_err(failed)?[i];
            if same(got, self.after(model, i, steps - 1)) {
                break;
            }
            steps -= 1;
        }
        let got_now = self.first(steps).by(gpu, kernel).map_err(failed)?[i];
        let [a, b] = self.step(i, steps - 1);
        let c = self.after(model, i, steps - 1);
        let kind = KINDS[i / (SIDE * SIDE) % KINDS.len()];
        let hex = |x: &[f32; 16]| x.map(|x| format!("{:04x}", x.to_bits() >> 16)).join(" ");
        let mut text = format!(
            "gate tensor_core: {kernel} on {}, seed {}: differs from {name}; first in result {i} ({kind}), step {steps} of 4\n\
             a = {}\nb = {}\nc = {}\ngot {}\n",
            gpu.name(),
            self.seed,
            hex(&a),
            hex(&b),
            word(c),
            word(got_now)
        );
        for (name, model) in Model::KNOWN {
            let want = self.by_model(model);
            let differing = got.iter().zip(&want).filter(|(got, want)| !same(**got, **want)).count();
            let verdict = if differing == 0 {
                "fits".into()
            } else {
                format!("{differing} of {} values differ", got.len())
            };
            text += &format!("{name}: {}; {verdict}\n", word(model.step(&a, &b, c)));
        }
        Err(text)
    }
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

fn first_difference(got: &[f32], want: &[f32]) -> Option<usize> {
    got.iter().zip(want).position(|(got, want)| !same(*got, *want))
}

/// `3f800000 (1e0)`
fn word(x: f32) -> String {
    format!("{:08x} ({x:e})", x.to_bits())
}

/// An emulated GPU.
fn emulated(schedule: ThreadSchedule, tensor_core: TensorCore, wgmma: bool) -> Device {
    let hopper = Emulation::new(schedule, EmulatorBuild::Plain);
    Device::emulating(Emulation { tensor_core, wgmma, ..hopper }).unwrap()
}

/// Every architecture on the emulator, Hopper also with an image without wgmma, and the GPU of this machine. With
/// `XTRAIN_SKIP_EMU=1` only the latter.
fn devices(schedule: ThreadSchedule) -> Vec<Device> {
    let cores = [(TensorCore::Hopper, true), (TensorCore::Hopper, false), (TensorCore::Ampere, false)];
    let cores = if skip_emulated() { &[][..] } else { &cores };
    cores.iter().map(|&(core, wgmma)| emulated(schedule, core, wgmma)).chain(cuda()).collect()
}

fn on(device: &Device) -> &Gpu {
    match device {
        Device::Gpu(gpu) => gpu,
        Device::Reference(_) | Device::Cpu(_) => panic!("expected a GPU, found {device}"),
    }
}

/// The model of the device, or the first one that fits if none is known.
fn model_of(gpu: &Gpu, x: &Operands) -> (&'static str, Model) {
    let model = gpu.tensor_core().map(TensorCore::model);
    let fits = |(_, known): &(&str, Model)| match model {
        Some(model) => model == *known,
        None => x.compare(gpu, "tensor_core_mma", ("", *known)).is_ok(),
    };
    Model::KNOWN.into_iter().find(fits).unwrap_or(Model::KNOWN[1])
}

/// Compares products in both orders of their operands with the model of each device. Returns the number of values.
pub(super) fn products() -> Result<usize, String> {
    let mut compared = 0;
    for device in devices(ThreadSchedule::Random(3)) {
        let (gpu, x) = (on(&device), Operands::at_random(1));
        let known = model_of(gpu, &x);
        for kernel in ["tensor_core_mma", "tensor_core_swapped"] {
            let n = x.compare(gpu, kernel, known)?;
            println!("{kernel} on {}: {n} values, 0 differ from {}", gpu.name(), known.0);
            compared += n;
        }
    }
    Ok(compared)
}

/// Compares wgmma with mma.sync wherever the kernel image has it. Returns the number of values.
pub(super) fn wgmma_of_images() -> Result<usize, String> {
    let (mut compared, x) = (0, Operands::at_random(3));
    for device in devices(ThreadSchedule::Random(4)) {
        let gpu = on(&device);
        let failed =
            |what: String| format!("gate tensor_core: wgmma on {}, seed {}: {what}", gpu.name(), x.seed);
        if !gpu.has_wgmma().map_err(|e| failed(e.to_string()))? {
            println!("wgmma on {}: not in this kernel image", gpu.name());
            continue;
        }
        let run = |kernel| x.by(gpu, kernel).map_err(|e| failed(e.to_string()));
        compare_bits(&run("tensor_core_wgmma")?, &run("tensor_core_mma")?).map_err(failed)?;
        println!("wgmma on {}: {} values, 0 differ from mma.sync", gpu.name(), x.c.len());
        compared += x.c.len();
    }
    Ok(compared)
}

#[test]
fn a_product_equals_the_model_of_its_device_in_both_orders_of_its_operands() {
    products().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_step_of_zeros_changes_no_bit() {
    for device in devices(ThreadSchedule::Forward) {
        let (gpu, [first, spread]) = (on(&device), Operands::at_random(2).spread());
        let [want, got] = [first, spread].map(|x| x.by(gpu, "tensor_core_mma").unwrap());
        compare_bits(&got, &want).unwrap_or_else(|e| panic!("steps of zeros on {}: {e}", gpu.name()));
        println!("steps of zeros on {}: {} values, 0 differ", gpu.name(), want.len());
    }
}

#[test]
fn wgmma_has_the_bits_of_mma_sync() {
    let compared = wgmma_of_images().unwrap_or_else(|e| panic!("{e}"));
    // the image of a device may not have wgmma; one of the emulated ones has
    assert!(compared > 0 || skip_emulated());
}

#[test]
fn an_image_without_wgmma_says_so_and_its_kernel_traps() {
    let device = emulated(ThreadSchedule::Forward, TensorCore::Hopper, false);
    assert!(!on(&device).has_wgmma().unwrap());
    let error = Operands::at_random(3).by(on(&device), "tensor_core_wgmma").unwrap_err().to_string();
    assert!(error.contains("trap: wgmma in an image without machine code for sm_90a"), "{error}");
}

#[test]
fn a_device_that_differs_from_a_model_is_described_with_its_operands_and_the_model_that_fits() {
    let device = emulated(ThreadSchedule::Forward, TensorCore::Ampere, false);
    let text = Operands::at_random(1).compare(on(&device), "tensor_core_mma", Model::KNOWN[1]).unwrap_err();
    println!("{text}");
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).expect(start);
    assert!(line("gate tensor_core").contains("seed 1: differs from Hopper; first in result "), "{text}");
    assert!([line("a = "), line("b = ")].iter().all(|x| x.split(' ').count() == 18), "{text}");
    assert!(line("Ampere: ").ends_with("; fits") && line("Hopper: ").ends_with("values differ"), "{text}");
    assert_eq!(
        line("got ").split_once(' ').unwrap().1,
        line("Ampere: ").split_once([':', ';']).unwrap().1.trim().trim_end_matches("; fits")
    );
    // every pair of models differs on these operands
    let results = Model::KNOWN.map(|(_, model)| Operands::at_random(1).by_model(model));
    for (i, a) in results.iter().enumerate() {
        results[..i].iter().for_each(|b| assert!(first_difference(a, b).is_some()));
    }
}

#[test]
fn the_kernels_of_the_emulator_wait_for_the_previous_kernel() {
    let device = Device::emulated(ThreadSchedule::Forward).unwrap();
    let Device::Gpu(gpu) = &device else { panic!("expected a GPU, found {device}") };
    let has = gpu.zeros(4).unwrap();
    // SAFETY: the kernel writes one u32.
    unsafe {
        gpu.launch("image_has_dependent_launch", Grid::blocks([1, 1, 1], 1), args![has.arg()]).unwrap();
    }
    assert_eq!(gpu.download::<u32>(&has).unwrap(), [1]);
}
