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
