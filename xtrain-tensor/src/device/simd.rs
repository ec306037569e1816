//! Instruction sets of the CPU kernels. All of them give the same bits.
use std::fmt;
use std::str::FromStr;

use crate::faults::{self, Fault};

/// An instruction set, narrowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Simd {
    /// Plain Rust without intrinsics.
    Portable,
    /// NEON, available on every 64-bit ARM.
    Neon,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512F.
    Avx512,
    /// AVX-512F, with AMX tiles for bf16 products.
    Amx,
}

impl Simd {
    /// All instruction sets, narrowest first.
    pub const ALL: [Simd; 5] = [Simd::Portable, Simd::Neon, Simd::Avx2, Simd::Avx512, Simd::Amx];

    /// Returns the widest instruction set of this machine.
    pub fn detect() -> Simd {
        Simd::Amx.or_narrower()
    }

    /// Returns this set if the machine has it, otherwise the widest narrower one that it has.
    pub(crate) fn or_narrower(self) -> Simd {
        Simd::ALL.into_iter().rev().find(|s| *s <= self && s.is_available()).unwrap_or(Simd::Portable)
    }

    /// Returns the instruction sets of this machine, narrowest first.
    pub fn available() -> impl Iterator<Item = Simd> {
        Simd::ALL.into_iter().filter(|s| s.is_available())
    }

    fn is_available(self) -> bool {
        let is_widest = || !Simd::ALL.into_iter().any(|s| s > self && s.is_supported());
        let missed = faults::on(Fault::WidestSimdNotDetected) && self != Simd::Portable && is_widest();
        self.is_supported() && !missed
    }

    /// Whether the CPU and the operating system support the set.
    fn is_supported(self) -> bool {
        match self {
            Simd::Portable => true,
            Simd::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "x86_64")]
            Simd::Amx => is_x86_feature_detected!("avx512f") && super::amx::detect(),
            #[cfg(not(target_arch = "x86_64"))]
            Simd::Avx2 | Simd::Avx512 | Simd::Amx => false,
        }
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Simd::Portable => "portable",
            Simd::Neon => "neon",
            Simd::Avx2 => "avx2",
            Simd::Avx512 => "avx512",
            Simd::Amx => "amx",
        })
    }
}

impl FromStr for Simd {
    type Err = String;

    fn from_str(s: &str) -> Result<Simd, String> {
        let simd = Simd::ALL.into_iter().find(|x| x.to_string() == s);
        simd.ok_or_else(|| {
            format!("unknown instruction set {s:?}: expected portable, neon, avx2, avx512 or amx")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn every_set_has_a_name_and_a_missing_one_is_replaced_by_a_narrower_one() {
        let available: Vec<Simd> = Simd::available().collect();
        assert_eq!(available.last(), Some(&Simd::detect()));
        let vector = if cfg!(target_arch = "aarch64") { Simd::Neon } else { Simd::Portable };
        for simd in Simd::ALL {
            assert_eq!(simd.to_string().parse(), Ok(simd));
            let got = Device::cpu_with(1, simd).simd().unwrap();
            let want = *available.iter().rfind(|s| **s <= simd).unwrap();
            assert_eq!(got, want, "{simd}");
        }
        assert_eq!(Device::cpu_with(1, Simd::Neon).simd(), Some(vector));
        assert!("sse".parse::<Simd>().unwrap_err().contains("neon, avx2"));
    }
}
