//! Weights packed into the panels and tiles of the products.
use std::borrow::Cow;
use std::collections::HashMap;

use half::bf16;

use super::Cpu;
use super::gemm::Panels;
use super::gemm_bf16::TilePanels;
use super::packed::Packed;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::faults::{self, Fault};
use crate::operands::{Lines, PackedMatrix, Packer, RowSink, Weight};
use crate::tensor::Tensor;

/// Rows of a matrix that contain bf16 denormals, by index. [`TilePanels`] store denormals as zeros.
pub(super) type ExactRows = HashMap<u32, Vec<bf16>>;

/// A weight packed for `x Wᵀ`.
#[derive(Debug)]
pub(super) struct PackedWeight {
    pub(super) matrix: Packed,
    /// The rows with denormals. `None`: they were not kept.
    pub(super) exact_rows: Option<ExactRows>,
}

/// A weight packed for `dy W`.
#[derive(Debug)]
struct PackedTransposed(Packed);

impl PackedMatrix for PackedWeight {}
impl PackedMatrix for PackedTransposed {}

fn shape_of(w: &Tensor) -> [usize; 2] {
    [w.shape()[0], w.shape()[1]]
}

fn forward(matrix: Packed) -> Box<PackedWeight> {
    Box::new(PackedWeight { matrix, exact_rows: None })
}

/// Packs the f32 matrix `w` for products in `dtype`.
pub(super) fn pack(cpu: &Cpu, w: &Tensor, dtype: Dtype) -> Result<Weight> {
    let matrix = forward(Packed::of_weight(cpu, dtype, w.data()?, shape_of(w)));
    Ok(Weight::from_packed(shape_of(w), dtype, w.device().clone(), Some(w.clone()), matrix))
}

/// Packs `ws` for both directions in one job: one matrix and direction per thread. A matrix that is larger than a
/// thread's share is packed by all threads together.
pub(super) fn pack_for_training(cpu: &Cpu, ws: &[&Tensor], dtype: Dtype) -> Result<Vec<Weight>> {
    let matrices = ws.iter().map(|w| Ok((w.data::<f32>()?, shape_of(w))));
    let matrices = matrices.collect::<Result<Vec<_>>>()?;
    let mut pairs: Vec<[Option<Packed>; 2]> = ws.iter().map(|_| [None, None]).collect();
    let pack = |i: usize, packed: &mut Option<Packed>| {
        let (w, shape) = matrices[i / 2];
        *packed = Some(match i % 2 {
            0 => Packed::of_weight(cpu, dtype, w, shape),
            _ => Packed::of_weight_transposed(cpu, dtype, w, shape),
        });
    };
    let (packed, total) = (pairs.as_flattened_mut(), ws.iter().map(|w| w.len()).sum::<usize>());
    let long = |i: usize| ws[i / 2].len() * cpu.pool.threads() > total;
    packed.iter_mut().enumerate().filter(|(i, _)| long(*i)).for_each(|(i, one)| pack(i, one));
    cpu.pool.parts(packed, 1, |i, one| {
        if !long(i) {
            pack(i, &mut one[0])
        }
    });
    let weights = pairs.into_iter().zip(ws).zip(&matrices).map(|((packed, &w), &(_, shape))| {
        let [matrix, transposed] = packed.map(|p| p.expect("all matrices were packed"));
        Weight::from_packed(shape, dtype, w.device().clone(), Some(w.clone()), forward(matrix))
            .with_backward(Box::new(PackedTransposed(transposed)))
    });
    Ok(weights.collect())
}

/// The f32 master weights of `w`, or, without them, the values that its products use. Packing either gives the same
/// bits.
pub(super) fn values_of(w: &Weight) -> Result<Cow<'_, [f32]>> {
    if let Some(master) = w.master() {
        return Ok(Cow::Borrowed(master.data()?));
    }
    let matrix = &w.forward::<PackedWeight>()?.matrix;
    let mut values = vec![0.0; w.out_features() * w.in_features()];
    values.chunks_exact_mut(w.in_features()).enumerate().for_each(|(j, row)| matrix.column(j, row));
    Ok(Cow::Owned(values))
}

/// The matrix of `w` for `dy W`, packed at its first use.
pub(super) fn backward_of<'a>(cpu: &Cpu, w: &'a Weight) -> Result<&'a Packed> {
    let pack = || {
        let (values, shape) = (values_of(w)?, [w.out_features(), w.in_features()]);
        Ok(PackedTransposed(Packed::of_weight_transposed(cpu, w.dtype(), &values, shape)))
    };
    Ok(&w.backward::<PackedTransposed>(pack)?.0)
}

/// A packer for products in `dtype`.
pub(super) fn packer(cpu: &Cpu, shape: [usize; 2], dtype: Dtype) -> Box<dyn Packer> {
    let ([out, width], threads, cpu) = (shape, cpu.pool.threads(), cpu.clone());
    match dtype {
        Dtype::BF16 => {
            let sink = TileSink { cpu, shape, tiles: TilePanels::blank([width, out]), exact_rows: None };
            Box::new(Lines::new(sink, shape, threads))
        }
        _ => {
            let sink = PanelSink { cpu, shape, panels: Panels::blank([width, out]) };
            Box::new(Lines::new(sink, shape, threads))
        }
    }
}

/// Packs f32 rows into panels.
#[derive(Debug)]
struct PanelSink {
    cpu: Cpu,
    shape: [usize; 2],
    panels: Panels,
}

impl RowSink for PanelSink {
    type Value = f32;

    /// Panels hold every value exactly.
    fn keep_exact_rows(&mut self) {}

    fn write(&mut self, first: usize, _width: usize, w: &[f32]) {
        self.panels.write(&self.cpu, first, w);
    }

    fn finish(self) -> Result<Weight> {
        let matrix = forward(Packed::F32(self.panels));
        Ok(Weight::from_packed(self.shape, Dtype::F32, Device::Cpu(self.cpu), None, matrix))
    }
}

/// Packs bf16 rows into tiles.
#[derive(Debug)]
struct TileSink {
    cpu: Cpu,
    shape: [usize; 2],
    tiles: TilePanels,
    exact_rows: Option<ExactRows>,
}

impl RowSink for TileSink {
    type Value = bf16;

    fn keep_exact_rows(&mut self) {
        self.exact_rows = Some(ExactRows::new());
    }

    fn write(&mut self, first: usize, width: usize, w: &[bf16]) {
        self.tiles.write(&self.cpu, first, w);
        if let Some(exact_rows) = &mut self.exact_rows {
            keep_denormal_rows(exact_rows, first, w.chunks_exact(width));
        }
    }

    fn finish(self) -> Result<Weight> {
        let matrix = PackedWeight { matrix: Packed::Bf16(self.tiles), exact_rows: self.exact_rows };
        Ok(Weight::from_packed(self.shape, Dtype::BF16, Device::Cpu(self.cpu), None, Box::new(matrix)))
    }
}

/// Keeps the rows that contain a denormal. `first` is the index of the first row.
fn keep_denormal_rows<'a>(exact: &mut ExactRows, first: usize, rows: impl Iterator<Item = &'a [bf16]>) {
    if faults::on(Fault::EmbeddingDenormalFlushed) {
        return;
    }
    let denormal = |x: &bf16| (x.to_bits() & 0x7f80 == 0) & (x.to_bits() & 0x7f != 0);
    for (at, row) in rows.enumerate() {
        // a disjunction over all values is vectorized
        if row.iter().fold(false, |any, x| any | denormal(x)) {
            exact.insert((first + at) as u32, row.to_vec());
        }
    }
}
