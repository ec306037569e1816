//! Weights packed into the panels and tiles of the products: the B operand, in the layout of its dtype.
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use half::bf16;

use super::Cpu;
use super::gemm::{self, Beta, Matrix, Panels, QuantPanels, quantized_product};
use super::gemm_bf16::{self, Output, PackedA, TilePanels};
use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::faults::{self, Fault};
use crate::operands::{Lines, PackedMatrix, Packer, QuantBlock, QuantFormat, RowSink, Weight};
use crate::tensor::Tensor;

/// A weight packed for products in one direction. It is packed once per update.
#[derive(Debug)]
pub(crate) enum Packed {
    F32(Panels),
    /// For bf16 products: a copy of the master weights, rounded to bf16.
    Bf16(TilePanels),
    /// For f32 products with a quantized matrix.
    Quantized(QuantPanels),
}

impl Packed {
    /// Packs `w` `[out, in]` for `x W^T`: depth `in`, columns `out`. Rounds it if `dtype` is bf16.
    pub(crate) fn of_weight(cpu: &Cpu, dtype: Dtype, w: &[f32], shape: [usize; 2]) -> Result<Packed> {
        cpu.packed.fetch_add(1, Ordering::Relaxed);
        Ok(match dtype {
            Dtype::BF16 => Packed::Bf16(TilePanels::of_weight(cpu, w, shape)?),
            _ => Packed::F32(Panels::of_weight(cpu, w, shape)?),
        })
    }

    /// Unpacks column `j`: row `j` of a weight packed for `x W^T`, in which a bf16 denormal is zero of its sign.
    pub(crate) fn column(&self, j: usize, to: &mut [f32]) {
        match self {
            Packed::F32(w) => w.column(j, to),
            Packed::Bf16(w) => w.column(j, to),
            Packed::Quantized(w) => w.column(j, to),
        }
    }

    /// Packs `w` `[out, in]` for `dy W`: depth `out`, columns `in`. Rounds it if `dtype` is bf16.
    pub(crate) fn of_weight_transposed(
        cpu: &Cpu,
        dtype: Dtype,
        w: &[f32],
        shape: [usize; 2],
    ) -> Result<Packed> {
        cpu.packed.fetch_add(1, Ordering::Relaxed);
        Ok(match dtype {
            Dtype::BF16 => Packed::Bf16(TilePanels::of_weight_transposed(cpu, w, shape)?),
            _ => Packed::F32(Panels::of_weight_transposed(cpu, w, shape)?),
        })
    }

    /// `y = beta y + x b`, where b is this matrix at the depths `depths` and the columns `columns`, and `x` is
    /// `[N, depths]` in the dtype of b. Both ranges begin at a multiple of 32, and end at one or at the end of the
    /// matrix.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if b was packed for an instruction set with another order.
    pub(crate) fn product(
        &self,
        cpu: &Cpu,
        x: &Tensor,
        [depths, columns]: [Range<usize>; 2],
        y: &mut [f32],
        beta: Beta,
    ) -> Result<()> {
        let shape = [x.shape()[0], x.width()];
        match self {
            Packed::F32(w) => {
                let x = Matrix::new(x.data()?, shape[0], shape[1]);
                gemm::product(cpu, x, w.view().columns(columns).depths(depths), y, beta);
            }
            Packed::Bf16(w) => {
                let x = PackedA::new(cpu, x.data::<bf16>()?, shape);
                let w = w.view_for(cpu)?.columns(columns).depths(depths);
                gemm_bf16::product(cpu, &x, w, Output::Sum(y, beta));
            }
            Packed::Quantized(w) => {
                assert_eq!(depths, 0..w.depth(), "a quantized matrix is multiplied at all depths");
                quantized_product(cpu, x.data()?, w.view().columns(columns), y, beta, None);
            }
        }
        Ok(())
    }
}

/// Rows of a matrix that contain bf16 denormals, by index. [`TilePanels`] store denormals as zeros.
pub(super) type ExactRows = HashMap<u32, Vec<bf16>>;

/// A weight packed for `x Wᵀ`.
#[derive(Debug)]
pub(super) struct PackedWeight {
    pub(super) matrix: Packed,
    /// The rows with denormals. `None`: they were not kept.
    pub(super) exact_rows: Option<ExactRows>,
}

impl PackedMatrix for PackedWeight {
    fn bytes(&self) -> usize {
        self.matrix.bytes()
    }

    fn block_bytes(&self) -> Option<usize> {
        match &self.matrix {
            Packed::Quantized(w) => Some(w.block_bytes()),
            _ => None,
        }
    }
}

/// Packed for `dy W`.
impl PackedMatrix for Packed {
    fn bytes(&self) -> usize {
        match self {
            Packed::F32(w) => w.bytes(),
            Packed::Bf16(w) => w.bytes(),
            Packed::Quantized(w) => w.bytes(),
        }
    }
}

fn shape_of(w: &Tensor) -> [usize; 2] {
    [w.shape()[0], w.shape()[1]]
}

