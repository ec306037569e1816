//! The left operand of bf16 products: rounded at its entry, denormals as zeros, blocks of 32.
use std::ops::Range;

use half::bf16;

use super::super::scratch::{Buffer, Scratch, scratch};
use super::super::{Pool, Simd};
use super::{BLOCK, NO_LOW, Operand, widen};
use crate::Cpu;

/// Rows `[rows][ceil(depth / 32)][32]`, padded with +0.
#[derive(Debug)]
pub(crate) struct Left {
    pub(super) blocks: Blocks,
    pub(super) rows: usize,
    pub(super) depth: usize,
    /// Smallest exponent field of each row's non-zero elements.
    low: Vec<u8>,
}

/// The blocks of all rows, as the path wants them.
#[derive(Debug)]
pub(super) enum Blocks {
    /// For AMX.
    Narrow(Buffer<Narrow>),
    /// For lanes: widened, since they broadcast one element at a time.
    Wide(Buffer<Wide>),
}

/// A block as bf16.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Narrow(pub(super) [bf16; BLOCK]);
scratch!(Narrow, Narrow([bf16::ZERO; BLOCK]));

/// A block as f32.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Wide(pub(super) [f32; BLOCK]);
scratch!(Wide, Wide([0.0; BLOCK]));

impl Left {
    /// The matrix `a` `[rows, depth]`, row-major.
    pub(crate) fn new<T: Operand>(cpu: &Cpu, a: &[T], shape: [usize; 2]) -> Left {
        let [rows, depth] = shape;
        assert_eq!(a.len(), rows * depth, "a holds rows * depth values");
        Left::pack(cpu, shape, |row, block, to| {
            let from = &a[row * depth + block * BLOCK..];
            for (to, x) in to.iter_mut().zip(&from[..BLOCK.min(depth - block * BLOCK)]) {
                *to = x.enter();
            }
        })
    }

    /// The transpose of rows `rows[k]` of a row-major dy `[.., out]`: `[out, rows.len()]`. A row number
    /// past dy's end is a row of +0.
    pub(super) fn transposed<T: Operand>(
        cpu: &Cpu,
        dy: &[T],
        [out, depth]: [usize; 2],
        rows: &[usize],
    ) -> Left {
        Left::pack(cpu, [out, depth], |o, block, to| {
            for (to, &row) in to.iter_mut().zip(&rows[block * BLOCK..]) {
                let x = dy.get(row.saturating_mul(out).saturating_add(o));
                *to = x.map_or(bf16::ZERO, |x| x.enter());
            }
        })
    }

    /// `fill(row, block, to)` writes a block over zeros.
    fn pack(
        cpu: &Cpu,
        [rows, depth]: [usize; 2],
        fill: impl Fn(usize, usize, &mut [bf16; BLOCK]) + Sync,
    ) -> Left {
        let pool = &cpu.pool;
        let size = [rows, depth.div_ceil(BLOCK)];
        let (blocks, low) = if cpu.simd == Simd::Amx {
            (Blocks::Narrow(each(pool, size, fill, Narrow)), Vec::new())
        } else {
            let wide = each(pool, size, fill, |x| Wide(x.map(widen)));
            let mut low = vec![NO_LOW; rows];
            for (low, blocks) in low.iter_mut().zip(wide.chunks_exact(size[1].max(1))) {
                let exponents = blocks.iter().flat_map(|b| b.0).map(|x| (x.to_bits() >> 23) as u8);
                *low = exponents.filter(|&e| e != 0).fold(NO_LOW, u8::min);
            }
            (Blocks::Wide(wide), low)
        };
        Left { blocks, rows, depth, low }
    }

    /// The smallest exponent field in the rows `range`, which are wide.
    pub(super) fn low(&self, range: Range<usize>) -> u8 {
        self.low[range].iter().copied().fold(NO_LOW, u8::min)
    }
}

/// All blocks of all rows, in parallel where there are many.
fn each<B: Scratch + Send>(
    pool: &Pool,
    [rows, blocks]: [usize; 2],
    fill: impl Fn(usize, usize, &mut [bf16; BLOCK]) + Sync,
    wrap: impl Fn([bf16; BLOCK]) -> B + Sync,
) -> Buffer<B> {
    const PART: usize = 256;
    let mut out = Buffer::of(rows * blocks);
    pool.parts(&mut out, PART, |part, out: &mut [B]| {
        for (i, to) in out.iter_mut().enumerate() {
            let at = part * PART + i;
            let mut values = [bf16::ZERO; BLOCK];
            fill(at / blocks, at % blocks, &mut values);
            *to = wrap(values);
        }
    });
    out
}
