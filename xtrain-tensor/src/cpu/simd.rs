//! Which instructions the kernels use. All of them give the same bits.
use std::fmt;
use std::str::FromStr;

/// A set of instructions, narrowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Simd {
    /// The slow walk through docs/numerics.md that all others are held to.
    Reference,
    /// Lanes in plain Rust, which the compiler turns into what the target has (NEON on ARM).
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512F.
    Avx512,
    /// AVX-512F, and AMX tiles for bf16 products.
    Amx,
}

impl Simd {
    /// Every set, narrowest first.
    pub const ALL: [Simd; 5] = [Simd::Reference, Simd::Portable, Simd::Avx2, Simd::Avx512, Simd::Amx];

    /// The widest set that this machine has.
    pub fn detect() -> Simd {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && super::gemm_bf16::amx::detect() {
                return Simd::Amx;
            }
            if is_x86_feature_detected!("avx512f") {
                return Simd::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Simd::Avx2;
            }
        }
        Simd::Portable
    }

    /// The sets that this machine can run, narrowest first.
    pub fn available() -> impl Iterator<Item = Simd> {
        Simd::ALL.into_iter().filter(|&s| s <= Simd::detect())
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Simd::Reference => "reference",
            Simd::Portable => "portable",
            Simd::Avx2 => "avx2",
            Simd::Avx512 => "avx512",
            Simd::Amx => "amx",
        })
    }
}

impl FromStr for Simd {
    type Err = String;

    fn from_str(s: &str) -> Result<Simd, String> {
        let known = Simd::ALL.into_iter().find(|x| x.to_string() == s);
        known.ok_or_else(|| {
            format!("unknown instruction set {s:?}: expected reference, portable, avx2, avx512 or amx")
        })
    }
}
