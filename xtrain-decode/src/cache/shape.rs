//! The shape of the keys and values of one position.
use std::ops::Range;

use xtrain_model::{Model, Result, Rows};
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::Int8Head;
use xtrain_tensor::{Device, Dtype, Error, Tensor};

use super::kind::KvDtype;
use super::kv_rows::KvRows;

/// The shape of the keys and values of one position, and their device.
#[derive(Debug, Clone)]
pub struct CacheShape {
    /// Number of layers.
    pub n_layers: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// The model's compute dtype: f32 or bf16.
    pub dtype: Dtype,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
    /// The device of the keys and values.
    pub device: Device,
}

impl CacheShape {
    /// The shape of a model's keys and values, stored in the compute dtype.
    pub fn of(model: &Model) -> CacheShape {
        let cfg = model.config();
        CacheShape {
            n_layers: cfg.n_layers,
            n_kv_heads: cfg.n_kv_heads,
            head_dim: cfg.head_dim,
            dtype: model.compute(),
            kv_dtype: KvDtype::Compute,
            device: model.device().clone(),
        }
    }

    /// The same keys and values, stored as `kv_dtype`.
    #[must_use]
    pub fn stored_as(self, kv_dtype: KvDtype) -> CacheShape {
        CacheShape { kv_dtype, ..self }
    }

    /// 2 x layers x kv heads x head size x bytes of the dtype. In int8, a head vector has one byte for each value,
    /// rounded up to a multiple of four, and four bytes for its scale.
    pub fn bytes_per_token(&self) -> usize {
        self.n_layers * self.layer_bytes_per_token()
    }

    /// Bytes of the key and the value of one position in one layer.
    pub(super) fn layer_bytes_per_token(&self) -> usize {
        let (len, dtype) = self.stored_head();
        2 * self.n_kv_heads * len * dtype.bytes()
    }

    /// Bytes that the keys or the values of `slots` slots of a layer allocate on `device`. A cache without slots has no
    /// tensor for them.
    pub(super) fn pool_bytes(&self, slots: u64, device: &Device) -> u64 {
        if slots == 0 {
            return 0;
        }
        let (len, dtype) = self.stored_head();
        let elements = slots.saturating_mul((self.n_kv_heads * len) as u64);
        device.allocated_bytes(usize::try_from(elements).unwrap_or(usize::MAX), dtype) as u64
    }

    /// The number of elements of a stored head vector, and their dtype.
    pub(super) fn stored_head(&self) -> (usize, Dtype) {
        match self.kv_dtype {
            KvDtype::Compute => (self.head_dim, self.dtype),
            KvDtype::Int8 => (Int8Head::words(self.head_dim), Dtype::U32),
        }
    }

    /// `n` rows of zeros `[n, nkv, elements of a stored head vector]`.
    pub(super) fn zeros(&self, n: usize) -> Result<Tensor> {
        let (len, dtype) = self.stored_head();
        Ok(Tensor::zeros(&self.device, &[n, self.n_kv_heads, len], dtype)?)
    }

    /// Checks that `k` and `v` are `[N, nkv, hd]` for the `N` rows, in the dtype of the cache.
    pub(super) fn check(&self, k: &Tensor, v: &Tensor, rows: &Rows) -> Result<()> {
        let want = [rows.len(), self.n_kv_heads, self.head_dim];
        if k.shape() != want || v.shape() != want {
            let got = vec![k.shape().to_vec(), v.shape().to_vec()];
            return Err(Error::Shape { op: "cache", want: "k and v [N, nkv, hd]", got }.into());
        }
        match [k, v].iter().find(|t| t.dtype() != self.dtype) {
            Some(t) => Err(Error::Dtype { op: "cache", want: "the cache's dtype", got: t.dtype() }.into()),
            None => Ok(()),
        }
    }

    /// Checks that `rows` have this shape and dtype, and all `positions` of `seq`.
    pub(super) fn check_rows(&self, rows: &KvRows, seq: u32, positions: Range<usize>) -> Result<()> {
        if rows.first() > positions.start || rows.end() < positions.end {
            let is_late = rows.first() > positions.start;
            let (want, got) =
                if is_late { (positions.start, rows.first()) } else { (positions.end, rows.end()) };
            let (want, got) = (want as u32, got as u32);
            return Err(xtrain_model::Error::CachePosition { layer: 0, seq, want, got });
        }
        let (len, dtype) = self.stored_head();
        let want = [rows.len(), self.n_kv_heads, len];
        let tensors = || rows.layers().iter().flatten();
        if rows.layers().len() != self.n_layers || tensors().any(|t| t.shape() != want) {
            let got = tensors().map(|t| t.shape().to_vec()).collect();
            return Err(Error::Shape { op: "cache", want: "k and v [N, nkv, hd] of each layer", got }.into());
        }
        match tensors().find(|t| t.dtype() != dtype) {
            Some(t) => Err(Error::Dtype { op: "cache", want: "the cache's dtype", got: t.dtype() }.into()),
            None => Ok(()),
        }
    }

    /// The planted fault: the rows that `layer` stores as zeros, and the zeros. `None`: all rows are stored as given.
    pub(super) fn dropped_rows(&self, layer: usize, rows: &Rows) -> Result<Option<(Vec<u32>, Tensor)>> {
        if !faults::on(Fault::DroppedCacheWrite) || layer + 1 < self.n_layers {
            return Ok(None);
        }
        let dropped: Vec<u32> = (0..rows.len() as u32).filter(|&n| rows.pos[n as usize] == 2).collect();
        let zeros = self.zeros(dropped.len())?;
        Ok(Some((dropped, zeros)).filter(|(dropped, _)| !dropped.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use xtrain_tensor::ThreadSchedule;
    use xtrain_tensor::testing::available_gpus;

    use super::*;

    #[test]
    fn a_pool_takes_the_memory_that_its_device_allocates() {
        let shape = CacheShape {
            n_layers: 2,
            n_kv_heads: 3,
            head_dim: 20,
            dtype: Dtype::F32,
            kv_dtype: KvDtype::Compute,
            device: Device::cpu(),
        };
        // 16,800 bytes: one of eight sizes per power of two; on a GPU a block of the memory pool
        assert_eq!([0, 70].map(|slots| shape.pool_bytes(slots, &Device::cpu())), [0, 4 * 4608]);
        for gpu in available_gpus(&[ThreadSchedule::Forward]) {
            assert_eq!([0, 70].map(|slots| shape.pool_bytes(slots, &gpu)), [0, 20_480], "{gpu}");
        }
    }
}
