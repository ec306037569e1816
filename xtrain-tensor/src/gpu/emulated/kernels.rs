//! The kernels compiled for the emulator, and their signatures.
use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt;
use std::sync::LazyLock;

use super::ffi::{self, FLOAT, Kernel, POINTER};
use crate::gpu::Arg;
use crate::{Error, Result};

/// Which device memory the kernels use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// Host memory.
    Plain,
    /// The arena of the checker, with shadow memory.
    Checked,
}

/// All kernels of one compilation (plain or checked), by name.
pub(super) struct Kernels {
    pub(super) memory: Memory,
    by_name: HashMap<&'static str, Entry>,
}

struct Entry {
    kernel: *const Kernel,
    parameters: &'static [u32],
}

// SAFETY: the lists of kernels are written before `main` and never again.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

static PLAIN: LazyLock<Kernels> = LazyLock::new(|| Kernels::list(Memory::Plain));
static CHECKED: LazyLock<Kernels> = LazyLock::new(|| Kernels::list(Memory::Checked));

impl Kernels {
    /// Returns the kernels compiled for this kind of memory.
    pub(super) fn of(memory: Memory) -> &'static Kernels {
        match memory {
            Memory::Plain => &PLAIN,
            Memory::Checked => &CHECKED,
        }
    }

    fn list(memory: Memory) -> Kernels {
        let mut by_name = HashMap::new();
        let mut next = match memory {
            // SAFETY: returns the head of a list of static kernels, or null.
            Memory::Plain => unsafe { ffi::xtemu_plain() },
            // SAFETY: as above.
            Memory::Checked => unsafe { ffi::xtemu_checked() },
        };
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
        Kernels { memory, by_name }
    }

    /// The names of all kernels.
    #[cfg(test)]
    pub(super) fn names(&self) -> Vec<&'static str> {
        self.by_name.keys().copied().collect()
    }

    /// Finds a kernel and checks the argument list against its signature, which a CUDA driver cannot do.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no such kernel or its parameters differ.
    pub(super) fn find(&self, name: &str, args: &[Arg]) -> Result<*const Kernel> {
        let Some(entry) = self.by_name.get(name) else {
            return Err(Error::Device { what: format!("no kernel named {name}") });
        };
        if !args.iter().map(parameter).eq(entry.parameters.iter().copied()) {
            let found: Vec<u32> = args.iter().map(parameter).collect();
            let what = format!(
                "{name}: expected arguments ({}), found ({})",
                type_list(entry.parameters),
                type_list(&found)
            );
            return Err(Error::Device { what });
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

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kernels, {:?}", self.by_name.len(), self.memory)
    }
}
