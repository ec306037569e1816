//! The rows of offloaded layers in a file or in host memory, in blocks with checksums.
use std::io;
use std::ops::Range;
use std::sync::Arc;

use xtrain_tensor::Tensor;
use xtrain_tensor::faults::{self, Fault};

use crate::storage::Storage;
use crate::tensor_bytes::bytes_mut;

/// Slots of a block, which is written as a whole.
pub(super) const BLOCK: usize = 64;

/// The most blocks that are read or copied at a time.
pub(super) const BLOCKS_AT_A_TIME: usize = 64;

/// Bytes of the checksums of the keys and values of a layer with `n_slots` slots.
pub(super) fn checksum_bytes(n_slots: usize) -> usize {
    2 * n_slots.div_ceil(BLOCK) * size_of::<Option<u32>>()
}

/// The rows of layers, one layer after another: the keys of all slots, then the values.
#[derive(Debug)]
pub(super) struct LayerFile {
    storage: Arc<dyn Storage>,
    n_slots: usize,
    /// Bytes of the key or the value of a slot.
    row_bytes: usize,
    /// CRC-32C of each block of keys and of values of each layer. `None`: it was never written.
    checksums: Vec<[Vec<Option<u32>>; 2]>,
}

impl LayerFile {
    /// `n_layers` layers of `n_slots` slots, none of which is written.
    pub(super) fn new(
        storage: Arc<dyn Storage>,
        n_layers: usize,
        n_slots: usize,
        row_bytes: usize,
    ) -> LayerFile {
        let none = || vec![None; n_slots.div_ceil(BLOCK)];
        let checksums = (0..n_layers).map(|_| [none(), none()]).collect();
        LayerFile { storage, n_slots, row_bytes, checksums }
    }

    /// The slots of a block. The last one may have fewer.
    pub(super) fn slots(&self, block: usize) -> Range<usize> {
        block * BLOCK..self.n_slots.min((block + 1) * BLOCK)
    }

    /// Where the keys (`which` = 0) or the values (1) of a layer begin.
    fn offset(&self, layer: usize, which: usize) -> u64 {
        ((2 * layer + which) * self.n_slots * self.row_bytes) as u64
    }

    /// Writes a block of the keys (`which` = 0) or the values (1) of a layer. After an error the block is that of
    /// before, or reading it is an error.
    pub(super) fn write(&mut self, layer: usize, which: usize, block: usize, bytes: &[u8]) -> io::Result<()> {
        let offset = self.offset(layer, which) + (block * BLOCK * self.row_bytes) as u64;
        self.storage.write_at(bytes, offset)?;
        self.checksums[layer][which][block] = Some(crc32c::crc32c(bytes));
        Ok(())
    }

    /// What reading a layer needs.
    pub(super) fn read(&self, layer: usize) -> ReadLayer {
        ReadLayer {
            storage: self.storage.clone(),
            offsets: [0, 1].map(|which| self.offset(layer, which)),
            block_bytes: BLOCK * self.row_bytes,
            checksums: self.checksums[layer].clone(),
            is_checked: !faults::on(Fault::OffloadedLayerUnchecked),
        }
    }
}

/// Reads the keys and values of one layer.
#[derive(Debug)]
pub(super) struct ReadLayer {
    storage: Arc<dyn Storage>,
    offsets: [u64; 2],
    block_bytes: usize,
    checksums: [Vec<Option<u32>>; 2],
    is_checked: bool,
}

impl ReadLayer {
    /// Reads the blocks that were written to their slots in `kv`, which is in host memory. Other slots keep what they
    /// have. An error if a block does not have the bytes that were written.
    pub(super) fn run(&self, kv: &mut [Tensor; 2]) -> io::Result<()> {
        for ((tensor, &offset), checksums) in kv.iter_mut().zip(&self.offsets).zip(&self.checksums) {
            let bytes = bytes_mut(tensor).map_err(io::Error::other)?;
            let mut first = 0;
            for run in checksums.chunk_by(|a, b| a.is_some() == b.is_some()) {
                // in parts, so that blocks of another layer can be written to host memory in between
                for part in run.chunks(BLOCKS_AT_A_TIME) {
                    if part[0].is_some() {
                        let start = first * self.block_bytes;
                        let end = bytes.len().min(start + part.len() * self.block_bytes);
                        self.storage.read_at(&mut bytes[start..end], offset + start as u64)?;
                        self.check(&bytes[start..end], part)?;
                    }
                    first += part.len();
                }
            }
        }
        Ok(())
    }

    fn check(&self, bytes: &[u8], checksums: &[Option<u32>]) -> io::Result<()> {
        let mut blocks = bytes.chunks(self.block_bytes).zip(checksums);
        if self.is_checked && blocks.any(|(block, checksum)| Some(crc32c::crc32c(block)) != *checksum) {
            let what = "the offload file returned other bytes than were written";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::disk::Offsets;

    #[test]
    fn layers_beyond_4_gib_have_places_of_their_own() {
        let offsets = Offsets::default();
        let (slots, row_bytes) = (1 << 22, 1024);
        let mut file = LayerFile::new(Arc::new(offsets.clone()), 3, slots, row_bytes);
        file.write(2, 1, 5, &[0; 8]).unwrap();
        // five keys and values of whole layers, of 4 GiB each, and five blocks
        assert_eq!(offsets.take(), [(5 << 32) + 5 * (BLOCK * row_bytes) as u64]);
        assert_eq!(file.read(2).offsets, [4 << 32, 5 << 32]);
    }
}
