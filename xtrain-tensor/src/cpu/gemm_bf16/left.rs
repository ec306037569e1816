//! The left operand of bf16 products: rounded at its entry, denormals as zeros, blocks of 32.
use std::ops::Range;

use super::super::lanes::{Kernel, Lanes, dispatch};
use super::super::scratch::{Buffer, Scratch, scratch};
use super::super::{Disjoint, Simd};
use super::tiles::{MatrixRows, Pairs, TILE, transpose_pairs};
use super::{BLOCK, NO_EXPONENT, Operand, round_daz};
use crate::Cpu;

/// RowMajor `[rows][ceil(depth / 32)][32]`, padded with +0.
#[derive(Debug)]
pub(crate) struct PackedA {
    pub(super) blocks: Blocks,
    pub(super) rows: usize,
    pub(super) depth: usize,
    /// Smallest exponent field of each row's non-zero elements; 0 of blocks for AMX, which does not ask.
    min_exp: Buffer<u8>,
}
scratch!(u8, NO_EXPONENT);

/// The blocks of all rows, as the path wants them.
#[derive(Debug)]
pub(super) enum Blocks {
    /// For AMX.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "AMX alone reads them"))]
    Amx(Buffer<Pairs>),
    /// For lanes: widened, since they broadcast one element at a time.
    Simd(Buffer<F32Block>),
}

/// A block as f32.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct F32Block(pub(super) [f32; BLOCK]);
scratch!(F32Block, F32Block([0.0; BLOCK]));

impl PackedA {
    /// The matrix `a` `[rows, depth]`, row-major.
    pub(crate) fn new<T: Operand>(cpu: &Cpu, a: &[T], shape: [usize; 2]) -> PackedA {
        let [rows, depth] = shape;
        assert_eq!(a.len(), rows * depth, "a holds rows * depth values");
        PackedA::pack(cpu, shape, &RowMajor { a, depth })
    }

    /// The transpose of the matrix whose row k is `line(k)`: `out` values, or none for a row of zeros.
    pub(super) fn transposed<'a, T: Operand + 'a>(
        cpu: &Cpu,
        [out, depth]: [usize; 2],
        line: impl Fn(usize) -> &'a [T] + Sync,
    ) -> PackedA {
        PackedA::pack(cpu, [out, depth], &Transposed(MatrixRows { line, depth }))
    }

    fn pack(cpu: &Cpu, [rows, depth]: [usize; 2], source: &impl Source) -> PackedA {
        let mut min_exp = Buffer::new(rows);
        let blocks = match cpu.simd {
            Simd::Amx => Blocks::Amx(pack_rows(cpu, [rows, depth], source, &mut min_exp)),
            _ => Blocks::Simd(pack_rows(cpu, [rows, depth], source, &mut min_exp)),
        };
        PackedA { blocks, rows, depth, min_exp }
    }

    /// The smallest exponent field in the rows `range`, which are wide.
    pub(super) fn min_exp(&self, range: Range<usize>) -> u8 {
        self.min_exp[range].iter().copied().fold(NO_EXPONENT, u8::min)
    }
}

/// All blocks of all rows, in parallel where there are many, and each row's smallest exponent field.
pub(super) fn pack_rows<B: Block>(
    cpu: &Cpu,
    [rows, depth]: [usize; 2],
    source: &impl Source,
    min_exp: &mut [u8],
) -> Buffer<B> {
    let blocks = depth.div_ceil(BLOCK);
    let mut out = Buffer::new(rows * blocks);
    if blocks == 0 {
        min_exp.fill(NO_EXPONENT);
    }
    // parts of 8 groups or more, of at least 8192 values
    let group = source.group();
    let part = group * 256usize.div_ceil(group * blocks.max(1)).max(8);
    let min_exp = Disjoint::new(min_exp);
    cpu.pool.parts(&mut out, part * blocks, |i, out: &mut [B]| {
        let first = i * part;
        // SAFETY: the rows of this part, which is passed once.
        let min_exp = unsafe { min_exp.slice(first..rows.min(first + part)) };
        dispatch(cpu.simd, Pack { source, first, blocks, out, min_exp });
    });
    out
}

/// What rows are packed of.
pub(super) trait Source: Sync {
    /// RowMajor that are read together: 16, or one.
    fn group(&self) -> usize;
    /// Writes the block `block` of the rows from `row` on, as many as are read together.
    fn fill<L: Lanes>(&self, l: L, row: usize, block: usize, to: &mut [Pairs; TILE]);
}

