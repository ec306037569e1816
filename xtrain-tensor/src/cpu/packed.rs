//! Packed weights: the B operand of matrix products, in the layout of its dtype.
use std::ops::Range;

use super::Cpu;
use super::gemm::{self, Panels};
use super::gemm_bf16::{self, TilePanels};
use crate::Dtype;

/// A weight packed for products in one direction. It is packed once per update.
#[derive(Debug, Clone)]
pub(crate) enum Packed {
    /// For f32 products.
    F32(Panels),
    /// For bf16 products: a copy of the master weights, rounded to bf16.
    Bf16(TilePanels),
}

impl Packed {
    /// Packs `w` `[out, in]` for `x W^T`: depth `in`, columns `out`. Rounds it if `dtype` is bf16.
    pub(crate) fn of_weight(cpu: &Cpu, dtype: Dtype, w: &[f32], shape: [usize; 2]) -> Packed {
        match dtype {
            Dtype::BF16 => Packed::Bf16(TilePanels::of_weight(cpu, w, shape)),
            _ => Packed::F32(Panels::of_weight(cpu, w, shape)),
        }
    }

    /// Unpacks column `j`. For a weight packed for `x W^T` this is row `j`, with the values that products use: a bf16
    /// denormal is zero of its sign.
    pub(crate) fn column(&self, j: usize, to: &mut [f32]) {
        match self {
            Packed::F32(w) => w.column(j, to),
            Packed::Bf16(w) => w.column(j, to),
        }
    }

    /// Packs `w` `[out, in]` for `dy W`: depth `out`, columns `in`. Rounds it if `dtype` is bf16.
    pub(crate) fn of_weight_transposed(cpu: &Cpu, dtype: Dtype, w: &[f32], shape: [usize; 2]) -> Packed {
        match dtype {
            Dtype::BF16 => Packed::Bf16(TilePanels::of_weight_transposed(cpu, w, shape)),
            _ => Packed::F32(Panels::of_weight_transposed(cpu, w, shape)),
        }
    }
}

/// A range of columns or of the depth of a packed weight.
#[derive(Debug, Clone, Copy)]
pub(crate) enum View<'a> {
    /// For f32 products.
    F32(gemm::View<'a>),
    /// For bf16 products.
    Bf16(gemm_bf16::View<'a>),
}

impl Packed {
    /// The columns `range`. It starts at a multiple of 32.
    pub(crate) fn columns(&self, range: Range<usize>) -> View<'_> {
        match self {
            Packed::F32(w) => View::F32(w.view().columns(range)),
            Packed::Bf16(w) => View::Bf16(w.view().columns(range)),
        }
    }

    /// All columns at the depths `range`. It starts at a multiple of 32.
    pub(crate) fn depths(&self, range: Range<usize>) -> View<'_> {
        match self {
            Packed::F32(w) => View::F32(w.view().depths(range)),
            Packed::Bf16(w) => View::Bf16(w.view().depths(range)),
        }
    }
}

#[cfg(test)]
impl Packed {
    /// `[depth, columns]`.
    pub(crate) fn shape(&self) -> [usize; 2] {
        match self {
            Packed::F32(w) => w.shape(),
            Packed::Bf16(w) => w.shape(),
        }
    }

    /// The element at depth `k` of column `column`. For a weight packed for `x W^T` this is element `k` of row
    /// `column`. In bf16 it is the value that products use: rounded, a denormal as zero of its sign.
    pub(crate) fn at(&self, column: usize, k: usize) -> f32 {
        match self {
            Packed::F32(w) => w.at(k, column),
            Packed::Bf16(w) => w.at(k, column),
        }
    }

    /// Size in bytes, including padding.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Packed::F32(w) => w.bytes(),
            Packed::Bf16(w) => w.bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round_bf16;

    #[test]
    fn both_directions_of_both_dtypes_return_the_packed_elements() {
        let w: Vec<f32> = (0..33 * 70).map(|i| (i as f32).sin()).collect();
        let device = crate::Device::cpu();
        let cpu = device.as_cpu().unwrap();
        for (dtype, value) in [(Dtype::F32, (|x| x) as fn(f32) -> f32), (Dtype::BF16, round_bf16)] {
            let forward = Packed::of_weight(cpu, dtype, &w, [33, 70]);
            let back = Packed::of_weight_transposed(cpu, dtype, &w, [33, 70]);
            assert_eq!((forward.shape(), back.shape()), ([70, 33], [33, 70]));
            for (i, &x) in w.iter().enumerate() {
                assert_eq!(forward.at(i / 70, i % 70), value(x));
                assert_eq!(back.at(i % 70, i / 70), value(x));
            }
            let size = dtype.bytes();
            assert!(forward.bytes() >= 33 * 70 * size && back.bytes() >= 33 * 70 * size);
        }
    }
}
