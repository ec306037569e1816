//! Checks every kernel against the reference, on values at the boundary of flush to zero.
use std::ops::Range;

use half::bf16;

use super::super::Simd;
use super::super::gemm::Beta;
use super::left::{F32Block, ParityBlock, RowMajor, Transposed, pack_rows};
use super::operand::{BLOCK, Operand, widen};
use super::pairs::Pairs;
use super::tiles::MatrixRows;
use super::*;
use crate::device::Device;
use crate::dtype::{round_bf16, to_bf16};
use crate::math::fma;
use crate::reference::{self, Mode};
use crate::testing::{assert_bits_eq, simds};

/// Kinds of values: normal; products around 2^-126; denormals, zeros and ties; the neighbors of 2^-63; widely spread
/// exponents; the finest lattice on which nothing is flushed; infinities, NaN, denormals and values whose products
/// overflow.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Plain,
    Edge,
    Odd,
    Near,
    Wide,
    Grid,
    Huge,
}
const KINDS: [Kind; 7] = [Kind::Plain, Kind::Edge, Kind::Odd, Kind::Near, Kind::Wide, Kind::Grid, Kind::Huge];

fn values(kind: Kind, seed: u32, n: usize) -> Vec<bf16> {
    let mut s = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = move || {
        s ^= s << 13;
        s ^= s >> 17;
        s ^= s << 5;
        s
    };
    let with = |s: u32, exponent: u32| bf16::from_bits((s >> 16 & 0x8000 | exponent << 7 | s & 0x7f) as u16);
    let mut draw = move || {
        let s = next();
        match kind {
            Kind::Plain => to_bf16((s as i32) as f32 / (1u32 << 31) as f32),
            Kind::Edge => with(s, 61 + (s >> 8) % 5),
            Kind::Odd if s % 3 == 0 => with(s, 0),
            Kind::Odd if s % 3 == 1 => bf16::from_bits((s >> 16 & 0x8000) as u16),
            Kind::Odd => with(s, 100 + (s >> 8) % 60),
            Kind::Near if (s >> 8) % 4 == 0 => bf16::from_bits((s >> 16 & 0x8000) as u16),
            Kind::Near => with(s, 63 + (s >> 12) % 2),
            Kind::Wide => with(s, 40 + (s >> 8) % 60),
            Kind::Grid => with(s, 71 + (s >> 12) % 2),
            Kind::Huge => match (s >> 8) % 64 {
                0 => bf16::from_bits((s >> 16 & 0x8000 | 0x7f80) as u16),
                1 if s >> 20 & 7 == 0 => with(s | 1, 255),
                2..6 => with(s, 0),
                _ => with(s, 120 + (s >> 20) % 72),
            },
        }
    };
    (0..n).map(|_| draw()).collect()
}

/// Old values of y: zeros of both signs, denormals, values near 2^-126, and normal ones.
fn before(seed: u32, n: usize) -> Vec<f32> {
    let bits = values(Kind::Plain, seed, n);
    let pick = |(i, x): (usize, &bf16)| {
        let s = u32::from(x.to_bits());
        match i % 5 {
            0 => f32::from_bits(s << 16 & 0x8000_0000),
            1 => f32::from_bits((s << 16 & 0x8000_0000) | s),
            2 => f32::from_bits((s << 16 & 0x8000_0000) | 0x0080_0000 | s << 9 & 0x01ff_ffff),
            _ => widen(*x),
        }
    };
    bits.iter().enumerate().map(pick).collect()
}

/// The bf16 dot product of docs/numerics.md on the CPU.
fn dot(y: f32, n: usize, a: impl Fn(usize) -> bf16, b: impl Fn(usize) -> bf16) -> f32 {
    reference::dot::<reference::Bf16>(y, n, |k| widen(a(k)), |k| widen(b(k)))
}

fn devices() -> impl Iterator<Item = (Simd, Device)> {
    simds().into_iter().flat_map(|s| [1, 3].map(|threads| (s, Device::cpu_with(threads, s))))
}

fn same(got: &[f32], want: &[f32], what: &str) {
    assert_bits_eq(got, want, what);
}

