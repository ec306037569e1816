//! Packed weights: the B operand of matrix products, in the layout of its dtype.
use std::ops::Range;

use half::bf16;

use super::Cpu;
use super::gemm::{self, Beta, Matrix, Panels};
use super::gemm_bf16::{self, PackedA, TilePanels};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::tensor::Tensor;

/// A weight packed for products in one direction. It is packed once per update.
#[derive(Debug)]
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

    /// `y = beta y + x b`, where b is this matrix at the depths `depths` and the columns `columns`, and `x` is
    /// `[N, depths]` in the dtype of b. Both ranges begin at a multiple of 32, and end at one or at the end of the
    /// matrix.
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
                gemm_bf16::product(cpu, &x, w.view().columns(columns).depths(depths), y, beta);
            }
        }
        Ok(())
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
            let forward = Packed::of_weight(cpu, dtype, &w, [33, 70]);
            let back = Packed::of_weight_transposed(cpu, dtype, &w, [33, 70]);
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
