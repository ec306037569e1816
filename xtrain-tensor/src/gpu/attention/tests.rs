//! Every launch geometry, bitwise: bf16 against the reference in the order of `mma.sync`, geometries against each
//! other, and a row against itself with other rows.
#![cfg(xtrain_emu)]
mod reads;
pub(crate) mod shared;

use super::{CHUNK, HEAD_SIZES, Operands, tiles};
use crate::device::gpu::{Emulation, EmulatorBuild};
use crate::ops::{self, AttnMask, AttnSaved, Slots};
use crate::reference::{self, F32, Heads, Hopper, Mma};
use crate::testing::{arbitrary, compare_bits};
use crate::{Device, Dtype, Error, Tensor, ThreadSchedule, round_bf16};

const SCHEDULES: [ThreadSchedule; 4] = [
    ThreadSchedule::Forward,
    ThreadSchedule::Backward,
    ThreadSchedule::Random(5),
    ThreadSchedule::Priorities(6),
];

/// Which kernels compute a row.
#[derive(Debug, Clone, Copy)]
enum Launch {
    Tiles,
    Split,
}

/// `[nh, nkv, hd]`, lengths of the sequences, window, page (0: runs).
type Shape = ([usize; 3], &'static [usize], Option<usize>, usize);

const SHAPES: [Shape; 17] = [
    ([2, 1, 8], &[1, 66, 33], None, 0),
    ([4, 2, 64], &[130], None, 16),
    ([6, 2, 16], &[65, 3], Some(7), 5),
    ([3, 3, 24], &[129], Some(64), 1),
    ([20, 1, 32], &[70], None, 3),
    ([8, 2, 40], &[31, 64], None, 100),
    ([2, 2, 128], &[97, 2], Some(33), 0),
    ([4, 1, 72], &[63, 18], None, 64),
    ([3, 1, 192], &[67], None, 7),
    ([2, 1, 136], &[80], Some(50), 0),
    ([5, 1, 256], &[66], None, 4),
    ([1, 1, 200], &[40, 1], Some(1), 9),
    ([2, 1, 208], &[40], Some(5), 3),
    ([3, 1, 80], &[50], Some(11), 0),
    ([3, 1, 64], &[200, 1, 64], Some(100), 0),
    ([6, 2, 64], &[131], None, 7),
    ([2, 1, 128], &[66, 130], None, 16),
];

/// Operands of an attention over whole sequences, and its attention mask.
struct Scene {
    heads: Heads,
    window: Option<usize>,
    slots: Slots,
    n_slots: usize,
    seq: Vec<u32>,
    pos: Vec<u32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Scene {
    /// Slots without a position are NaN.
    fn new(([nh, nkv, hd], lengths, window, page): Shape, dtype: Dtype) -> Scene {
        let n: usize = lengths.iter().sum();
        let (slots, n_slots) = match page {
            0 => {
                let base = (0..lengths.len()).map(|s| 1 + s + lengths[..s].iter().sum::<usize>()).collect();
                (Slots::Runs { base }, n + lengths.len() + 1)
            }
            _ => {
                let pages: usize = lengths.iter().map(|n| n.div_ceil(page)).sum();
                let mut free = (0..=pages as u32).rev();
                let table = lengths.iter().map(|n| free.by_ref().take(n.div_ceil(page)).collect());
                (Slots::Pages { page, table: table.collect() }, (pages + 1) * page)
            }
        };
        let at = |(s, &n): (u32, &usize)| (0..n as u32).map(move |p| (s, p));
        let (seq, pos): (Vec<u32>, Vec<u32>) = (0u32..).zip(lengths).flat_map(at).unzip();
        let place = |x: Vec<f32>| {
            let mut pool = vec![f32::NAN; n_slots * nkv * hd];
            for (x, (&seq, &pos)) in x.chunks_exact(nkv * hd).zip(seq.iter().zip(&pos)) {
                pool[slots.slot(seq, pos as usize) * nkv * hd..][..nkv * hd].copy_from_slice(x);
            }
            pool
        };
        let values = |n, seed| rounded(arbitrary(n, seed), dtype);
        let (q, k, v) =
            (values(n * nh * hd, 1), place(values(n * nkv * hd, 2)), place(values(n * nkv * hd, 3)));
        Scene { heads: Heads { nh, nkv, hd }, window, slots, n_slots, seq, pos, q, k, v }
    }

    fn mask<'a>(&'a self, (seq, pos): &'a (Vec<u32>, Vec<u32>)) -> AttnMask<'a> {
        AttnMask { seq, pos, slots: &self.slots, window: self.window }
    }

    fn all(&self) -> (Vec<u32>, Vec<u32>) {
        (self.seq.clone(), self.pos.clone())
    }

    fn on(&self, device: &Device, x: &[f32], heads: usize, dtype: Dtype) -> Tensor {
        let shape = [x.len() / (heads * self.heads.hd), heads, self.heads.hd];
        Tensor::new(device, &shape, x.to_vec()).and_then(|x| x.cast(dtype)).unwrap()
    }

    fn pools(&self, device: &Device, dtype: Dtype) -> [Tensor; 2] {
        assert_eq!(self.k.len(), self.n_slots * self.heads.nkv * self.heads.hd);
        [&self.k, &self.v].map(|x| self.on(device, x, self.heads.nkv, dtype))
    }

    /// `(y, L)` of some rows, by one launch shape.
    fn run(&self, device: &Device, rows: &[usize], dtype: Dtype, launch: Launch) -> [Vec<f32>; 2] {
        let Device::Gpu(gpu) = device else { panic!("expected a GPU, found {device}") };
        let at = rows.iter().map(|&n| (self.seq[n], self.pos[n])).unzip();
        let width = self.heads.nh * self.heads.hd;
        let q: Vec<f32> = rows.iter().flat_map(|&n| &self.q[n * width..][..width]).copied().collect();
        let q = self.on(device, &q, self.heads.nh, dtype);
        let [k, v] = self.pools(device, dtype);
        let mask = self.mask(&at);
        let operands = Operands::new(gpu, [&q, &k, &v], self.heads, &mask).unwrap();
        match launch {
            Launch::Tiles => operands.tiles(&tiles::runs(&mask), &mask).unwrap(),
            Launch::Split => operands.split(&(0..rows.len() as u32).collect::<Vec<_>>(), &mask).unwrap(),
        }
        let Operands { y, lse, .. } = operands;
        [y, lse].map(|x| x.to_f32().unwrap().to_vec().unwrap())
    }
}

fn rounded(mut x: Vec<f32>, dtype: Dtype) -> Vec<f32> {
    if dtype == Dtype::BF16 {
        x.iter_mut().for_each(|x| *x = round_bf16(*x));
    }
    x
}

#[track_caller]
fn same(got: &[f32], want: &[f32], what: &str) {
    compare(got, want, what).unwrap_or_else(|e| panic!("{e}"));
}

/// Compares finite values bit for bit. Returns their number.
fn compare(got: &[f32], want: &[f32], what: &str) -> Result<usize, String> {
    assert!(want.iter().all(|x| x.is_finite()), "{what}: a non-finite value compares nothing");
    compare_bits(got, want).map_err(|e| format!("gate gpu attention: {what}: {e}"))?;
    Ok(want.len())
}

/// Cycles through the schedules; one of them uses the checked build.
fn device(case: usize) -> Device {
    match SCHEDULES[case % 4] {
        schedule @ ThreadSchedule::Priorities(_) => Device::checked(schedule).unwrap(),
        schedule => Device::emulated(schedule).unwrap(),
    }
}

/// [`device`], and for a head size with kernels by `wgmma` a device without them.
fn devices(case: usize, hd: usize) -> Vec<Device> {
    let mma = || {
        let emulation = Emulation::new(SCHEDULES[case % 3], EmulatorBuild::Plain);
        Device::emulating(Emulation { wgmma: false, ..emulation }).unwrap()
    };
    [device(case)].into_iter().chain(matches!(hd, 64 | 128).then(mma)).collect()
}

#[test]
fn attention_has_the_order_of_the_contract_in_tiles_and_split() {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        for (j, dtype) in [Dtype::F32, Dtype::BF16].into_iter().enumerate() {
            let (scene, launch) = (Scene::new(shape, dtype), [Launch::Tiles, Launch::Split][(i + j) % 2]);
            let (all, operands) = (scene.all(), [&*scene.q, &*scene.k, &*scene.v]);
            let (heads, mask) = (scene.heads, scene.mask(&all));
            let want = match dtype {
                Dtype::BF16 => reference::attention::<Mma<Hopper>>(operands, heads, &mask),
                _ => reference::attention::<F32>(operands, heads, &mask),
            };
            let rows: Vec<usize> = (0..scene.seq.len()).collect();
            let want_y = rounded(want.y, dtype);
            for device in devices(i + j, heads.hd) {
                let [y, lse] = scene.run(&device, &rows, dtype, launch);
                let what = format!("{shape:?} {dtype} {launch:?} on {device}, seeds 1 to 3");
                same(&y, &want_y, &format!("{what}: y"));
                same(&lse, &want.lse, &format!("{what}: L"));
            }
        }
    }
}

/// Values beyond the range of the quotient without branches, rows whose sum is a NaN, and rows in its range.
#[test]
fn values_of_any_size_have_the_order_of_the_contract() {
    let n = edge_values().unwrap_or_else(|e| panic!("{e}"));
    println!("attention of edge values: {n} values, 0 differing bits");
}

/// Returns the number of values that are not a NaN.
pub(crate) fn edge_values() -> Result<usize, String> {
    let mut compared = 0;
    for (case, shape) in SHAPES.into_iter().enumerate() {
        let mut scene = Scene::new(shape, Dtype::BF16);
        let value = scene.heads.nkv * scene.heads.hd;
        for (slot, v) in scene.v.chunks_exact_mut(value).enumerate() {
            let scale = [2f32.powi(-100), 2f32.powi(100), 1.0][slot % 3];
            v.iter_mut().for_each(|v| *v *= scale);
        }
        let query = scene.heads.nh * scene.heads.hd;
        scene.q.chunks_exact_mut(query).step_by(5).for_each(|q| q[query - 1] = f32::NAN);
        let all = scene.all();
        let operands = [&*scene.q, &*scene.k, &*scene.v];
        let want = reference::attention::<Mma<Hopper>>(operands, scene.heads, &scene.mask(&all));
        let rows: Vec<usize> = (0..scene.seq.len()).collect();
        let want = [rounded(want.y, Dtype::BF16), want.lse];
        let got = devices(case, scene.heads.hd)
            .into_iter()
            .flat_map(|device| scene.run(&device, &rows, Dtype::BF16, Launch::Tiles));
        for (i, got) in got.enumerate() {
            let (name, want) = (["y", "L"][i % 2], &want[i % 2]);
            let differs = |(got, want): (&f32, &f32)| {
                got.to_bits() != want.to_bits() && !(got.is_nan() && want.is_nan())
            };
            if let Some(at) = got.iter().zip(want).position(differs) {
                let [got, want] = [got[at], want[at]].map(|x| format!("{x:e} ({:08x})", x.to_bits()));
                let what = format!("gate gpu attention: edge values of {shape:?}, seeds 1 to 3: {name}");
                return Err(format!("{what}: value {at}: {got}, expected {want}"));
            }
            compared += want.iter().filter(|x| !x.is_nan()).count();
        }
    }
    Ok(compared)
}

#[test]
fn a_row_has_its_bits_in_every_tile_and_chunk_split() {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        let dtype = [Dtype::F32, Dtype::BF16][i / 2 % 2];
        let scene = Scene::new(shape, dtype);
        let n = scene.seq.len();
        let whole = scene.run(&device(i), &(0..n).collect::<Vec<_>>(), dtype, Launch::Tiles);
        let mixes = [(0..n).rev().collect(), (n / 3..n).collect(), vec![n - 1], (0..n).step_by(9).collect()];
        for (j, rows) in mixes.into_iter().enumerate() {
            let launch = [Launch::Tiles, Launch::Split][j % 2];
            let got = scene.run(&device(i + j), &rows, dtype, launch);
            for (got, want) in got.iter().zip(&whole) {
                let width = want.len() / n;
                let want: Vec<f32> =
                    rows.iter().flat_map(|&r| &want[r * width..][..width]).copied().collect();
                same(got, &want, &format!("{shape:?} {dtype}, rows {rows:?}"));
            }
        }
    }
}

