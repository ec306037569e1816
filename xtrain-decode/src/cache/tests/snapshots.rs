//! Snapshots and copies of rows, in every kind of cache.
use super::*;
use crate::cache::{KvRows, KvSnapshot};

/// The tokens of a snapshot, and the snapshot.
type Held = (Vec<u32>, KvSnapshot);

/// Appends a token to `seq` and compares everything that it holds.
fn check(cache: &mut dyn Cache, held: &mut [Vec<u32>], seq: u32, what: &str) {
    let rows = append(held, &[(seq, 200)]);
    pass(cache, &rows, held, what);
}

#[test]
fn rows_that_a_snapshot_holds_outlive_their_sequence_and_do_not_change() {
    for dtype in [Dtype::F32, Dtype::BF16] {
        for seed in 0..6u64 {
            // more sequences than are used: snapshots need pages too
            for (name, mut cache) in kinds_with_rows(dtype, room(12, 40)) {
                let (mut held, mut snapshots) = (vec![Vec::new(); 4], Vec::<Held>::new());
                let mut token = 0;
                for step in 0..120 {
                    let [act, a, b, c] = draw(seed, 7, step, Purpose::DataOrder);
                    let (from, to, what) = (a % 4, b % 4, format!("{name}, seed {seed}, step {step}"));
                    let some = |n: usize| c as usize % (n + 1);
                    let tokens = held[from as usize].clone();
                    match act % 8 {
                        0 => {
                            cache.free(from);
                            held[from as usize].clear();
                        }
                        1 if snapshots.len() < 3 => {
                            let len = some(tokens.len());
                            snapshots.push((tokens[..len].to_vec(), cache.snapshot(from, len).unwrap()));
                        }
                        2 if !snapshots.is_empty() => {
                            let (tokens, snapshot) = &snapshots[some(snapshots.len() - 1)];
                            let len = (a >> 8) as usize % (tokens.len() + 1);
                            cache.restore(snapshot, to, len).unwrap();
                            held[to as usize] = tokens[..len].to_vec();
                            check(&mut *cache, &mut held, to, &what);
                        }
                        3 if !snapshots.is_empty() => {
                            let (_, snapshot) = snapshots.swap_remove(some(snapshots.len() - 1));
                            cache.release(snapshot);
                        }
                        4 if from != to => {
                            // the rows leave the cache and return to another sequence, in two parts
                            let rows = cache.read_rows(from, 0..tokens.len()).unwrap().to_host().unwrap();
                            cache.free(to);
                            for len in [some(tokens.len()), tokens.len()] {
                                cache.write_rows(to, &rows, len).unwrap();
                            }
                            held[to as usize].clone_from(&tokens);
                            if tokens.len() < 40 {
                                check(&mut *cache, &mut held, to, &what);
                            }
                        }
                        5 => {
                            cache.rewind(Snapshot { seq: from, len: some(tokens.len()) }).unwrap();
                            held[from as usize].truncate(some(tokens.len()));
                        }
                        _ if held.iter().all(|h| h.len() + 7 <= 40) => {
                            let n = 1 + c % 7;
                            let new: Vec<(u32, u32)> =
                                (0..n).map(|i| (if i % 3 == 0 { from } else { to }, token + i)).collect();
                            token += n;
                            let rows = append(&mut held, &new);
                            pass(&mut *cache, &rows, &held, &what);
                        }
                        _ => {}
                    }
                    lengths(&*cache, &held, &what);
                    held.iter_mut().zip(0..).filter(|(h, _)| h.len() > 33).for_each(|(h, s)| {
                        cache.free(s);
                        h.clear();
                    });
                }
                (0..4).for_each(|s| cache.free(s));
                for (tokens, snapshot) in snapshots {
                    let mut held = vec![tokens.clone(); 1];
                    cache.restore(&snapshot, 0, tokens.len()).unwrap();
                    check(&mut *cache, &mut held, 0, &name);
                    let rows = cache.read_snapshot(&snapshot).unwrap();
                    assert_eq!((rows.len(), snapshot.len()), (tokens.len(), tokens.len()), "{name}");
                    cache.free(0);
                    cache.write_rows(0, &rows, tokens.len()).unwrap();
                    check(&mut *cache, &mut [tokens], 0, &name);
                    cache.free(0);
                    cache.release(snapshot);
                }
                assert_eq!(cache.usage().in_use, 0, "{name}: all slots are free again");
            }
        }
    }
}

