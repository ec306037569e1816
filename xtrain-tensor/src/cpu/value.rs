//! Element types that kernels load and store: f32, or bf16 with conversion to and from f32.
use half::bf16;

use super::lanes::{LANES, Lanes};
use crate::device::recycle::Recycled;

/// An element type of activations.
pub(crate) trait Value: Recycled {
    /// Loads up to 32 elements as f32. Lanes past the end are +0.
    fn read<L: Lanes>(l: L, s: &[Self]) -> L::F;
    /// Stores the first `s.len()` lanes, at most 32, rounded to this type.
    fn write<L: Lanes>(l: L, s: &mut [Self], v: L::F);
}

impl Value for f32 {
    #[inline(always)]
    fn read<L: Lanes>(l: L, s: &[f32]) -> L::F {
        if s.len() >= LANES { l.load(s) } else { l.load_partial(s) }
    }
    #[inline(always)]
    fn write<L: Lanes>(l: L, s: &mut [f32], v: L::F) {
        l.store_partial(s, v);
    }
}

impl Value for bf16 {
    #[inline(always)]
    fn read<L: Lanes>(l: L, s: &[bf16]) -> L::F {
        l.load_bf16_partial(s)
    }
    #[inline(always)]
    fn write<L: Lanes>(l: L, s: &mut [bf16], v: L::F) {
        l.store_bf16_partial(s, v);
    }
}

/// Runs `$body` for each block of 32 among `$n` elements, with `$b` bound to its index range. The last block may be
/// shorter.
///
/// It is a macro because a closure would not be inlined into the function that enables the instruction set. The body
/// appears twice so that the length is a constant in the first loop.
macro_rules! blocks {
    ($n:expr, |$b:ident| $body:expr) => {{
        let n: usize = $n;
        let whole = n - n % $crate::cpu::lanes::LANES;
        let mut i = 0;
        while i < whole {
            let $b = i..i + $crate::cpu::lanes::LANES;
            $body;
            i += $crate::cpu::lanes::LANES;
        }
        if whole < n {
            let $b = whole..n;
            $body;
        }
    }};
}
pub(crate) use blocks;

/// Runs `$body` with the elements of `$x` (f32 or bf16) as the slice `$a`, and the type of the dtype `$out` as `$o`.
macro_rules! with_values {
    ($a:ident = $x:expr, $o:ident = $out:expr => $body:expr) => {
        $crate::cpu::value::with_values!($a = $x => match $out {
            $crate::Dtype::BF16 => {
                type $o = half::bf16;
                $body
            }
            _ => {
                type $o = f32;
                $body
            }
        })
    };
    ($a:ident = $x:expr => $body:expr) => {
        match $x.dtype() {
            $crate::Dtype::BF16 => {
                let $a = $x.data::<half::bf16>()?;
                $body
            }
            _ => {
                let $a = $x.data::<f32>()?;
                $body
            }
        }
    };
}
pub(crate) use with_values;