#[test]
fn a_row_has_its_bits_in_tiles_that_start_at_any_row() {
    let n = any_first_row().unwrap_or_else(|e| panic!("{e}"));
    println!("attention in tiles from any row: {n} values, 0 differing bits");
}

/// Compares tiles that start at every row around a chunk boundary with the split-K kernels, which compute each row
/// alone. The first row of a warp decides whether it masks a chunk. Returns the number of values.
pub(crate) fn any_first_row() -> Result<usize, String> {
    const SHAPES: [Shape; 4] = [
        ([2, 2, 16], &[150], None, 0),
        ([6, 2, 8], &[100], Some(33), 7),
        ([1, 1, 24], &[97], Some(64), 16),
        ([1, 1, 64], &[135], None, 0),
    ];
    let mut compared = 0;
    for (i, shape) in SHAPES.into_iter().enumerate() {
        for (j, dtype) in [Dtype::F32, Dtype::BF16].into_iter().enumerate() {
            let scene = Scene::new(shape, dtype);
            let n = scene.seq.len();
            let whole = scene.run(&device(i + j), &(0..n).collect::<Vec<_>>(), dtype, Launch::Split);
            for first in 45..70 {
                let got = scene.run(&device(first), &(first..n).collect::<Vec<_>>(), dtype, Launch::Tiles);
                for (got, want) in got.iter().zip(&whole) {
                    let what = format!("{shape:?} {dtype}, rows {first}.., seeds 1 to 3");
                    compared += compare(got, &want[want.len() / n * first..], &what)?;
                }
            }
        }
    }
    Ok(compared)
}