fn forward(matrix: Packed) -> Box<PackedWeight> {
    Box::new(PackedWeight { matrix, exact_rows: None })
}

pub(super) fn pack(cpu: &Cpu, w: &Tensor, dtype: Dtype) -> Result<Weight> {
    let matrix = forward(Packed::of_weight(cpu, dtype, w.data()?, shape_of(w))?);
    Ok(Weight::from_packed(shape_of(w), dtype, w.device().clone(), Some(w.clone()), matrix))
}

/// Packs `ws` for both directions in one job: one matrix and direction per thread. A matrix that is larger than a
/// thread's share is packed by all threads together.
pub(super) fn pack_for_training(cpu: &Cpu, ws: &[&Tensor], dtype: Dtype) -> Result<Vec<Weight>> {
    let matrices = ws.iter().map(|w| Ok((w.data::<f32>()?, shape_of(w))));
    let matrices = matrices.collect::<Result<Vec<_>>>()?;
    let mut pairs: Vec<[Option<Result<Packed>>; 2]> = ws.iter().map(|_| [None, None]).collect();
    let pack = |i: usize, packed: &mut Option<Result<Packed>>| {
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
        let weight = Weight::from_packed(shape, dtype, w.device().clone(), Some(w.clone()), forward(matrix?));
        Ok(weight.with_backward(Box::new(transposed?)))
    });
    weights.collect()
}

/// The f32 master weights of `w`, or else the values that its products use. Packing either gives the same bits.
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
    let pack = || Packed::of_weight_transposed(cpu, w.dtype(), &values_of(w)?, w.shape());
    w.backward(pack)
}

pub(super) fn packer(cpu: &Cpu, shape: [usize; 2], dtype: Dtype) -> Result<Box<dyn Packer>> {
    let ([out, width], threads, cpu) = (shape, cpu.pool.threads(), cpu.clone());
    Ok(match dtype {
        Dtype::BF16 => {
            let tiles = TilePanels::blank(&cpu, [width, out])?;
            let sink = TileSink { cpu, shape, tiles, exact_rows: None };
            Box::new(Lines::new(sink, shape, threads))
        }
        _ => {
            let panels = Panels::blank(&cpu, [width, out])?;
            let sink = PanelSink { cpu, shape, panels };
            Box::new(Lines::new(sink, shape, threads))
        }
    })
}

/// Packs the blocks of a quantized matrix. The width is a multiple of 32.
pub(super) fn quantized_packer(cpu: &Cpu, shape: [usize; 2], format: QuantFormat) -> Result<Box<dyn Packer>> {
    let ([out, width], threads, cpu) = (shape, cpu.pool.threads(), cpu.clone());
    let panels = QuantPanels::blank(&cpu, [width, out], format)?;
    Ok(Box::new(Lines::new(QuantSink { cpu, shape, panels }, shape, threads)))
}

#[derive(Debug)]
struct QuantSink {
    cpu: Cpu,
    shape: [usize; 2],
    panels: QuantPanels,
}

impl RowSink for QuantSink {
    type Value = QuantBlock;

    fn write(&mut self, first: usize, _width: usize, w: &[QuantBlock]) {
        self.panels.write(&self.cpu, first, w);
    }

    fn finish(self) -> Result<Weight> {
        let matrix = forward(Packed::Quantized(self.panels));
        Ok(Weight::from_packed(self.shape, Dtype::F32, Device::Cpu(self.cpu), None, matrix))
    }
}

#[derive(Debug)]
struct PanelSink {
    cpu: Cpu,
    shape: [usize; 2],
    panels: Panels,
}

impl RowSink for PanelSink {
    type Value = f32;

    fn write(&mut self, first: usize, _width: usize, w: &[f32]) {
        self.panels.write(&self.cpu, first, w);
    }

    fn finish(self) -> Result<Weight> {
        let matrix = forward(Packed::F32(self.panels));
        Ok(Weight::from_packed(self.shape, Dtype::F32, Device::Cpu(self.cpu), None, matrix))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::round_bf16;

    #[test]
    fn both_directions_of_both_dtypes_return_the_packed_elements() {
        let w: Vec<f32> = (0..33 * 70).map(|i| (i as f32).sin()).collect();
        let device = crate::Device::cpu();
        let cpu = device.as_cpu().unwrap();
        for (dtype, value) in [(Dtype::F32, (|x| x) as fn(f32) -> f32), (Dtype::BF16, round_bf16)] {
            let forward = Packed::of_weight(cpu, dtype, &w, [33, 70]).unwrap();
            let back = Packed::of_weight_transposed(cpu, dtype, &w, [33, 70]).unwrap();
            for (packed, [out, width]) in [(forward, [33, 70]), (back, [70, 33])] {
                let mut column = vec![0.0; width];
                for j in 0..out {
                    packed.column(j, &mut column);
                    let want = |k: usize| value(if out == 33 { w[j * 70 + k] } else { w[k * 70 + j] });
                    assert!(column.iter().enumerate().all(|(k, &x)| x == want(k)), "column {j} in {dtype}");
                }
            }
        }
    }
}
