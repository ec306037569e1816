//! The instruction sets that a gate compares: those of the backend, checked against the CPU.
use std::cell::Cell;

use crate::Simd;

/// The instruction sets of this machine, narrowest first. The first call of each test prints them.
///
/// # Panics
/// As [`checked_simds`].
pub fn simds() -> Vec<Simd> {
    thread_local! {
        static PRINTED: Cell<bool> = const { Cell::new(false) };
    }
    let all = checked_simds().unwrap_or_else(|error| panic!("{error}"));
    if !PRINTED.replace(true) {
        println!("instruction sets: {}", names(&all));
    }
    all
}

/// The instruction sets that the backend detects on this machine, narrowest first.
///
/// # Errors
/// If one is missing that the CPU supports according to the operating system. A gate would compare fewer sets then.
pub fn checked_simds() -> Result<Vec<Simd>, String> {
    let (found, supported) = (Simd::available().collect::<Vec<_>>(), supported());
    match supported.iter().find(|simd| !found.contains(simd)) {
        None => Ok(found),
        Some(missing) => Err(format!(
            "gate instruction sets, seed 0: the CPU supports {} (of {}), detected were {}",
            missing,
            names(&supported),
            names(&found)
        )),
    }
}

fn names(simds: &[Simd]) -> String {
    simds.iter().map(Simd::to_string).collect::<Vec<_>>().join(", ")
}

/// The instruction sets of the CPU from the flags that the kernel lists. The backend reads CPUID instead.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn supported() -> Vec<Simd> {
    use std::sync::OnceLock;
    static FLAGS: OnceLock<Vec<String>> = OnceLock::new();
    let flags = FLAGS.get_or_init(|| {
        let info = std::fs::read_to_string("/proc/cpuinfo").expect("/proc/cpuinfo");
        let line = info.lines().find_map(|line| line.strip_prefix("flags")).expect("a line of flags");
        line.split_whitespace().map(str::to_string).collect()
    });
    let needs: [(Simd, &[&str]); 5] = [
        (Simd::Portable, &[]),
        (Simd::Avx2, &["avx2", "fma"]),
        (Simd::Avx512, &["avx512f"]),
        (Simd::Avx512Bf16, &["avx512f", "avx512_bf16"]),
        (Simd::Amx, &["avx512f", "amx_tile", "amx_bf16"]),
    ];
    let has = |name: &&str| flags.iter().any(|flag| flag == name);
    needs.into_iter().filter(|(_, needs)| needs.iter().all(has)).map(|(simd, _)| simd).collect()
}

/// The instruction sets of the CPU from the standard library, which does not report AMX.
#[cfg(all(not(target_os = "linux"), target_arch = "x86_64"))]
fn supported() -> Vec<Simd> {
    let avx2 = std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma");
    let avx512 = std::is_x86_feature_detected!("avx512f");
    let bf16 = avx512 && std::is_x86_feature_detected!("avx512bf16");
    let all = [(Simd::Portable, true), (Simd::Avx2, avx2), (Simd::Avx512, avx512), (Simd::Avx512Bf16, bf16)];
    all.into_iter().filter(|(_, has)| *has).map(|(simd, _)| simd).collect()
}

/// Every 64-bit ARM has NEON.
#[cfg(not(target_arch = "x86_64"))]
fn supported() -> Vec<Simd> {
    if cfg!(target_arch = "aarch64") { vec![Simd::Portable, Simd::Neon] } else { vec![Simd::Portable] }
}