#[test]
fn products_have_the_bits_of_the_reference_on_every_path_even_at_the_boundary_of_the_flush() {
    let sizes = [
        [1, 1, 1],
        [1, 64, 40],
        [2, 33, 65],
        [5, 70, 31],
        [7, 96, 96],
        [17, 31, 33],
        [33, 100, 70],
        [1, 40, 120],
        [1, 64, 200],
        [2, 40, 50],
        [3, 40, 200],
        [8, 64, 100],
        [40, 0, 70],
        [70, 576, 100],
        [45, 1056, 33],
    ];
    for [m, k, n] in sizes {
        for kind in KINDS {
            let (x, w, y0) = (values(kind, 1, m * k), values(kind, 2, n * k), before(3, m * n));
            let want = |y0: &[f32]| -> Vec<f32> {
                let at = |i: usize| dot(y0[i], k, |j| x[i / n * k + j], |j| w[i % n * k + j]);
                (0..m * n).map(at).collect()
            };
            let (from_zero, from_y) = (want(&vec![0.0; m * n]), want(&y0));
            let with_residual: Vec<f32> = from_zero.iter().zip(&y0).map(|(sum, h)| sum + h).collect();
            let rounded: Vec<f32> = from_zero.iter().map(|&sum| round_bf16(sum)).collect();
            for (simd, device) in devices() {
                let cpu = device.as_cpu().unwrap();
                let what = format!("{simd} {m}x{k}x{n} {kind:?}");
                let a = PackedA::new(cpu, &x, [m, k]);
                let tiles = TilePanels::of_weight(cpu, &w, [n, k]).unwrap();
                let mut y = vec![f32::NAN; m * n];
                product(cpu, &a, tiles.view(), Output::Sum(&mut y, Beta::Zero));
                same(&y, &from_zero, &what);
                let mut y = y0.clone();
                product(cpu, &a, tiles.view(), Output::Sum(&mut y, Beta::One));
                same(&y, &from_y, &what);
                product(cpu, &a, tiles.view(), Output::Residual { h: &y0, y: &mut y });
                same(&y, &with_residual, &format!("{what} and a residual"));
                let mut y = vec![bf16::NAN; m * n];
                product(cpu, &a, tiles.view(), Output::Rounded(&mut y));
                let y: Vec<f32> = y.into_iter().map(widen).collect();
                same(&y, &rounded, &format!("{what}, rounded"));
            }
        }
    }
}

/// `vdpbf16ps`: two fused multiply-adds with the flush of docs/numerics.md, the high half first.
fn pair_dot(sum: f32, a: u32, b: u32) -> f32 {
    let halves = |w: u32| [w & 0xffff_0000, w << 16].map(f32::from_bits);
    let [a, b] = [halves(a), halves(b)];
    reference::fma_flushed(a[1], b[1], reference::fma_flushed(a[0], b[0], sum))
}

/// Compares chains over packed pairs, computed by a model of `vdpbf16ps`, with blocks of the reference. Runs on every
/// machine. Returns the number of blocks.
fn chains_of_packed_pairs() -> Result<usize, String> {
    let device = Device::cpu_with(1, Simd::Portable);
    let cpu = device.as_cpu().unwrap();
    let kinds = [Kind::Plain, Kind::Edge, Kind::Odd, Kind::Near, Kind::Wide, Kind::Grid];
    for (at, kind) in kinds.into_iter().enumerate() {
        let (x, w) = (values(kind, 1, 32), values(kind, 2, 16 * 32));
        let a = pack_rows::<ParityBlock, _>(cpu, [1, 32], &RowMajor { a: &x, depth: 32 }, &mut [0]);
        let mut tile = TilePanels::of_weight(cpu, &w, [16, 32]).unwrap().rows[..16].to_vec();
        pairing::pair_tile(&mut tile);
        let (a, b) = (a[..1][0].0.words(), tile.iter().map(Pairs::words).collect::<Vec<_>>());
        for j in 0..16 {
            let chain = |parity| (parity..16).step_by(2).fold(0.0, |sum, r| pair_dot(sum, a[r], b[r][j]));
            let got = reference::Bf16::add(0.0, reference::Bf16::add(chain(0), chain(1)));
            let want = dot(0.0, 32, |k| x[k], |k| w[j * 32 + k]);
            if got.to_bits() != want.to_bits() {
                return Err(format!("{kind:?} values of case {at}, column {j}: {got:e} instead of {want:e}"));
            }
        }
    }
    Ok(kinds.len() * 16)
}

