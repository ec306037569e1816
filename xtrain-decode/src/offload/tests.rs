//! Rows through the store: the same bits, within the limit, and no error that a caller has to handle.
use std::io;

use half::bf16;
use xtrain_tensor::rng::{Purpose, draw};
use xtrain_tensor::{Device, Dtype, Tensor};

use super::blocks::BLOCK;
use super::*;
use crate::storage::disk::Disk;

impl Disk {
    /// A store in this file.
    pub(crate) fn store(&self) -> OffloadStore {
        OffloadStore::in_storage(Box::new(self.clone()), 8 << 20)
    }
}

/// Rows of `n` positions from `first` on, with values of `seed`.
fn rows(dtype: Dtype, first: usize, n: usize, seed: u32) -> KvRows {
    let tensor = |which: u32| {
        let bits = |at: u32| draw(u64::from(seed), u64::from(which), at, Purpose::DataOrder)[0];
        let (shape, elements) = ([n, 2, 64], 0..(n * 128) as u32);
        match dtype {
            Dtype::BF16 => {
                let values: Vec<bf16> = elements.map(|at| bf16::from_bits(bits(at) as u16)).collect();
                Tensor::new(&Device::cpu(), &shape, values)
            }
            Dtype::U32 => Tensor::new(&Device::cpu(), &shape, elements.map(bits).collect()),
            _ => Tensor::new(&Device::cpu(), &shape, elements.map(|at| f32::from_bits(bits(at))).collect()),
        }
        .unwrap()
    };
    KvRows::new(first, (0..3).map(|layer| [tensor(2 * layer), tensor(2 * layer + 1)]).collect())
}

fn bits(rows: &KvRows) -> Vec<u32> {
    let tensors = rows.layers().iter().flatten();
    tensors
        .flat_map(|t| match t.dtype() {
            Dtype::BF16 => {
                t.data::<bf16>().unwrap().iter().map(|x| u32::from(x.to_bits())).collect::<Vec<_>>()
            }
            Dtype::U32 => t.data::<u32>().unwrap().to_vec(),
            _ => t.data::<f32>().unwrap().iter().map(|x| x.to_bits()).collect(),
        })
        .collect()
}

fn stores(limit: usize) -> [OffloadStore; 3] {
    let dir = std::env::temp_dir();
    [
        OffloadStore::in_memory(limit),
        OffloadStore::in_directory(&dir, limit).unwrap(),
        OffloadStore::in_storage(Box::new(Disk::default()), limit),
    ]
}

#[test]
fn rows_return_with_their_bits_and_leave_no_bytes() {
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::U32] {
        for mut store in stores(8 << 20) {
            let mut held: Vec<(KvRows, Offloaded)> = Vec::new();
            for step in 0..200 {
                let [act, n, first, which] = draw(5, 0, step, Purpose::DataOrder);
                if act % 2 == 0 || held.is_empty() {
                    let rows = rows(dtype, first as usize % 50, 1 + n as usize % 60, step);
                    let Some(offloaded) = store.put(rows.clone()) else { continue };
                    held.push((rows, offloaded));
                } else {
                    let (want, offloaded) = held.swap_remove(which as usize % held.len());
                    if act % 8 == 1 {
                        store.discard(offloaded);
                        continue;
                    }
                    let got = store.take(offloaded).unwrap();
                    assert_eq!((got.first(), got.end()), (want.first(), want.end()));
                    assert!(bits(&got) == bits(&want), "step {step}");
                }
            }
            for (_, offloaded) in held {
                store.discard(offloaded);
            }
            assert_eq!(store.used(), 0);
            assert!(store.error().is_none());
        }
    }
}

#[test]
fn a_full_store_refuses_and_accepts_again() {
    let one = rows(Dtype::F32, 0, 10, 1).bytes();
    for mut store in stores(2 * one.next_multiple_of(BLOCK)) {
        let put = |store: &mut OffloadStore| store.put(rows(Dtype::F32, 0, 10, 1));
        let all: Vec<Offloaded> = std::iter::from_fn(|| put(&mut store)).take(100).collect();
        assert!(
            (2..=4).contains(&all.len()) && !store.fits(2 * one.next_multiple_of(BLOCK)),
            "{}",
            all.len()
        );
        for offloaded in all {
            store.discard(offloaded);
        }
        let again = put(&mut store).unwrap();
        assert!(store.take(again).is_some() && store.used() == 0 && store.error().is_none());
    }
    for mut store in stores(BLOCK - 1) {
        let large = store.put(rows(Dtype::F32, 0, 40, 1));
        assert!(large.is_none());
    }
}

#[test]
fn after_a_disk_error_the_store_refuses_everything() {
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::Other] {
        for at_read in [false, true] {
            let disk = Disk::default();
            let mut store = disk.store();
            let first = store.put(rows(Dtype::F32, 0, 40, 1)).unwrap();
            disk.fail(Some(kind));
            if at_read {
                assert!(store.take(first).is_none());
            } else {
                assert!(store.put(rows(Dtype::F32, 0, 40, 2)).is_none());
                disk.fail(None);
                assert!(store.take(first).is_some(), "what was written before can be read");
            }
            disk.fail(None);
            assert_eq!(store.error().map(io::Error::kind), Some(kind));
            assert!(store.put(rows(Dtype::F32, 0, 1, 3)).is_none());
            assert_eq!(store.used(), 0);
        }
    }
}

#[test]
fn changed_bytes_of_the_file_are_an_error() {
    let disk = Disk::default();
    let mut store = disk.store();
    let offloaded = store.put(rows(Dtype::BF16, 0, 40, 1)).unwrap();
    disk.damage(12345);
    assert!(store.take(offloaded).is_none());
    assert_eq!(store.error().map(io::Error::kind), Some(io::ErrorKind::InvalidData));
}

#[test]
fn the_file_has_no_name_and_its_directory_must_exist() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("offloaded");
    assert!(OffloadStore::in_directory(&dir, 1 << 20).is_err());
    std::fs::create_dir(&dir).unwrap();
    let mut store = OffloadStore::in_directory(&dir, 1 << 20).unwrap();
    let offloaded = store.put(rows(Dtype::F32, 0, 10, 1)).unwrap();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    store.discard(offloaded);
}

#[test]
fn the_default_store_holds_a_gibibyte() {
    assert_eq!(OffloadStore::default().limit, 1024 * 1024 * 1024);
}

/// The blocks that a store in memory and two files take for rows of two blocks, where the limit is one and a half.
fn taken_of_a_limit_within_a_block() -> [usize; 3] {
    let (rows, limit) = (rows(Dtype::F32, 0, 25, 1), BLOCK + BLOCK / 2);
    assert!(rows.bytes() > BLOCK && rows.bytes() < limit);
    stores(limit).map(|mut store| {
        let fits = store.fits(rows.bytes());
        assert!(store.put(rows.clone()).is_some() == fits && store.error().is_none());
        store.used().div_ceil(BLOCK)
    })
}

#[test]
fn the_blocks_of_a_file_stay_within_its_limit() {
    assert_eq!(taken_of_a_limit_within_a_block(), [2, 0, 0], "memory has no blocks");
}

#[test]
#[cfg(feature = "faults")]
fn a_block_beyond_the_limit_is_found() {
    use xtrain_tensor::faults::{self, Fault};

    let taken = faults::with(Fault::OffloadLimitRoundedUp, taken_of_a_limit_within_a_block);
    assert_eq!(taken, [2, 2, 2]);
}
