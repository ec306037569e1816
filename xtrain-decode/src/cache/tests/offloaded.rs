//! Caches of which two layers of three are in memory.
use std::io::ErrorKind;
use std::sync::Arc;

use super::*;
use crate::cache::LayerOffload;
use crate::cache::layer_file::checksum_bytes;
use crate::storage::disk::Disk;

/// Part of the names of these caches.
pub(super) const NAME: &str = "offloaded";

/// Bytes of two layers and of the checksums of all.
fn two_layers(shape: &CacheShape, slots: usize) -> usize {
    2 * slots * shape.layer_bytes_per_token() + LAYERS * checksum_bytes(slots)
}

/// A paged cache with two layers in memory.
fn paged(shape: CacheShape, room: Room, page: usize, disk: &Disk) -> Paged {
    let resident = two_layers(&shape, room.sequences * room.positions.next_multiple_of(page));
    let offload = LayerOffload::in_storage(Arc::new(disk.clone()), resident, usize::MAX);
    Paged::new(shape, room, page, KvMemory::offloading(offload)).unwrap()
}

/// Caches in host memory, in a file, and in a file in memory.
pub(super) fn kinds(dtype: Dtype, room: Room) -> Vec<(String, Box<dyn Cache>)> {
    let shape = shape(dtype);
    let resident = two_layers(&shape, room.sequences * room.positions);
    let in_memory = KvMemory::offloading(LayerOffload::in_memory(resident, usize::MAX));
    let in_file = LayerOffload::in_directory(&std::env::temp_dir(), resident, usize::MAX).unwrap();
    let int8 = shape.clone().stored_as(KvDtype::Int8);
    let all: [Box<dyn Cache>; 4] = [
        Box::new(Contiguous::new(shape.clone(), room, in_memory).unwrap()),
        Box::new(Contiguous::new(shape.clone(), room, KvMemory::offloading(in_file)).unwrap()),
        Box::new(paged(shape, room, 5, &Disk::default())),
        Box::new(paged(int8, room, 16, &Disk::default())),
    ];
    all.into_iter().map(|cache| (format!("{} {dtype} {NAME}", cache.kind()), cache)).collect()
}

#[test]
fn host_memory_has_the_size_of_the_layers_that_do_not_stay() {
    let (shape, slots) = (shape(Dtype::F32), 64);
    let memory = KvMemory::offloading(LayerOffload::in_memory(0, usize::MAX));
    for n_resident in 0..LAYERS {
        let bytes = ((LAYERS - n_resident) * slots * shape.layer_bytes_per_token()) as u64;
        let storage = memory.storage(&shape, n_resident, slots).unwrap().unwrap();
        assert!(storage.read_at(&mut [0], bytes - 1).is_ok(), "{n_resident} layers stay");
        assert!(storage.read_at(&mut [0], bytes).is_err(), "{n_resident} layers stay");
    }
    assert!(memory.storage(&shape, LAYERS, slots).is_none());
}

/// A cache in which sequence 0 holds 70 positions, in two blocks, and its file.
fn filled() -> (Paged, Vec<Vec<u32>>, Disk) {
    let disk = Disk::default();
    let mut cache = paged(shape(Dtype::F32), room(1, 128), 64, &disk);
    let mut held = vec![Vec::new()];
    let rows = append(&mut held, &(0..70).map(|token| (0, token)).collect::<Vec<_>>());
    pass(&mut cache, &rows, &held, "filled");
    (cache, held, disk)
}