#[test]
fn pairs_of_one_parity_are_two_steps_of_a_chain() {
    assert_eq!(chains_of_packed_pairs(), Ok(96));
}

#[cfg(feature = "faults")]
#[test]
fn exchanged_halves_of_the_pairs_are_detected() {
    use crate::faults::{Fault, with};
    let found = with(Fault::PairHalvesExchanged, chains_of_packed_pairs);
    assert!(found.is_err(), "{found:?}");
}

/// A matrix of ordinary values, with one row of products around 2^-126 if all rows of the other operand have them.
fn one_small_row(seed: u32, [rows, depth]: [usize; 2], small: usize) -> Vec<bf16> {
    let mut x = values(Kind::Plain, seed, rows * depth);
    x[small * depth..][..depth].copy_from_slice(&values(Kind::Edge, seed, depth));
    x
}

/// A product `y += a b`: `[rows, depth, columns]`, a, b by columns, and the old y.
type Case = ([usize; 3], Vec<bf16>, Vec<bf16>, Vec<f32>);

/// Products of which a few sums alone are tiny: those of one row or column, and those of old values that are no
/// multiples of 2^-126, with operands whose products are.
fn partly_tiny() -> impl Iterator<Item = Case> {
    let rows = (0..7).map(|row| {
        let [m, k, n] = [7, 70, 70];
        ([m, k, n], one_small_row(1, [m, k], row), values(Kind::Edge, 2, n * k), vec![0.0; m * n])
    });
    let columns = [1, 2, 7].into_iter().flat_map(|m| {
        let [k, n] = [70, 200];
        [3, 40, 69, 127, 199].map(|column| {
            let w = one_small_row(2, [n, k], column);
            ([m, k, n], values(Kind::Edge, 1, m * k), w, vec![0.0; m * n])
        })
    });
    let old = [1, 3, 7].map(|m| {
        let [k, n] = [32, 40];
        let one = |rows: usize| {
            let at = |i: usize| if i % k == 3 { bf16::from_bits(71 << 7) } else { bf16::ZERO };
            (0..rows * k).map(at).collect()
        };
        // the product is 2^-112, a sum 2^-135
        let old = |i: usize| f32::from_bits(if i % 5 == 2 { 0x8780_0001 } else { 0 });
        ([m, k, n], one(m), one(n), (0..m * n).map(old).collect())
    });
    rows.chain(columns).chain(old)
}

#[test]
fn a_tile_is_flushed_if_any_row_panel_or_old_sum_needs_it() {
    for ([m, k, n], x, w, old) in partly_tiny() {
        let want: Vec<f32> =
            (0..m * n).map(|i| dot(old[i], k, |j| x[i / n * k + j], |j| w[i % n * k + j])).collect();
        for (simd, device) in devices() {
            let cpu = device.as_cpu().unwrap();
            let (a, b) = (PackedA::new(cpu, &x, [m, k]), TilePanels::of_weight(cpu, &w, [n, k]).unwrap());
            let mut y = old.clone();
            product(cpu, &a, b.view(), Output::Sum(&mut y, Beta::One));
            same(&y, &want, &format!("{simd} {m}x{k}x{n}"));
        }
    }
}

/// The outputs of products by `vdpbf16ps` that differ from the reference: of values at the boundary of the flush, and
/// of operands of which a part alone has tiny results.
#[cfg(feature = "faults")]
fn differing_pair_dots() -> usize {
    let device = Device::cpu_with(1, Simd::Avx512Bf16);
    let cpu = device.as_cpu().unwrap();
    let [m, k, n] = [7, 70, 70];
    let of_kind = |kind| ([m, k, n], values(kind, 1, m * k), values(kind, 2, n * k), vec![0.0; m * n]);
    let cases = [Kind::Plain, Kind::Edge, Kind::Near].map(of_kind);
    let differing = cases.into_iter().chain(partly_tiny()).map(|([m, k, n], x, w, old)| {
        let (a, b) = (PackedA::new(cpu, &x, [m, k]), TilePanels::of_weight(cpu, &w, [n, k]).unwrap());
        let mut y = old.clone();
        product(cpu, &a, b.view(), Output::Sum(&mut y, Beta::One));
        let want = |i: usize| dot(old[i], k, |j| x[i / n * k + j], |j| w[i % n * k + j]);
        (0..m * n).filter(|&i| y[i].to_bits() != want(i).to_bits()).count()
    });
    differing.sum()
}

