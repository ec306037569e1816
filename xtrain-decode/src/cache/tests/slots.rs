//! The slots of reserved positions, pages that cannot be allocated, and prefixes of sequences that cannot take them.
use super::*;

#[test]
fn a_reserved_position_is_written_to_its_slot() {
    for (name, mut cache) in kinds(Dtype::F32, room(2, 20)) {
        let mut held = vec![Vec::new(); 2];
        let rows = append(&mut held, &[(0, 1), (1, 2), (1, 3)]);
        pass(&mut *cache, &rows, &held, &name);
        cache.reserve(1, 20).unwrap();
        let reserved: Vec<Option<u32>> = (0..21).map(|pos| cache.slot(1, pos)).collect();
        assert_eq!(cache.slot(2, 0), None, "{name}: a sequence that does not exist");
        if cache.kind() == KvKind::Growing || !cache.kind().keeps_all() {
            assert_eq!(reserved, [None; 21], "rows move");
            continue;
        }
        if cache.kind() == KvKind::Contiguous {
            assert_eq!(reserved[20], None, "a position that does not exist");
        }
        let rows = append(&mut held, &(0..18).map(|i| (1, i)).collect::<Vec<_>>());
        let (k, v) = (tensor(Dtype::F32, &rows, 0, 0), tensor(Dtype::F32, &rows, 0, 1));
        let slots = cache.extend(0, k, v, &rows).unwrap().slots;
        let written: Vec<_> = (0..20).map(|pos| Some(slots.slot(1, pos) as u32)).collect();
        assert_eq!(reserved[..20], written, "{name}");
    }
}

#[test]
fn a_shared_or_missing_page_has_no_slot() {
    let mut cache = Paged::new(shape(Dtype::F32), room(2, 20), 4, KvMemory::default()).unwrap();
    let mut held = vec![Vec::new(); 2];
    let rows = append(&mut held, &(0..6).map(|i| (0, i)).collect::<Vec<_>>());
    pass(&mut cache, &rows, &held, "prompt");
    let known = |cache: &Paged| [5, 7, 8].map(|pos| cache.slot(0, pos).is_some());
    assert_eq!(known(&cache), [true, true, false]);
    cache.fork(0, 1, 6).unwrap();
    assert_eq!(known(&cache), [false, false, false], "the page is copied when it is written");
    cache.reserve(0, 9).unwrap();
    assert_eq!(known(&cache), [true, true, true]);
}

#[test]
fn a_full_cache_moves_nothing() {
    let room = Room { sequences: 2, positions: 16, slots: Some(8) };
    let mut cache = Paged::new(shape(Dtype::F32), room, 4, KvMemory::default()).unwrap();
    cache.reserve(0, 8).unwrap();
    let before = cache.usage();
    assert_eq!(cache.reserve(1, 1), Err(Error::CacheFull { seq: 1, pos: 0 }));
    assert_eq!(cache.usage(), before);
}

#[test]
fn only_an_empty_sequence_takes_a_kept_prefix() {
    let mut cache = Paged::new(shape(Dtype::F32), room(3, 16), 2, KvMemory::default()).unwrap();
    let mut held = vec![Vec::new(); 3];
    let tokens = [5, 6, 7, 8];
    let rows = append(&mut held, &tokens.map(|token| (0, token)));
    pass(&mut cache, &rows, &held, "prompt");
    cache.insert_prefix(0, &tokens);
    let rows = append(&mut held, &[(1, 9)]);
    pass(&mut cache, &rows, &held, "another sequence");
    cache.reserve(2, 3).unwrap();
    assert_eq!([0, 1, 2, 3].map(|seq| cache.match_prefix(seq, &tokens)), [0, 0, 4, 0]);
    held[2] = tokens.to_vec();
    lengths(&cache, &held, "after");
    let rows = append(&mut held, &[(0, 1), (1, 2), (2, 3)]);
    pass(&mut cache, &rows, &held, "the content");
}