#[test]
fn the_gradient_in_bf16_has_the_order_of_mma_sync() {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        for device in devices(i, shape.0[2]) {
            gradient(shape, &device, 1.0);
            if matches!(shape.0[2], 64 | 128) {
                gradient(shape, &device, 400.0);
            }
        }
    }
}

/// `first`: what the queries of the first position of a sequence are scaled by. Their masked scores then leave the range of
/// exp.
fn gradient(shape: Shape, device: &Device, first: f32) {
    let mut scene = Scene::new(shape, Dtype::BF16);
    let rows = scene.q.chunks_exact_mut(shape.0[0] * shape.0[2]).zip(&scene.pos);
    let first_rows = rows.filter(|&(_, &pos)| pos == 0).flat_map(|(row, _)| row);
    first_rows.for_each(|q| *q = round_bf16(*q * first));
    let (heads, all) = (scene.heads, scene.all());
    let mask = scene.mask(&all);
    let q = scene.on(device, &scene.q, heads.nh, Dtype::BF16);
    let [k, v] = scene.pools(device, Dtype::BF16);
    let (y, lse) = ops::attention(&q, &k, &v, &mask).unwrap();
    let dy = arbitrary(q.len(), 4);
    let saved = AttnSaved { q: &q, k: &k, v: &v, y: &y, lse: &lse };
    let got = ops::attention_backward(&saved, &scene.on(device, &dy, heads.nh, Dtype::F32), &mask).unwrap();
    let (y, lse) = (y.to_f32().unwrap().to_vec::<f32>().unwrap(), lse.to_vec::<f32>().unwrap());
    let dy = &rounded(dy, Dtype::BF16);
    let (q, k, v) = (&scene.q, &scene.k, &scene.v);
    let saved = reference::AttentionSaved { q, k, v, y: &y, lse: &lse, dy };
    let want = reference::attention_backward::<Mma<Hopper>>(saved, heads, &mask);
    for (name, (got, want)) in ["dq", "dk", "dv"].iter().zip(got.iter().zip(&want)) {
        same(&got.to_vec::<f32>().unwrap(), want, &format!("{shape:?} on {device}: {name}"));
    }
}