#[cfg(feature = "faults")]
#[test]
fn products_of_wrong_pairs_and_without_the_last_flush_are_detected() {
    use crate::faults::{Fault, with};
    if !simds().contains(&Simd::Avx512Bf16) {
        println!("NOT RUN, its kernel needs AVX-512 BF16");
        return;
    }
    assert_eq!(differing_pair_dots(), 0);
    for fault in [
        Fault::PairHalvesExchanged,
        Fault::PairSumNotFlushed,
        Fault::PairExponentOfFirstRow,
        Fault::PairOldSumsUnchecked,
    ] {
        let found = with(fault, differing_pair_dots);
        println!("{fault}: {found} differing outputs");
        assert!(found > 0, "{fault} is not detected");
    }
}

#[test]
fn these_values_detect_a_missing_flush() {
    // plain arithmetic differs on these values, so the test above fails for a kernel without the flush
    for kind in [Kind::Edge, Kind::Odd, Kind::Near] {
        let (x, w) = (values(kind, 1, 64), values(kind, 2, 64 * 64));
        let plain = |j: usize| {
            let term = |k: usize, c: f32| fma(widen(x[k]), widen(w[j * 64 + k]), c);
            (0..64).step_by(32).fold(0.0f32, |y, from| {
                let e = (from..from + 32).step_by(2).fold(0.0, |c, k| term(k, c));
                let o = (from + 1..from + 32).step_by(2).fold(0.0, |c, k| term(k, c));
                y + (e + o)
            })
        };
        let differ =
            (0..64).filter(|&j| dot(0.0, 64, |k| x[k], |k| w[j * 64 + k]).to_bits() != plain(j).to_bits());
        assert!(differ.count() > 0, "{kind:?} values do not detect a missing flush");
    }
}

#[test]
fn weight_gradients_pad_every_sample_to_blocks_of_32_rows() {
    let samples: [Range<usize>; 4] = [0..33, 33..34, 40..40, 40..300];
    for kind in KINDS {
        // five panels: more than are packed together
        let [o, i] = [35, 150];
        let (dy, x, g0) = (values(kind, 5, 300 * o), values(kind, 6, 300 * i), before(7, o * i));
        let mut want = g0.clone();
        for s in &samples {
            for (at, g) in want.iter_mut().enumerate() {
                let row = |r: usize| s.start + r;
                *g = dot(*g, s.len(), |r| dy[row(r) * o + at / i], |r| x[row(r) * i + at % i]);
            }
        }
        let wide: Vec<f32> = dy.iter().map(|&x| widen(x)).collect();
        for (simd, device) in devices() {
            let mut g = g0.clone();
            weight_gradient(device.as_cpu().unwrap(), &wide, &x, &samples, &mut g, [o, i]).unwrap();
            same(&g, &want, &format!("{simd} {kind:?}"));
        }
    }
}

#[test]
fn f32_operands_are_rounded_and_have_no_denormals() {
    for bits in (0..1u64 << 32).step_by(9_973) {
        let x = f32::from_bits(bits as u32);
        assert_eq!(x.round_daz().to_bits(), to_bf16(x).round_daz().to_bits(), "{x:e}");
        assert!(x.round_daz().to_bits() & 0x7f80 != 0 || x.round_daz().to_bits() & 0x7fff == 0);
    }
}

