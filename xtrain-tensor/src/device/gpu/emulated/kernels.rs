//! The kernels compiled for the emulator, and their signatures.
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::LazyLock;

use super::ffi::{self, FLOAT, Kernel, POINTER};
use crate::device::gpu::launch::{Arg, EmulatorBuild};
use crate::{Error, Result};

/// All kernels of one compilation, by name.
pub(super) struct Kernels {
    pub(super) by_name: HashMap<&'static str, Entry>,
}

pub(super) struct Entry {
    kernel: *const Kernel,
    parameters: &'static [u32],
}

// SAFETY: the lists of kernels are written before `main` and never again.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    pub(super) fn of(build: EmulatorBuild) -> &'static Kernels {
        // SAFETY: each returns the head of a list of static kernels, or null.
        static PLAIN: LazyLock<Kernels> = LazyLock::new(|| Kernels::list(unsafe { ffi::xtemu_plain() }));
        // SAFETY: as above.
        static CHECKED: LazyLock<Kernels> = LazyLock::new(|| Kernels::list(unsafe { ffi::xtemu_checked() }));
        match build {
            EmulatorBuild::Plain => &PLAIN,
            EmulatorBuild::Checked => &CHECKED,
        }
    }

    fn list(mut next: *const Kernel) -> Kernels {
        let mut by_name = HashMap::new();
        // SAFETY: every kernel of the list is static, and the last one's `next` is null.
        while let Some(kernel) = unsafe { next.as_ref() } {
            // SAFETY: a kernel's name is a static C string, and it has `count` parameters.
            let (name, parameters) = unsafe {
                let parameters = std::slice::from_raw_parts(kernel.parameters, kernel.count as usize);
                (CStr::from_ptr(kernel.name), parameters)
            };
            let name = name.to_str().expect("a kernel's name is an identifier");
            by_name.insert(name, Entry { kernel, parameters });
            next = kernel.next;
        }
        Kernels { by_name }
    }

    /// Finds a kernel and checks the argument list against its signature, which a CUDA driver cannot do.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no such kernel or its parameters differ.
    pub(super) fn find(&self, name: &str, args: &[Arg]) -> Result<*const Kernel> {
        let Some(entry) = self.by_name.get(name) else {
            return Err(Error::device(format!("no kernel named {name}")));
        };
        if !args.iter().map(parameter).eq(entry.parameters.iter().copied()) {
            let found: Vec<u32> = args.iter().map(parameter).collect();
            let [want, got] = [type_list(entry.parameters), type_list(&found)];
            return Err(Error::device(format!("{name}: expected arguments ({want}), found ({got})")));
        }
        Ok(entry.kernel)
    }
}

/// The parameter descriptor that matches the argument.
fn parameter(arg: &Arg) -> u32 {
    match arg {
        Arg::At(_) => POINTER | 8,
        Arg::U64(_) => 8,
        Arg::U32(_) => 4,
        Arg::F32(_) => FLOAT | 4,
    }
}

/// `pointer, f32, 4 bytes`
fn type_list(parameters: &[u32]) -> String {
    let name = |p: &u32| match (p & POINTER, p & FLOAT, p & 0xff) {
        (POINTER, _, _) => "pointer".to_string(),
        (_, FLOAT, bytes) => format!("f{}", bytes * 8),
        (_, _, bytes) => format!("{bytes} bytes"),
    };
    parameters.iter().map(name).collect::<Vec<_>>().join(", ")
}
