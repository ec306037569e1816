//! Keys and values outside a cache: copies of the rows of consecutive positions.
use half::bf16;
use xtrain_model::Result;
use xtrain_tensor::{Device, Dtype, Stored, Tensor};

/// The keys and values of the positions `first..first + len` of a sequence, in every layer.
///
/// They do not depend on the kind of cache or on its page size: the rows that one cache has read can be written to
/// another one of the same shape.
#[derive(Debug, Clone)]
pub struct KvRows {
    first: usize,
    /// Keys and values of each layer as the cache stores them: `[len, nkv, hd]`, in int8 `[len, nkv, words]` u32.
    layers: Vec<[Tensor; 2]>,
}

impl KvRows {
    /// The rows from position `first` on: keys and values `[len, nkv, hd]` of each layer.
    pub fn new(first: usize, layers: Vec<[Tensor; 2]>) -> KvRows {
        KvRows { first, layers }
    }

    /// The first position.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Number of positions.
    pub fn len(&self) -> usize {
        self.layers.first().map_or(0, |[k, _]| k.shape()[0])
    }

    /// There are no positions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One past the last position.
    pub fn end(&self) -> usize {
        self.first + self.len()
    }

    /// Keys and values `[len, nkv, hd]` of each layer.
    pub fn layers(&self) -> &[[Tensor; 2]] {
        &self.layers
    }

    /// Bytes of the keys and values: positions x bytes per token.
    pub fn bytes(&self) -> usize {
        self.layers.iter().flatten().map(|t| t.len() * t.dtype().bytes()).sum()
    }

    /// The first `len` of the rows, which are in host memory and at least `len`.
    pub(crate) fn truncated(&self, len: usize) -> KvRows {
        fn first<T: Stored>(t: &Tensor, len: usize) -> Result<Tensor> {
            let (n, width) = (t.shape()[0], t.len() / t.shape()[0].max(1));
            let shape = [&[len.min(n)], &t.shape()[1..]].concat();
            Ok(Tensor::new(t.device(), &shape, t.data::<T>()?[..shape[0] * width].to_vec())?)
        }
        let cut = |t: &Tensor| match t.dtype() {
            Dtype::BF16 => first::<bf16>(t, len),
            Dtype::U32 => first::<u32>(t, len),
            _ => first::<f32>(t, len),
        };
        let cut = |t: &Tensor| cut(t).expect("the rows are in host memory");
        KvRows { first: self.first, layers: self.layers.iter().map(|[k, v]| [cut(k), cut(v)]).collect() }
    }

    /// The same rows on `device`.
    ///
    /// # Errors
    /// If a device has no memory for them.
    pub fn to_device(&self, device: &Device) -> Result<KvRows> {
        let moved = |[k, v]: &[Tensor; 2]| Ok([k.to_device(device)?, v.to_device(device)?]);
        Ok(KvRows { first: self.first, layers: self.layers.iter().map(moved).collect::<Result<_>>()? })
    }

    /// The same rows in host memory.
    ///
    /// # Errors
    /// If a device fails.
    pub fn to_host(&self) -> Result<KvRows> {
        let moved = |[k, v]: &[Tensor; 2]| Ok([k.to_host()?, v.to_host()?]);
        Ok(KvRows { first: self.first, layers: self.layers.iter().map(moved).collect::<Result<_>>()? })
    }
}