#[test]
fn packed_a_for_amx_and_for_simd_hold_the_same_values() {
    let (rows, depth) = (37, 70);
    let x = values(Kind::Odd, 4, rows * depth);
    for (simd, device) in devices() {
        let cpu = device.as_cpu().unwrap();
        let transposed = Transposed(MatrixRows {
            row: |k: usize| if k == 9 { &[] } else { &x[k * rows..][..rows] },
            depth,
        });
        let mut min_exp = vec![0; rows];
        let narrow = pack_rows::<Pairs, _>(cpu, [rows, depth], &RowMajor { a: &x, depth }, &mut min_exp);
        assert!(min_exp.iter().all(|&min_exp| min_exp == 0), "{simd}");
        let wide = pack_rows::<F32Block, _>(cpu, [rows, depth], &RowMajor { a: &x, depth }, &mut min_exp);
        let narrow_transposed = pack_rows::<Pairs, _>(cpu, [rows, depth], &transposed, &mut vec![0; rows]);
        let wide_transposed = pack_rows::<F32Block, _>(cpu, [rows, depth], &transposed, &mut vec![0; rows]);
        for (i, k) in (0..rows).flat_map(|i| (0..96).map(move |k| (i, k))) {
            let (block, at) = (i * 3 + k / BLOCK, k % BLOCK);
            let want = if k < depth { x[i * depth + k].round_daz() } else { bf16::ZERO };
            assert_eq!(narrow[block].0[at].to_bits(), want.to_bits(), "{simd} row {i}, {k}");
            assert_eq!(wide[block].0[at].to_bits(), widen(want).to_bits(), "{simd} row {i}, {k}");
            let want = if k < depth && k != 9 { x[k * rows + i].round_daz() } else { bf16::ZERO };
            assert_eq!(narrow_transposed[block].0[at].to_bits(), want.to_bits(), "{simd} column {i}, {k}");
            assert_eq!(
                wide_transposed[block].0[at].to_bits(),
                widen(want).to_bits(),
                "{simd} column {i}, {k}"
            );
        }
        let mut of_pairs = vec![0; rows];
        pack_rows::<ParityBlock, _>(cpu, [rows, depth], &RowMajor { a: &x, depth }, &mut of_pairs);
        assert_eq!(of_pairs, min_exp, "{simd}");
        for (i, min_exp) in min_exp.iter().enumerate() {
            let fields = x[i * depth..][..depth].iter().map(|x| (x.round_daz().to_bits() >> 7 & 0xff) as u8);
            assert_eq!(*min_exp, fields.filter(|&f| f != 0).min().unwrap_or(NO_EXPONENT), "{simd} row {i}");
        }
    }
}

#[test]
fn tile_panels_return_the_elements_and_the_transpose() {
    let (n, k) = (37, 70);
    let w = values(Kind::Plain, 9, n * k);
    for (simd, device) in devices() {
        let cpu = device.as_cpu().unwrap();
        let (a, b) = (
            TilePanels::of_weight(cpu, &w, [n, k]).unwrap(),
            TilePanels::of_weight_transposed(cpu, &w, [n, k]).unwrap(),
        );
        let column = |panels: &TilePanels, j: usize, depth: usize| {
            let mut column = vec![0.0; depth];
            panels.column(j, &mut column);
            column
        };
        for i in 0..n {
            let want: Vec<f32> = w[i * k..][..k].iter().map(|x| widen(*x)).collect();
            assert_eq!(column(&a, i, k), want, "{simd}");
        }
        for j in 0..k {
            let want: Vec<f32> = w[j..].iter().step_by(k).map(|x| widen(*x)).collect();
            assert_eq!(column(&b, j, n), want, "{simd}");
        }
        assert_eq!((a.view().shape(), b.view().shape()), ([k, n], [n, k]));
        assert_eq!(size_of_val(&a.rows[..]) + a.min_exp.len(), 2 * 96 * 64 + 2);
    }
}

/// Runs on every machine: the panels are only marked as packed for `vdpbf16ps`.
#[test]
fn panels_in_another_order_are_refused_with_both_instruction_sets() {
    let device = Device::cpu_with(1, Simd::Portable);
    let cpu = device.as_cpu().unwrap();
    let mut tiles = TilePanels::of_weight(cpu, &values(Kind::Plain, 9, 3 * 40), [3, 40]).unwrap();
    for simd in [Simd::Portable, Simd::Neon, Simd::Avx2, Simd::Avx512, Simd::Amx] {
        tiles.simd = simd;
        assert_eq!(tiles.view_for(cpu).unwrap().shape(), [40, 3], "{simd}");
    }
    tiles.simd = Simd::Avx512Bf16;
    let want = "product in bf16: expected a weight packed for portable, found one packed for avx512bf16, which orders \
                its elements differently";
    assert_eq!(tiles.view_for(cpu).unwrap_err().to_string(), want);
}
