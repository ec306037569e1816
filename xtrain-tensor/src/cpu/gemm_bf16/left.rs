//! The A operand of bf16 products: rounded to bf16, denormals as zeros, in blocks of 32.
use std::ops::Range;

use half::bf16;

use super::super::lanes::{Kernel, Lanes, dispatch};
use super::super::scratch::{Buffer, Scratch, scratch};
use super::super::{Disjoint, Simd};
use super::exponents::min_exponent;
use super::operand::{BLOCK, MinExponent, NO_EXPONENT, Operand, round_daz};
use super::pairing::pair_row;
use super::pairs::{Pairs, TILE};
use super::tiles::{MatrixRows, Source as TileSource, transpose_pairs};
use crate::Cpu;

/// A matrix A, packed as `[rows][ceil(depth / 32)][32]` and padded with +0.
#[derive(Debug)]
pub(crate) struct PackedA<'a> {
    pub(super) blocks: Blocks<'a>,
    pub(super) rows: usize,
    pub(super) depth: usize,
    /// Smallest exponent field of each row's non-zero elements. 0 if the kernel does not need it.
    min_exp: Buffer<u8>,
}
scratch!(u8, NO_EXPONENT);

/// The blocks of all rows, in the format of the kernel.
#[derive(Debug)]
pub(super) enum Blocks<'a> {
    Amx(Buffer<Pairs>),
    /// Rows of whole blocks that AMX reads where they are. It reads denormals as zeros.
    InPlace(&'a [bf16]),
    /// In the order of [`Pairing::Parity`](super::pairing::Pairing::Parity).
    Parity(Buffer<ParityBlock>),
    /// For SIMD kernels: widened to f32, because they broadcast single elements.
    Simd(Buffer<F32Block>),
}

#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct F32Block(pub(super) [f32; BLOCK]);
scratch!(F32Block, F32Block([0.0; BLOCK]));

/// Rows of a left operand: row r is the blocks from `r * step` on.
#[derive(Debug)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only products of pairs read them"))]
pub(crate) struct Rows<'a, B> {
    pub(crate) blocks: &'a [B],
    pub(crate) step: usize,
    pub(crate) len: usize,
}

impl<B> Clone for Rows<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<B> Copy for Rows<'_, B> {}

/// A block in the order of [`Pairing::Parity`](super::pairing::Pairing::Parity).
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct ParityBlock(pub(super) Pairs);
scratch!(ParityBlock, ParityBlock(Pairs::BLANK));

impl ParityBlock {
    /// A block of 32 elements in ascending order.
    #[inline(always)]
    pub(crate) fn new(values: &Pairs) -> ParityBlock {
        ParityBlock(pair_row(values))
    }

    /// A block of 16 pairs in the order of [`Pairing::Parity`](super::pairing::Pairing::Parity).
    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only AVX-512 BF16 has them"))]
    pub(crate) fn of_pairs(pairs: Pairs) -> ParityBlock {
        ParityBlock(pairs)
    }

    /// The 16 pairs.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only AVX-512 BF16 reads them"))]
    pub(super) fn pairs(&self) -> *const i32 {
        self.0.0.as_ptr().cast()
    }
}

impl<'m> PackedA<'m> {
    /// Packs the matrix `a` `[rows, depth]`, row-major, unless it can be read in place.
    pub(crate) fn new<T: Operand>(cpu: &Cpu, a: &'m [T], shape: [usize; 2]) -> PackedA<'m> {
        let [rows, depth] = shape;
        assert_eq!(a.len(), rows * depth, "a holds rows * depth values");
        if cpu.simd == Simd::Amx
            && depth.is_multiple_of(BLOCK)
            && let Some(a) = T::in_place(a)
        {
            return PackedA { blocks: Blocks::InPlace(a), rows, depth, min_exp: Buffer::new(0) };
        }
        PackedA::pack(cpu, shape, &RowMajor { a, depth })
    }

    /// Packs the transpose of the matrix whose row k is `row(k)`: `out` values, or an empty slice for a row of zeros.
    pub(super) fn transposed<'a, T: Operand + 'a>(
        cpu: &Cpu,
        [out, depth]: [usize; 2],
        row: impl Fn(usize) -> &'a [T] + Sync,
    ) -> PackedA<'m> {
        PackedA::pack(cpu, [out, depth], &Transposed(MatrixRows { row, depth }))
    }

    fn pack<S: Source>(cpu: &Cpu, [rows, depth]: [usize; 2], source: &S) -> PackedA<'m> {
        let mut min_exp = Buffer::new(rows);
        let blocks = match cpu.simd {
            Simd::Amx => Blocks::Amx(pack_rows(cpu, [rows, depth], source, &mut min_exp)),
            Simd::Avx512Bf16 => Blocks::Parity(pack_rows(cpu, [rows, depth], source, &mut min_exp)),
            _ => Blocks::Simd(pack_rows(cpu, [rows, depth], source, &mut min_exp)),
        };
        PackedA { blocks, rows, depth, min_exp }
    }

    /// The smallest exponent field of the rows `range`, which are not packed for AMX.
    pub(super) fn min_exp(&self, range: Range<usize>) -> u8 {
        self.min_exp[range].iter().copied().fold(NO_EXPONENT, u8::min)
    }
}