/// RowMajor as they lie.
pub(super) struct RowMajor<'a, T> {
    pub(super) a: &'a [T],
    pub(super) depth: usize,
}

impl<T: Operand> Source for RowMajor<'_, T> {
    #[inline(always)]
    fn group(&self) -> usize {
        1
    }
    #[inline(always)]
    fn fill<L: Lanes>(&self, _: L, row: usize, block: usize, to: &mut [Pairs; TILE]) {
        let from = &self.a[row * self.depth + block * BLOCK..];
        round_daz(&from[..BLOCK.min(self.depth - block * BLOCK)], &mut to[0].0);
    }
}

/// The columns of lines.
pub(super) struct Transposed<F>(pub(super) MatrixRows<F>);

impl<'a, T: Operand + 'a, F: Fn(usize) -> &'a [T] + Sync> Source for Transposed<F> {
    #[inline(always)]
    fn group(&self) -> usize {
        TILE
    }
    #[inline(always)]
    fn fill<L: Lanes>(&self, l: L, row: usize, block: usize, to: &mut [Pairs; TILE]) {
        let mut lines = [Pairs::BLANK; TILE];
        self.0.pairs(block * BLOCK, row, &mut lines);
        transpose_pairs(l, &lines, to);
    }
}

/// A block as a path reads it.
pub(super) trait Block: Scratch + Send {
    /// Becomes the block of these values.
    fn set<L: Lanes>(&mut self, l: L, values: &Pairs);
    /// The smallest exponent field of a row's non-zero elements; 0 where the path does not ask for it.
    fn lowest<L: Lanes>(l: L, row: &[Self]) -> u8;
}

impl Block for Pairs {
    #[inline(always)]
    fn set<L: Lanes>(&mut self, _: L, values: &Pairs) {
        *self = *values;
    }
    #[inline(always)]
    fn lowest<L: Lanes>(_: L, _: &[Pairs]) -> u8 {
        0
    }
}

impl Block for F32Block {
    #[inline(always)]
    fn set<L: Lanes>(&mut self, l: L, values: &Pairs) {
        Lanes::store(l, &mut self.0, l.load_bf16(&values.0));
    }
    #[inline(always)]
    fn lowest<L: Lanes>(l: L, row: &[F32Block]) -> u8 {
        let (bound, none) = (Lanes::splat(l, f32::MIN_POSITIVE), Lanes::splat(l, f32::NEG_INFINITY));
        let mut least = none;
        for block in row {
            let v = l.load(&block.0);
            let size = l.max(v, l.neg(v));
            least = l.max(least, l.select_lt(size, bound, none, l.neg(size)));
        }
        // without a finite element but zeros it is that of infinity, which is NO_EXPONENT
        ((-l.max32(least)).to_bits() >> 23) as u8
    }
}

/// RowMajor that are packed together, and their smallest exponent fields.
struct Pack<'a, S, B> {
    source: &'a S,
    /// The first.
    first: usize,
    /// Blocks of a row.
    blocks: usize,
    out: &'a mut [B],
    min_exp: &'a mut [u8],
}

impl<S: Source, B: Block> Kernel for Pack<'_, S, B> {
    type Out = ();

    /// In the order in which the source lies in memory.
    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let (rows, group) = (self.min_exp.len(), self.source.group());
        let mut room = [Pairs::BLANK; TILE];
        if group == 1 {
            for row in 0..rows {
                for block in 0..self.blocks {
                    self.step(l, row..row + 1, block, &mut room);
                }
            }
        } else {
            for block in 0..self.blocks {
                for row in (0..rows).step_by(group) {
                    self.step(l, row..rows.min(row + group), block, &mut room);
                }
            }
        }
        for (min_exp, row) in self.min_exp.iter_mut().zip(self.out.chunks_exact(self.blocks)) {
            *min_exp = B::lowest(l, row);
        }
    }
}

impl<S: Source, B: Block> Pack<'_, S, B> {
    /// One block of rows that are read together.
    #[inline(always)]
    fn step<L: Lanes>(&mut self, l: L, rows: Range<usize>, block: usize, room: &mut [Pairs; TILE]) {
        self.source.fill(l, self.first + rows.start, block, room);
        for (row, values) in rows.zip(room) {
            self.out[row * self.blocks + block].set(l, values);
        }
    }
}
