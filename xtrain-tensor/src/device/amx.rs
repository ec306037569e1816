//! Detection of AMX.
#[cfg(target_os = "linux")]
use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Whether the machine has AMX bf16 tiles and the operating system lets this process use them.
pub(crate) fn detect() -> bool {
    static DETECTED: OnceLock<bool> = OnceLock::new();
    *DETECTED.get_or_init(|| {
        const BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
        __cpuid_count(0, 0).eax >= 7
            && __cpuid_count(7, 0).edx & BF16_AND_TILE == BF16_AND_TILE
            && request_permission()
    })
}

/// Requests permission from Linux to use tile registers: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA).
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    let result: i64;
    // SAFETY: a system call with two integers; it writes no memory, and its clobbers are declared.
    unsafe {
        asm!("syscall", inlateout("rax") 158i64 => result, in("rdi") 0x1023u64, in("rsi") 18u64,
            out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}