/// The layer and the text of an error.
fn failed(result: Result<()>) -> (usize, String) {
    match result {
        Err(Error::OffloadedLayer { layer, what }) => (layer, what),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_disk_that_fails_is_an_error_and_nothing_is_lost() {
    for kind in [ErrorKind::StorageFull, ErrorKind::Other] {
        let (mut cache, mut held, disk) = filled();
        disk.fail(Some(kind));
        let rows = append(&mut held.clone(), &[(0, 70)]);
        // layer 0 was read before the disk failed
        let (layer, what) = failed((0..LAYERS).try_for_each(|layer| extend(&mut cache, layer, &rows)));
        assert!(layer == 0 && what.contains(&std::io::Error::from(kind).to_string()), "{layer}: {what}");
        lengths(&cache, &held, "after the error");
        disk.fail(None);
        let rows = append(&mut held, &[(0, 70)]);
        pass(&mut cache, &rows, &held, "the disk works again");
    }
}

#[test]
fn a_copy_that_fails_takes_no_page() {
    let disk = Disk::default();
    let mut cache = paged(shape(Dtype::F32), room(2, 128), 64, &disk);
    let mut held = vec![Vec::new(); 2];
    let rows = append(&mut held, &(0..70).map(|token| (0, token)).collect::<Vec<_>>());
    pass(&mut cache, &rows, &held, "filled");
    cache.fork(0, 1, 70).unwrap();
    let before = cache.available();
    disk.fail(Some(ErrorKind::StorageFull));
    // the second page is shared: a row of sequence 1 needs a copy of it
    let _ = failed(cache.reserve(1, 71));
    assert_eq!(cache.available(), before);
    disk.fail(None);
    cache.reserve(1, 71).unwrap();
    assert_eq!(cache.available(), before - 64);
}

/// Changes one byte of each layer in the file. Returns what the next passes of the layers say.
fn damaged() -> Vec<Result<()>> {
    let errors = |at: usize| {
        let (mut cache, mut held, disk) = filled();
        disk.damage(at);
        let mut run = |held: &mut [Vec<u32>]| {
            let rows = append(held, &[(0, 70)]);
            (0..LAYERS).try_for_each(|layer| extend(&mut cache, layer, &rows))
        };
        // layer 0 was read ahead before it was damaged
        run(&mut held).and_then(|()| run(&mut held))
    };
    let layer_bytes = filled().2.len() / LAYERS;
    (0..LAYERS).map(|layer| errors(layer * layer_bytes + 5)).collect()
}

#[test]
fn changed_bytes_are_an_error_that_names_the_layer() {
    for (layer, result) in damaged().into_iter().enumerate() {
        let (found, what) = failed(result);
        assert!(found == layer && what.contains("other bytes than were written"), "{layer}: {found}, {what}");
    }
}

#[test]
fn a_pass_writes_and_the_next_one_reads_more_blocks_than_are_moved_at_a_time() {
    let sequences = 70;
    let mut cache = paged(shape(Dtype::F32), room(sequences, 64), 64, &Disk::default());
    let mut held = vec![Vec::new(); sequences];
    for token in [3, 4] {
        let tokens: Vec<(u32, u32)> = (0..sequences as u32).map(|seq| (seq, token + seq)).collect();
        let rows = append(&mut held, &tokens);
        pass(&mut cache, &rows, &held, "a block for each sequence");
    }
}

#[test]
fn a_cache_that_fits_has_no_file() {
    let (shape, disk) = (shape(Dtype::F32), Disk::default());
    let all = LAYERS * 40 * shape.layer_bytes_per_token();
    let offload = LayerOffload::in_storage(Arc::new(disk.clone()), all, 0);
    let mut cache = Contiguous::new(shape, room(2, 20), KvMemory::offloading(offload)).unwrap();
    let mut held = vec![Vec::new(); 2];
    let rows = append(&mut held, &[(0, 1), (1, 2), (1, 3)]);
    pass(&mut cache, &rows, &held, "fits");
    assert_eq!((disk.len(), cache.bytes()), (0, all));
}

/// The slots of a cache for 100 positions in the memory of one for 128, where all layers fit.
fn slots_of_a_smaller_cache() -> usize {
    let shape = shape(Dtype::F32);
    let all = LAYERS * 128 * shape.layer_bytes_per_token();
    let memory = KvMemory::offloading(LayerOffload::in_memory(all, usize::MAX));
    let larger = Contiguous::new(shape.clone(), room(1, 128), memory).unwrap();
    let memory = Box::new(larger).into_memory();
    Contiguous::new(shape, room(1, 100), memory).unwrap().usage().slots
}

#[test]
fn a_smaller_cache_has_no_more_slots_than_it_needs() {
    assert_eq!(slots_of_a_smaller_cache(), 100);
}

/// In layers, the bytes of a cache of three layers of which two fit: the loaded one and the one that is being read.
fn layers_in_memory() -> usize {
    filled().0.bytes() / (128 * shape(Dtype::F32).layer_bytes_per_token())
}

#[test]
fn the_bytes_of_a_cache_count_the_buffers_of_offloaded_layers() {
    assert_eq!(layers_in_memory(), 2);
}

#[test]
fn the_next_cache_offloads_too() {
    let (cache, _, disk) = filled();
    let bytes = cache.bytes();
    let memory = Box::new(cache).into_memory();
    let mut next = Paged::new(shape(Dtype::F32), room(1, 128), 64, memory).unwrap();
    let mut held = vec![Vec::new()];
    let rows = append(&mut held, &[(0, 9), (0, 8)]);
    pass(&mut next, &rows, &held, "next");
    assert_eq!((next.bytes(), disk.len() > 0), (bytes, true));
}

#[test]
#[cfg(feature = "faults")]
fn planted_faults_of_offloaded_layers_are_found() {
    use xtrain_tensor::faults::{self, Fault};
    use xtrain_tensor::testing::failure;
    for fault in [Fault::OffloadedLayerShifted, Fault::OffloadedRowsNotWritten, Fault::PrefetchedLayerTaken] {
        let found = faults::with(fault, || failure(any_order_of_calls_preserves_what_was_written));
        let text = found.unwrap_or_else(|| panic!("{fault:?} is missed"));
        assert!(text.contains(NAME), "{fault:?}: {text}");
    }
    assert_eq!(faults::with(Fault::SlotsOfLargerCacheKept, slots_of_a_smaller_cache), 128);
    assert_eq!(faults::with(Fault::LayerBuffersNotCounted, layers_in_memory), 1);
    let unchecked = faults::with(Fault::OffloadedLayerUnchecked, damaged);
    assert!(unchecked.iter().all(Result::is_ok), "{unchecked:?}");
}
