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
    /// AVX-512F, with `vdpbf16ps` (AVX-512 BF16) for bf16 products.
    Avx512Bf16,
    /// AVX-512F, with AMX tiles for bf16 products.
    Amx,
}

impl Simd {
    /// All instruction sets, narrowest first.
    pub const ALL: [Simd; 6] =
        [Simd::Portable, Simd::Neon, Simd::Avx2, Simd::Avx512, Simd::Avx512Bf16, Simd::Amx];

    /// Returns the widest instruction set of this machine that is not slower than a narrower one.
    pub fn detect() -> Simd {
        Simd::available().filter(|s| s.is_fast()).last().unwrap_or(Simd::Portable)
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

    /// Whether this machine runs the instructions at full rate. `vdpbf16ps` runs at the rate of fma on Zen 4 and Zen 5
    /// of AMD, and at a sixth of it on a Xeon: docs/rejected.md.
    fn is_fast(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512Bf16 => super::vendor::is_amd(),
            _ => true,
        }
    }

    /// Whether the CPU and the operating system support the set.
    pub(crate) fn is_supported(self) -> bool {
        match self {
            Simd::Portable => true,
            Simd::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512Bf16 => is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "x86_64")]
            Simd::Amx => is_x86_feature_detected!("avx512f") && super::amx::detect(),
            #[cfg(not(target_arch = "x86_64"))]
            Simd::Avx2 | Simd::Avx512 | Simd::Avx512Bf16 | Simd::Amx => false,
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
            Simd::Avx512Bf16 => "avx512bf16",
            Simd::Amx => "amx",
        })
    }
}

impl FromStr for Simd {
    type Err = String;

    fn from_str(s: &str) -> Result<Simd, String> {
        let simd = Simd::ALL.into_iter().find(|x| x.to_string() == s);
        simd.ok_or_else(|| {
            format!("unknown instruction set {s:?}: expected portable, neon, avx2, avx512, avx512bf16 or amx")
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
        assert_eq!(available.iter().rfind(|s| s.is_fast()), Some(&Simd::detect()));
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
