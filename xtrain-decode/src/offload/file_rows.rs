//! Rows of a sequence in blocks of a file, with a checksum.
use std::io;

use half::bf16;
use xtrain_tensor::{Device, Dtype, Stored, Tensor};

use super::blocks::BlockFile;
use crate::cache::KvRows;
use crate::tensor_bytes;

/// Rows in the blocks of a file.
#[derive(Debug)]
pub(crate) struct FileRows {
    first: usize,
    n_layers: usize,
    /// `[len, nkv, elements of a stored head vector]`.
    shape: Vec<usize>,
    dtype: Dtype,
    /// Number of bytes.
    bytes: usize,
    crc32c: u32,
    blocks: Vec<u32>,
}

impl FileRows {
    /// Writes `rows`, which are in host memory and not empty, to free blocks of `file`.
    pub(super) fn write(rows: &KvRows, file: &mut BlockFile) -> io::Result<FileRows> {
        let mut bytes = Vec::with_capacity(rows.bytes());
        let (mut shape, mut dtype) = (Vec::new(), Dtype::F32);
        for t in rows.layers().iter().flatten() {
            (shape, dtype) = (t.shape().to_vec(), t.dtype());
            bytes.extend_from_slice(tensor_bytes::bytes(t).map_err(io::Error::other)?);
        }
        let (first, n_layers, crc32c) = (rows.first(), rows.layers().len(), crc32c::crc32c(&bytes));
        let blocks = file.write(&bytes)?;
        Ok(FileRows { first, n_layers, shape, dtype, bytes: bytes.len(), crc32c, blocks })
    }

    /// Reads the rows back, and frees their blocks. An error if the bytes are not those that were written.
    pub(super) fn read(self, file: &mut BlockFile) -> io::Result<KvRows> {
        let mut bytes = vec![0; self.bytes];
        let read = file.read(&self.blocks, &mut bytes);
        file.release(&self.blocks);
        read?;
        if crc32c::crc32c(&bytes) != self.crc32c {
            let what = "the offload file returned other bytes than were written";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let tensors = bytes.chunks(self.bytes / (2 * self.n_layers)).map(|bytes| match self.dtype {
            Dtype::BF16 => self.tensor::<bf16>(bytes),
            Dtype::U32 => self.tensor::<u32>(bytes),
            _ => self.tensor::<f32>(bytes),
        });
        let tensors: Vec<Tensor> = tensors.collect::<Result<_, _>>().map_err(io::Error::other)?;
        Ok(KvRows::new(self.first, tensors.as_chunks::<2>().0.to_vec()))
    }

    fn tensor<T: Stored + bytemuck::Pod>(&self, bytes: &[u8]) -> xtrain_tensor::Result<Tensor> {
        let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(bytes);
        Tensor::new(&Device::cpu(), &self.shape, values)
    }

    /// Frees the blocks.
    pub(super) fn discard(self, file: &mut BlockFile) {
        file.release(&self.blocks);
    }
}
