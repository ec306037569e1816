//! The kernels that were compiled for the emulator, and what they are called with.
use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt;
use std::sync::LazyLock;

use super::ffi::{self, FLOAT, Kernel, POINTER};
use crate::device::gpu::Arg;
use crate::{Error, Result};

/// Whose memory kernels see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// The host's.
    Plain,
    /// That of the checker, with its shadow.
    Checked,
}

/// All kernels of one compilation, by name.
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
    /// The kernels compiled for that memory.
    pub(super) fn of(memory: Memory) -> &'static Kernels {
        match memory {
            Memory::Plain => &PLAIN,
            Memory::Checked => &CHECKED,
        }
    }

    fn list(memory: Memory) -> Kernels {
        let mut by_name = HashMap::new();
        let mut next = match memory {
            // SAFETY: it returns the first of a list of static kernels, or null.
            Memory::Plain => unsafe { ffi::xtemu_plain() },
            // SAFETY: as above.
            Memory::Checked => unsafe { ffi::xtemu_checked() },
        };
        // SAFETY: every kernel of the list is static; the last one's `next` is null.
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

    /// All names.
    #[cfg(test)]
    pub(super) fn names(&self) -> Vec<&'static str> {
        self.by_name.keys().copied().collect()
    }

    /// The kernel of that name, for those arguments.
    ///
    /// # Errors
    /// There is none, or it takes others; a driver could not tell.
    pub(super) fn find(&self, name: &str, args: &[Arg]) -> Result<*const Kernel> {
        let Some(entry) = self.by_name.get(name) else {
            return Err(Error::Device { what: format!("no kernel named {name}") });
        };
        if !args.iter().map(parameter).eq(entry.parameters.iter().copied()) {
            let got: Vec<u32> = args.iter().map(parameter).collect();
            let what = format!("{name}: wants ({}), got ({})", words(entry.parameters), words(&got));
            return Err(Error::Device { what });
        }
        Ok(entry.kernel)
    }
}

/// A parameter that takes the argument, as kernels describe theirs.
fn parameter(arg: &Arg) -> u32 {
    match arg {
        Arg::At(_) => POINTER | 8,
        Arg::U64(_) => 8,
        Arg::U32(_) => 4,
        Arg::F32(_) => FLOAT | 4,
    }
}

/// `pointer, f32, 4 bytes`
fn words(parameters: &[u32]) -> String {
    let word = |p: &u32| match (p & POINTER, p & FLOAT, p & 0xff) {
        (POINTER, _, _) => "pointer".to_string(),
        (_, FLOAT, bytes) => format!("f{}", bytes * 8),
        (_, _, bytes) => format!("{bytes} bytes"),
    };
    parameters.iter().map(word).collect::<Vec<_>>().join(", ")
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kernels, {:?}", self.by_name.len(), self.memory)
    }
}
