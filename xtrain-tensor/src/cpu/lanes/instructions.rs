//! A macro for the intrinsics of an instruction set.

/// Implements functions of [`Reg`](super::Reg) as expressions over the intrinsics of an instruction set. Those in
/// `unsafe` access memory.
macro_rules! instructions {
    (
        unsafe { $($access:ident($($access_arg:ident: $at:ty),+) $(-> $access_out:ty)? = $access_value:expr;)* }
        $($name:ident($($arg:ident: $t:ty),+) $(-> $out:ty)? = $value:expr;)*
    ) => {
        $(#[inline(always)]
        fn $name(_: Self, $($arg: $t),+) $(-> $out)? {
            // SAFETY: the token proves that the machine has the instructions.
            unsafe { $value }
        })*
        $(#[inline(always)]
        unsafe fn $access(_: Self, $($access_arg: $at),+) $(-> $access_out)? {
            // SAFETY: the token proves that the machine has the instructions; the elements are accessible by contract.
            unsafe { $access_value }
        })*
    };
}
pub(super) use instructions;