/// Packs all blocks of all rows, in parallel if there are many, and computes each row's smallest exponent field.
pub(super) fn pack_rows<B: Block, S: Source>(
    cpu: &Cpu,
    [rows, depth]: [usize; 2],
    source: &S,
    min_exp: &mut [u8],
) -> Buffer<B> {
    let blocks = depth.div_ceil(BLOCK);
    let mut out = Buffer::new(rows * blocks);
    if blocks == 0 {
        min_exp.fill(NO_EXPONENT);
    }
    // parts of 8 groups or more, with at least 8192 values
    let group = S::GROUP;
    let part = group * 256usize.div_ceil(group * blocks.max(1)).max(8);
    let min_exp = Disjoint::new(min_exp);
    cpu.pool.parts(&mut out, part * blocks, |i, out: &mut [B]| {
        let first = i * part;
        // SAFETY: the rows of this part; each part is passed once.
        let min_exp = unsafe { min_exp.slice(first..rows.min(first + part)) };
        dispatch(cpu.simd, Pack { source, first, blocks, out, min_exp });
    });
    out
}

pub(super) trait Source: Sync {
    /// Number of rows that are read together: 16 or 1.
    const GROUP: usize;
    /// Writes block `block` of a group of rows that starts at row `row`.
    fn fill<L: Lanes>(&self, l: L, row: usize, block: usize, to: &mut [Pairs; TILE]);
}

/// Rows of a row-major matrix.
pub(super) struct RowMajor<'a, T> {
    pub(super) a: &'a [T],
    pub(super) depth: usize,
}

impl<T: Operand> Source for RowMajor<'_, T> {
    const GROUP: usize = 1;

    #[inline(always)]
    fn fill<L: Lanes>(&self, _: L, row: usize, block: usize, to: &mut [Pairs; TILE]) {
        let from = &self.a[row * self.depth + block * BLOCK..];
        round_daz(&from[..BLOCK.min(self.depth - block * BLOCK)], &mut to[0].0);
    }
}

/// The columns of a matrix given by rows.
pub(super) struct Transposed<F>(pub(super) MatrixRows<F>);

impl<'a, T: Operand + 'a, F: Fn(usize) -> &'a [T] + Sync> Source for Transposed<F> {
    const GROUP: usize = TILE;

    #[inline(always)]
    fn fill<L: Lanes>(&self, l: L, row: usize, block: usize, to: &mut [Pairs; TILE]) {
        let mut rows = [Pairs::BLANK; TILE];
        self.0.fill(l, block * BLOCK, row, &mut rows);
        transpose_pairs(l, &rows, to);
    }
}

/// A block in the format of a kernel.
pub(super) trait Block: Scratch + Send {
    fn set<L: Lanes>(&mut self, l: L, values: &Pairs);
    /// The smallest exponent field of a row's non-zero elements. 0 if the kernel does not need it.
    fn min_exponent<L: Lanes>(l: L, row: &[Self]) -> u8;
}

impl Block for Pairs {
    #[inline(always)]
    fn set<L: Lanes>(&mut self, _: L, values: &Pairs) {
        *self = *values;
    }
    #[inline(always)]
    fn min_exponent<L: Lanes>(_: L, _: &[Pairs]) -> u8 {
        0
    }
}

impl Block for ParityBlock {
    #[inline(always)]
    fn set<L: Lanes>(&mut self, _: L, values: &Pairs) {
        *self = ParityBlock::new(values);
    }
    #[inline(always)]
    fn min_exponent<L: Lanes>(l: L, row: &[ParityBlock]) -> u8 {
        min_exponent(l, row.iter().map(|block| &block.0))
    }
}

impl Block for F32Block {
    #[inline(always)]
    fn set<L: Lanes>(&mut self, l: L, values: &Pairs) {
        Lanes::store(l, &mut self.0, l.load_bf16(&values.0));
    }
    #[inline(always)]
    fn min_exponent<L: Lanes>(l: L, row: &[F32Block]) -> u8 {
        let mut min = MinExponent::new(l);
        for block in row {
            min.update(l, l.load(&block.0));
        }
        min.field(l)
    }
}

/// A part of the rows, and their smallest exponent fields.
struct Pack<'a, S, B> {
    source: &'a S,
    first: usize,
    blocks: usize,
    out: &'a mut [B],
    min_exp: &'a mut [u8],
}

impl<S: Source, B: Block> Kernel for Pack<'_, S, B> {
    /// Reads the source in memory order.
    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let (rows, group) = (self.min_exp.len(), S::GROUP);
        let mut values_buf = [Pairs::BLANK; TILE];
        if group == 1 {
            for row in 0..rows {
                for block in 0..self.blocks {
                    self.step(l, row..row + 1, block, &mut values_buf);
                }
            }
        } else {
            for block in 0..self.blocks {
                for row in (0..rows).step_by(group) {
                    self.step(l, row..rows.min(row + group), block, &mut values_buf);
                }
            }
        }
        for (min_exp, row) in self.min_exp.iter_mut().zip(self.out.chunks_exact(self.blocks)) {
            *min_exp = B::min_exponent(l, row);
        }
    }
}

impl<S: Source, B: Block> Pack<'_, S, B> {
    /// Packs one block of a group of rows.
    #[inline(always)]
    fn step<L: Lanes>(&mut self, l: L, rows: Range<usize>, block: usize, values_buf: &mut [Pairs; TILE]) {
        self.source.fill(l, self.first + rows.start, block, values_buf);
        for (row, values) in rows.zip(values_buf) {
            self.out[row * self.blocks + block].set(l, values);
        }
    }
}
