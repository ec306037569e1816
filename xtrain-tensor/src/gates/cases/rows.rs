//! Cases of operations that move rows between tensors and the slots of a pool.
use super::DTYPES;
use crate::gates::case::{Case, pick, split, tensor};
use crate::gates::values::{CaseRng, Values, label};
use crate::ops::{self, SlotRange};
use crate::{Dtype, Result, Tensor};

/// Rows of the list, rows of the pool, the shape of a row. Rows are copied in words of 16, 4 and 2 bytes.
const SHAPES: [(usize, usize, &[usize]); 8] = [
    (1, 1, &[1]),
    (5, 9, &[2, 6]),
    (3, 40, &[]),
    (9, 12, &[1, 64]),
    (33, 33, &[7]),
    (2, 300, &[4, 33]),
    (17, 21, &[8]),
    (4, 6, &[1, 1030]),
];

/// A case for each shape and dtype. `run` returns the tensor to compare.
fn each(op: &'static str, run: fn(&Scene) -> Result<Tensor>) -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, (n, slots, row)) in SHAPES.into_iter().enumerate() {
        for dtype in DTYPES {
            let (seed, values) = (i as u64 + 1401, Values::of(i));
            let name = format!("{n}-{slots}x{row:?}-{}", label(dtype, values)).replace(' ', "");
            cases.push(Case::rows(op, name, seed, 1, move |device, _| {
                let width = row.iter().product::<usize>();
                let of = |n: usize, seed| {
                    tensor(device, &[&[n], row].concat(), &values.fill(n * width, seed), dtype)
                };
                let scene = Scene { n, slots, pool: of(slots, seed)?, list: of(n, seed + 1000)?, seed };
                split(&run(&scene)?, 1)
            }));
        }
    }
    cases
}

struct Scene {
    n: usize,
    slots: usize,
    pool: Tensor,
    list: Tensor,
    seed: u64,
}

impl Scene {
    /// As many different slots as the list has rows.
    fn some_slots(&self) -> Vec<u32> {
        let order = CaseRng::new(self.seed).shuffled(self.slots);
        order.into_iter().take(self.n).map(|slot| slot as u32).collect()
    }
}

pub(crate) fn gather_rows() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, (n, m, row)) in SHAPES.into_iter().enumerate() {
        for dtype in DTYPES {
            let (seed, values) = (i as u64 + 1451, Values::of(i));
            let width = row.iter().product::<usize>();
            let (x, ids) = (values.fill(m * width, seed), CaseRng::new(seed).ids(n, m));
            let name = format!("{n}-{m}x{row:?}-{}", label(dtype, values)).replace(' ', "");
            cases.push(Case::rows("gather_rows", name, seed, n, move |device, rows| {
                let x = tensor(device, &[&[m], row].concat(), &x, dtype)?;
                split(&ops::gather_rows(&x, &pick(&ids, 1, rows))?, rows.len())
            }));
        }
    }
    cases
}

pub(crate) fn gather_rows_backward() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, (m, n, row)) in SHAPES.into_iter().enumerate() {
        let (seed, values) = (i as u64 + 1501, Values::of(i));
        let width = row.iter().product::<usize>();
        let (dy, ids) = (values.fill(n * width, seed), CaseRng::new(seed).ids(n, m));
        let name = format!("{n}-{m}x{row:?}-{}", label(Dtype::F32, values)).replace(' ', "");
        cases.push(Case::rows("gather_rows_backward", name, seed, 1, move |device, _| {
            let dy = tensor(device, &[&[n], row].concat(), &dy, Dtype::F32)?;
            split(&ops::gather_rows_backward(&dy, &ids, m)?, 1)
        }));
    }
    cases
}

pub(crate) fn scatter_rows() -> Vec<Case> {
    each("scatter_rows", |scene| {
        let mut pool = scene.pool.clone();
        ops::scatter_rows(&mut pool, &scene.list, &scene.some_slots())?;
        Ok(pool)
    })
}

pub(crate) fn copy_slots() -> Vec<Case> {
    each("copy_slots", |scene| {
        let (mut pool, half) = (scene.pool.clone(), scene.n / 2);
        let moves = [
            SlotRange { from: half, to: 0, len: scene.n - half },
            SlotRange { from: 0, to: scene.slots - half, len: half },
            SlotRange { from: 0, to: 0, len: 0 },
        ];
        ops::copy_slots(&mut pool, &scene.list, &moves)?;
        Ok(pool)
    })
}

pub(crate) fn copy_slots_within() -> Vec<Case> {
    each("copy_slots_within", |scene| {
        let (mut pool, len) = (scene.pool.clone(), scene.slots / 2);
        ops::copy_slots_within(&mut pool, SlotRange { from: scene.slots - len, to: 0, len })?;
        Ok(pool)
    })
}
