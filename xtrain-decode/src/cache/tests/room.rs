//! The slots that all sequences share, and memory of an earlier cache.
use super::*;

#[test]
fn all_sequences_together_have_the_slots_of_the_cache() {
    let room = Room { sequences: 2, positions: 7, slots: Some(8) };
    let paged = Paged::new(shape(Dtype::F32), room, 1, KvMemory::default()).unwrap();
    let caches: [Box<dyn Cache>; 2] = [Box::new(Growing::new(shape(Dtype::F32), room)), Box::new(paged)];
    for mut cache in caches {
        let (mut held, name) = (vec![Vec::new(); 2], cache.kind().to_string());
        let rows = append(&mut held, &[(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (1, 7)]);
        pass(&mut *cache, &rows, &held, &name);
        let over = append(&mut held.clone(), &[(1, 8), (1, 9)]);
        assert_eq!(extend(&mut *cache, 0, &over), Err(Error::CacheFull { seq: 1, pos: 2 }), "{name}");
        let rows = append(&mut held, &[(1, 8)]);
        pass(&mut *cache, &rows, &held, &name);
    }
}

#[test]
fn memory_is_used_by_a_cache_of_its_shape_only() {
    let own = shape(Dtype::F32);
    let memory = || {
        let mut cache = Paged::new(own.clone(), room(1, 8), 2, KvMemory::default()).unwrap();
        cache.reserve(0, 8).unwrap();
        let (bytes, memory) = (cache.bytes(), Box::new(cache).into_memory());
        assert_eq!(memory.bytes(), bytes);
        memory
    };
    let slots = |shape| Paged::new(shape, room(1, 8), 2, memory()).unwrap().usage().slots;
    assert_eq!(slots(own.clone()), 8);
    for other in [
        CacheShape { dtype: Dtype::BF16, ..own.clone() },
        CacheShape { n_layers: LAYERS - 1, ..own.clone() },
        CacheShape { n_layers: LAYERS + 1, ..own.clone() },
        CacheShape { n_kv_heads: 1, ..own.clone() },
        CacheShape { head_dim: 4, ..own.clone() },
        own.clone().stored_as(KvDtype::Int8),
        CacheShape { device: Device::reference(), ..own.clone() },
    ] {
        assert_eq!(slots(other.clone()), 0, "{other:?}");
    }
    let longer = Contiguous::new(own.clone(), room(2, 5), memory()).unwrap();
    assert_eq!(longer.usage().slots, 10, "memory of fewer slots");
}

#[test]
fn free_pages_and_kept_ones_that_no_sequence_holds_are_available() {
    let room = Room { sequences: 2, positions: 12, slots: Some(16) };
    let mut cache = Paged::new(shape(Dtype::F32), room, 4, KvMemory::default()).unwrap();
    assert_eq!(cache.available(), 16);
    let mut held = vec![Vec::new(); 2];
    let rows = append(&mut held, &[(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6)]);
    pass(&mut cache, &rows, &held, "paged");
    assert_eq!(cache.available(), 8, "two pages of four");
    cache.insert_prefix(0, &[1, 2, 3, 4, 5, 6]);
    assert_eq!(cache.available(), 8, "the kept page is held");
    cache.free(0);
    assert_eq!((cache.available(), cache.usage().in_use), (16, 4), "it can be evicted");
}

/// The slot of a position after the cache could not grow, and the number of slots.
fn slot_after_a_failed_growth() -> (usize, usize) {
    // a page takes 16 MiB, and all of them 512 TiB
    let (page, pages) = (16, 1 << 25);
    let shape = CacheShape { n_layers: 1, n_kv_heads: 1, head_dim: 1 << 18, ..shape(Dtype::F32) };
    let mut cache = Paged::new(shape, room(1, page * pages), page, KvMemory::default()).unwrap();
    cache.reserve(0, 1).unwrap();
    let before = (cache.available(), cache.usage(), cache.pages(0).to_vec());
    let error = cache.expect(pages).unwrap_err().to_string();
    assert!(error.contains("memory"), "{error}");
    assert_eq!((cache.available(), cache.usage(), cache.pages(0).to_vec()), before);
    cache.reserve(0, page + 1).unwrap();
    (cache.slot(0, page).unwrap() as usize, cache.usage().slots)
}

#[test]
fn pages_without_memory_are_not_added() {
    let (slot, slots) = slot_after_a_failed_growth();
    assert!(slot < slots, "slot {slot} of {slots}");
}

#[test]
#[cfg(feature = "faults")]
fn a_page_without_memory_is_found() {
    use xtrain_tensor::faults::{self, Fault};

    let (slot, slots) = faults::with(Fault::PagesAddedWithoutMemory, slot_after_a_failed_growth);
    assert!(slot >= slots, "slot {slot} of {slots}");
}

/// The positions that are available in a cache of eight slots, in the memory of one with sixteen.
fn available_in_larger_memory() -> usize {
    let own = shape(Dtype::F32);
    let mut larger = Paged::new(own.clone(), room(2, 8), 2, KvMemory::default()).unwrap();
    (0..2).for_each(|seq| larger.reserve(seq, 8).unwrap());
    let memory = Box::new(larger).into_memory();
    let room = Room { sequences: 2, positions: 8, slots: Some(8) };
    let mut cache = Paged::new(own, room, 2, memory).unwrap();
    assert_eq!(cache.usage().slots, 16, "the memory is used");
    cache.reserve(0, 8).unwrap();
    (1..=8).take_while(|&len| cache.reserve(1, len).is_ok()).count()
}

#[test]
fn a_cache_in_the_memory_of_a_larger_one_has_the_slots_of_its_own_room() {
    assert_eq!(available_in_larger_memory(), 0);
}

#[test]
#[cfg(feature = "faults")]
fn pages_beyond_the_room_of_a_cache_are_found() {
    use xtrain_tensor::faults::{self, Fault};

    assert_eq!(faults::with(Fault::PagesOfLargerCacheKept, available_in_larger_memory), 8);
}

/// The slots that a sequence lacks for one more position, after it forked six positions in pages of four.
fn missing_after_a_fork() -> usize {
    let mut cache = Paged::new(shape(Dtype::F32), room(2, 12), 4, KvMemory::default()).unwrap();
    let mut held = vec![Vec::new(); 2];
    let rows = append(&mut held, &[(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6)]);
    pass(&mut cache, &rows, &held, "paged");
    assert_eq!((cache.missing(0, 7), cache.missing(0, 9)), (0, 4), "its own page has room for two");
    cache.fork(0, 1, 6).unwrap();
    cache.missing(1, 7)
}

#[test]
fn a_fork_lacks_the_copy_of_its_last_page() {
    assert_eq!(missing_after_a_fork(), 4);
}

#[test]
#[cfg(feature = "faults")]
fn a_shared_page_that_does_not_count_as_missing_is_found() {
    use xtrain_tensor::faults::{self, Fault};

    assert_eq!(faults::with(Fault::SharedPageNotMissing, missing_after_a_fork), 0);
}
