//! The vendor of the CPU.
use std::arch::x86_64::__cpuid;
use std::sync::OnceLock;

/// Whether the CPU is from AMD.
pub(crate) fn is_amd() -> bool {
    static AMD: OnceLock<bool> = OnceLock::new();
    // under a hypervisor cpuid takes microseconds
    *AMD.get_or_init(|| {
        let leaf = __cpuid(0);
        let name = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
        name.as_flattened() == b"AuthenticAMD"
    })
}
