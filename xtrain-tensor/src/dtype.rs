//! Element types.
use std::fmt;
use std::str::FromStr;

use half::bf16;

/// The element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// The upper half of a binary32.
    BF16,
    /// Unsigned 32-bit integers: ids, positions.
    U32,
    /// Signed 32-bit integers.
    I32,
}

impl Dtype {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::BF16 => 2,
            Dtype::F32 | Dtype::U32 | Dtype::I32 => 4,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::BF16 => "bf16",
            Dtype::U32 => "u32",
            Dtype::I32 => "i32",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = String;

    fn from_str(s: &str) -> Result<Dtype, String> {
        let dtype = [Dtype::F32, Dtype::BF16, Dtype::U32, Dtype::I32].into_iter().find(|d| d.name() == s);
        dtype.ok_or_else(|| format!("unknown dtype {s:?}: expected f32, bf16, u32 or i32"))
    }
}

/// A Rust type of tensor elements.
pub trait Element: Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// Its dtype.
    const DTYPE: Dtype;
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}
impl Element for bf16 {
    const DTYPE: Dtype = Dtype::BF16;
}
impl Element for u32 {
    const DTYPE: Dtype = Dtype::U32;
}
impl Element for i32 {
    const DTYPE: Dtype = Dtype::I32;
}

/// Evaluates an expression with `$t` as the element type of a dtype.
macro_rules! by_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::Dtype::F32 => {
                type $t = f32;
                $body
            }
            $crate::Dtype::BF16 => {
                type $t = half::bf16;
                $body
            }
            $crate::Dtype::U32 => {
                type $t = u32;
                $body
            }
            $crate::Dtype::I32 => {
                type $t = i32;
                $body
            }
        }
    };
}
pub(crate) use by_dtype;

/// Rounds to bf16: to nearest, ties to even, every NaN to 0x7fff.
#[inline]
pub fn to_bf16(x: f32) -> bf16 {
    // without a branch, so that loops over it are vectorized
    let b = x.to_bits();
    let rounded = b.wrapping_add(0x7fff + (b >> 16 & 1)) >> 16;
    bf16::from_bits(if x.is_nan() { 0x7fff } else { rounded as u16 })
}

/// Widens a bf16. Exact.
#[inline]
pub fn from_bf16(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// Rounds to bf16 and widens.
#[inline]
pub fn round_bf16(x: f32) -> f32 {
    from_bf16(to_bf16(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_65536_bf16_patterns_round_trip() {
        for bits in 0..=u16::MAX {
            let x = bf16::from_bits(bits);
            let back = to_bf16(from_bf16(x));
            assert!(back.to_bits() == bits || (x.is_nan() && back.to_bits() == 0x7fff), "{bits:#06x}");
        }
    }

    #[test]
    fn ties_round_to_even() {
        for (bits, want) in [(0x3f80_8000, 0x3f80), (0x3f81_8000, 0x3f82), (0x3f80_8001, 0x3f81)] {
            assert_eq!(to_bf16(f32::from_bits(bits)).to_bits(), want, "{bits:#x}");
        }
        assert_eq!(to_bf16(f32::MAX).to_bits(), 0x7f80);
        assert_eq!(to_bf16(f32::from_bits(0xff80_0001)).to_bits(), 0x7fff);
    }
}