#[test]
fn a_snapshot_of_pages_copies_nothing_and_counts_as_one_reference() {
    let mut cache = Paged::new(shape(Dtype::F32), room(2, 64), 4, KvMemory::default()).unwrap();
    let mut held = vec![Vec::new(); 2];
    let rows = append(&mut held, &(0..10).map(|i| (0, i)).collect::<Vec<_>>());
    pass(&mut cache, &rows, &held, "prompt");
    let copied = cache.usage().copied;
    let snapshot = cache.snapshot(0, 10).unwrap();
    let pages = cache.pages(0).to_vec();
    let references = |cache: &Paged| pages.iter().map(|&page| cache.references(page)).collect::<Vec<_>>();
    assert_eq!(references(&cache), [2, 2, 2]);
    cache.free(0);
    assert_eq!((references(&cache), cache.usage().in_use), (vec![1, 1, 1], 12));
    cache.restore(&snapshot, 1, 5).unwrap();
    assert_eq!((references(&cache), cache.usage().copied), (vec![2, 2, 1], copied));
    cache.release(snapshot);
    assert_eq!(references(&cache), [1, 1, 0]);
}

#[test]
fn rows_and_snapshots_that_do_not_fit_are_refused_and_nothing_changes() {
    for (name, mut cache) in kinds_with_rows(Dtype::F32, room(2, 20)) {
        let mut held = vec![Vec::new(); 2];
        let rows = append(&mut held, &[(0, 1), (0, 2), (0, 3), (1, 4)]);
        pass(&mut *cache, &rows, &held, &name);
        let position = |want, got| Err(Error::CachePosition { layer: 0, seq: 0, want, got });
        assert_eq!(cache.read_rows(0, 1..4).map(|_| ()), position(3, 4), "{name}");
        assert_eq!(cache.snapshot(0, 4).map(|_| ()), position(3, 4), "{name}");
        let (rows, snapshot) = (cache.read_rows(0, 1..3).unwrap(), cache.snapshot(0, 3).unwrap());
        assert_eq!((rows.first(), rows.len(), rows.bytes()), (1, 2, 2 * cache.shape().bytes_per_token()));
        cache.rewind(Snapshot { seq: 0, len: 0 }).unwrap();
        assert_eq!(cache.write_rows(0, &rows, 3), position(0, 1), "{name}: position 0 is missing");
        assert_eq!(cache.restore(&snapshot, 0, 4), position(3, 4), "{name}");
        let all = cache.read_snapshot(&snapshot).unwrap();
        assert_eq!(cache.write_rows(0, &all, 4), position(4, 3), "{name}: position 3 is missing");
        let one = KvRows::new(0, all.layers().to_vec()).truncated(1);
        assert_eq!(cache.write_rows(1, &one, 0), Ok(()), "{name}: the sequence holds more");
        assert_eq!(cache.write_rows(9, &rows, 3), Err(Error::CacheFull { seq: 9, pos: 0 }), "{name}");
        for other in [Dtype::F32, Dtype::BF16] {
            let shape = CacheShape { n_kv_heads: 1, dtype: other, ..shape(other) };
            let mut other: Box<dyn Cache> = Box::new(Growing::new(shape, room(1, 20)));
            assert!(other.write_rows(0, &cache.read_snapshot(&snapshot).unwrap(), 3).is_err(), "{name}");
            assert_eq!(other.seq_len(0), 0, "{name}");
        }
        if let KvKind::Paged { page } = cache.kind() {
            let mut other = Paged::new(shape(Dtype::F32), room(2, 20), page, KvMemory::default()).unwrap();
            assert_eq!(other.restore(&snapshot, 0, 3), position(3, 3), "{name}: of another cache");
            assert!(other.read_snapshot(&snapshot).is_err(), "{name}");
            other.release(cache.snapshot(1, 1).unwrap());
        }
        lengths(&*cache, &[Vec::new(), vec![4]], &name);
    }
}