#[test]
fn a_head_size_that_is_not_a_multiple_of_8_is_an_error() {
    let device = device(0);
    let slots = Slots::Runs { base: vec![0] };
    let mask = AttnMask { seq: &[0], pos: &[0], slots: &slots, window: None };
    for hd in 1..=256 {
        let x = Tensor::zeros(&device, &[1, 1, hd], Dtype::F32).unwrap();
        match ops::attention(&x, &x, &x, &mask) {
            Ok(_) => assert_eq!(hd % 8, 0),
            Err(error) => {
                assert!(!hd.is_multiple_of(8), "{hd}: {error}");
                let want = Error::Argument { op: "attention", want: HEAD_SIZES, got: hd.to_string() };
                assert_eq!(error, want);
            }
        }
    }
}

/// Sizes of pages are not sizes of tensors: one that no row needs may be any number.
#[test]
fn an_attention_without_rows_takes_pages_of_any_length() {
    let device = Device::emulated(ThreadSchedule::Forward).unwrap();
    let [q, kv] = [[0, 2, 8], [3, 1, 8]].map(|shape| Tensor::zeros(&device, &shape, Dtype::F32).unwrap());
    let slots = Slots::Pages { page: usize::MAX, table: vec![vec![0]] };
    let mask = AttnMask { seq: &[], pos: &[], slots: &slots, window: None };
    assert!(ops::attention(&q, &kv, &kv, &mask).unwrap().0.is_empty());
    assert!(ops::decode_attention(&q, &kv, &kv, &mask).unwrap().is_empty());
}
