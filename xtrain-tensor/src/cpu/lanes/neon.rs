//! Lanes in eight NEON registers.
use std::arch::aarch64::*;
use std::arch::asm;

use half::bf16;

use super::instructions::instructions;
use super::reg::Reg;
use crate::fma::ScalarFma;

type R = float32x4_t;

const _: () = assert!(cfg!(all(target_feature = "neon", target_endian = "little")), "a common 64-bit ARM");

/// NEON. Every target for which this module is compiled has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Neon;

/// Adds the rounding increment of f32 to bf16. The bf16 value is in the upper 16 bits.
#[inline(always)]
fn rounded(v: R) -> uint32x4_t {
    // SAFETY: the target has NEON.
    unsafe {
        let b = vreinterpretq_u32_f32(v);
        let odd = vandq_u32(vshrq_n_u32::<16>(b), vdupq_n_u32(1));
        let sum = vaddq_u32(b, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        vbslq_u32(vceqq_f32(v, v), sum, vdupq_n_u32(0x7fff_0000))
    }
}

impl ScalarFma for Neon {}

impl Reg for Neon {
    type R = R;
    type M = uint32x4_t;
    type F = [R; 8];
    const WIDTH: usize = 4;
    const TILE_ROWS: usize = 6;
    const WIDE_ROWS: usize = 6;

    instructions! {
        unsafe {
            load(p: *const f32) -> R = vld1q_f32(p);
            load_first(p: *const f32, n: usize) -> R = {
                let mut out = [0.0; 4];
                for (i, o) in out.iter_mut().enumerate().take(n) {
                    *o = p.add(i).read();
                }
                vld1q_f32(out.as_ptr())
            };
            store(p: *mut f32, v: R) = vst1q_f32(p, v);
            store_first(p: *mut f32, n: usize, v: R) = {
                let mut lanes = [0.0; 4];
                vst1q_f32(lanes.as_mut_ptr(), v);
                for (i, x) in lanes.into_iter().enumerate().take(n) {
                    p.add(i).write(x);
                }
            };
            load_bf16(p: *const bf16) -> R = vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vld1_u16(p.cast()))));
            store_bf16(p: *mut bf16, v: R) = vst1_u16(p.cast(), vshrn_n_u32::<16>(rounded(v)));
            load_i8(p: *const i8) -> R = {
                let w = vcreate_s8(u64::from(p.cast::<u32>().read_unaligned()));
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(w))))
            };
            load_pairs(p: *const bf16) -> (R, R) = {
                let w = vreinterpretq_u32_u16(vld1q_u16(p.cast()));
                let odd = vandq_u32(w, vdupq_n_u32(0xffff_0000));
                (vreinterpretq_f32_u32(vshlq_n_u32::<16>(w)), vreinterpretq_f32_u32(odd))
            };
        }
        splat(x: f32) -> R = vdupq_n_f32(x);
        fma(a: R, b: R, c: R) -> R = vfmaq_f32(c, a, b);
        add(a: R, b: R) -> R = vaddq_f32(a, b);
        sub(a: R, b: R) -> R = vsubq_f32(a, b);
        mul(a: R, b: R) -> R = vmulq_f32(a, b);
        div(a: R, b: R) -> R = vdivq_f32(a, b);
        sqrt(a: R) -> R = vsqrtq_f32(a);
        // fmax orders zeros by sign, and fmaxnm also drops a NaN in a
        max(a: R, b: R) -> R = vbslq_f32(vcgtq_f32(b, a), b, a);
        neg(a: R) -> R = vnegq_f32(a);
        scale(p: R, t: R) -> R = vreinterpretq_f32_u32(vaddq_u32(
            vreinterpretq_u32_f32(p), vshlq_n_u32::<23>(vreinterpretq_u32_f32(t))));
        nibble(bits: R) -> R = vcvtq_f32_u32(vandq_u32(vreinterpretq_u32_f32(bits), vdupq_n_u32(0x0f)));
        centered_nibble(bits: R) -> R = {
            let code = vandq_u32(vreinterpretq_u32_f32(bits), vdupq_n_u32(0x0f));
            vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(code), vdupq_n_s32(8)))
        };
        next_nibble(bits: R) -> R = vreinterpretq_f32_u32(vshrq_n_u32::<4>(vreinterpretq_u32_f32(bits)));
        lt(a: R, b: R) -> uint32x4_t = vcltq_f32(a, b);
        is_nan(a: R) -> uint32x4_t = vmvnq_u32(vceqq_f32(a, a));
        select(m: uint32x4_t, yes: R, no: R) -> R = vbslq_f32(m, yes, no);
        round_bf16(a: R) -> R = vreinterpretq_f32_u32(vandq_u32(rounded(a), vdupq_n_u32(0xffff_0000)));
        zip(a: R, b: R) -> (R, R) = (vzip1q_f32(a, b), vzip2q_f32(a, b));
        sum(v: R) -> f32 = vpadds_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v)));
        maximum(v: R) -> f32 = vmaxnmvq_f32(v);
        least_size(least: R, v: R) -> R = {
            let twice = vshlq_n_u32::<1>(vreinterpretq_u32_f32(v));
            let size = vsubq_u32(twice, vdupq_n_u32(1));
            vreinterpretq_f32_u32(vminq_u32(vreinterpretq_u32_f32(least), size))
        };
        // doubling the bits drops the sign: 1 to 2^24 are the denormals and 2^-126
        any_tiny(v: R) -> bool = {
            let twice = vshlq_n_u32::<1>(vreinterpretq_u32_f32(v));
            vminvq_u32(vsubq_u32(twice, vdupq_n_u32(1))) < 1 << 24
        };
        // a hint, without effect if the address is not readable
        prefetch_l1(p: *const f32) =
            asm!("prfm pldl1keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags));
        prefetch_l2(p: *const f32) =
            asm!("prfm pldl2keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags));
    }

    #[inline(always)]
    fn fill(self, r: R) -> [R; 8] {
        [r; 8]
    }
}
