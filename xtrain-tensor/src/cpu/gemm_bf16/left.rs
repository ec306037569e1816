//! The left operand of bf16 products: rounded at its entry, denormals as zeros, blocks of 32.
use std::ops::Range;

use half::bf16;

use super::super::scratch::{Buffer, Scratch, scratch};
use super::super::{Pool, Simd};
use super::{BLOCK, NO_LOW, Operand, entered, lowest, widen};
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
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "AMX alone reads them"))]
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
        Left::pack(cpu, shape, 1, |row, block, to| {
            let from = &a[row * depth + block * BLOCK..];
            to[0] = entered(&from[..BLOCK.min(depth - block * BLOCK)]);
        })
    }

    /// The transpose of the matrix whose row k is `line(k)`: `out` values, or none for a row of zeros.
    pub(super) fn transposed<'a, T: Operand + 'a>(
        cpu: &Cpu,
        [out, depth]: [usize; 2],
        line: impl Fn(usize) -> &'a [T] + Sync,
    ) -> Left {
        Left::pack(cpu, [out, depth], GROUP, |first, block, to| {
            for k in block * BLOCK..depth.min((block + 1) * BLOCK) {
                let line = line(k);
                let part: [bf16; GROUP] =
                    entered(&line[first.min(line.len())..(first + GROUP).min(line.len())]);
                for (to, x) in to.iter_mut().zip(&part) {
                    to[k % BLOCK] = *x;
                }
            }
        })
    }

    /// `fill(row, block, to)` writes a block of up to `group` rows over zeros.
    fn pack(cpu: &Cpu, [rows, depth]: [usize; 2], group: usize, fill: impl Fill) -> Left {
        let size = [rows, depth.div_ceil(BLOCK)];
        let (blocks, low) = if cpu.simd == Simd::Amx {
            (Blocks::Narrow(each(&cpu.pool, size, group, (fill, Narrow))), Vec::new())
        } else {
            let wide = each(&cpu.pool, size, group, (fill, |x: [bf16; BLOCK]| Wide(x.map(widen))));
            let mut low = vec![NO_LOW; rows];
            for (low, blocks) in low.iter_mut().zip(wide.chunks_exact(size[1].max(1))) {
                *low = lowest(blocks.iter().map(|block| block.0.map(narrow)));
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

/// Rows that are transposed together.
const GROUP: usize = 16;

/// Writes a block of up to [`GROUP`] rows.
trait Fill: Fn(usize, usize, &mut [[bf16; BLOCK]]) + Sync {}
impl<F: Fn(usize, usize, &mut [[bf16; BLOCK]]) + Sync> Fill for F {}

/// All blocks of all rows, in parallel where there are many.
fn each<B: Scratch + Send>(
    pool: &Pool,
    [rows, blocks]: [usize; 2],
    group: usize,
    (fill, wrap): (impl Fill, impl Fn([bf16; BLOCK]) -> B + Sync),
) -> Buffer<B> {
    let mut out = Buffer::of(rows * blocks);
    // parts of 8 groups or more, of at least 8192 values
    let part = group * 256usize.div_ceil(group * blocks.max(1)).max(8);
    pool.parts(&mut out, part * blocks, |i, out: &mut [B]| {
        let groups = out.len().div_ceil(group * blocks);
        for n in 0..groups * blocks {
            // in the order in which the source lies in memory
            let (j, block) = if group == 1 { (n / blocks, n % blocks) } else { (n % groups, n / groups) };
            let out = &mut out[j * group * blocks..];
            let mut values = [[bf16::ZERO; BLOCK]; GROUP];
            let values = &mut values[..group.min(out.len() / blocks)];
            fill(i * part + j * group, block, values);
            for (to, values) in out[block..].iter_mut().step_by(blocks).zip(values) {
                *to = wrap(*values);
            }
        }
    });
    out
}

/// The bf16 that was widened to x.
fn narrow(x: f32) -> bf16 {
    bf16::from_bits((x.to_bits() >> 16) as u16)
}
