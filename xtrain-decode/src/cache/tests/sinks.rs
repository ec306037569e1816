//! A sinks cache that has overwritten positions.
use super::*;

/// The keys that each row of a pass at the last layer reads, as lists of tokens. Checks that the values are of the same
/// tokens.
fn lists(cache: &mut dyn Cache, rows: &Rows) -> Vec<Vec<u32>> {
    (0..LAYERS - 1).for_each(|layer| extend(cache, layer, rows).unwrap());
    let [k, v] = [0, 1].map(|which| tensor(Dtype::F32, rows, LAYERS - 1, which));
    let kv = cache.extend(LAYERS - 1, k, v, rows).unwrap();
    let (keys, values, places) = (floats(kv.k), floats(kv.v), kv.places.unwrap());
    let row = |(&seq, &pos): (&u32, &u32)| {
        let token = |at: usize| {
            let slot = kv.slots.slot(seq, at);
            let is = |token: &u32| {
                keys[slot * WIDTH..][..WIDTH] == held_values(KvDtype::Compute, *token, LAYERS - 1, 0)
                    && values[slot * WIDTH..][..WIDTH] == held_values(KvDtype::Compute, *token, LAYERS - 1, 1)
            };
            (0..100).find(is).unwrap_or_else(|| panic!("slot {slot} has no key and value of one token"))
        };
        (0..=pos as usize).map(token).collect()
    };
    places.seq.iter().zip(places.pos).map(row).collect()
}

/// The list of the last row of a sequence of tokens.
fn list(tokens: &[u32], sinks: usize, window: usize) -> Vec<u32> {
    let (n, all) = (tokens.len(), tokens.iter().enumerate());
    all.filter(|&(at, _)| at < sinks || at + window >= n).map(|(_, &token)| token).collect()
}

fn cache(sinks: usize, window: usize) -> Sinks {
    Sinks::new(shape(Dtype::F32), room(3, 1000), [sinks, window], KvMemory::default()).unwrap()
}

#[test]
fn rows_read_the_sinks_and_the_window_whatever_the_pass() {
    for (sinks, window) in [(0, 1), (0, 3), (1, 1), (2, 1), (2, 5), (5, 2), (4, 12)] {
        for seed in 0..8 {
            let (mut cache, mut held, mut token) = (cache(sinks, window), vec![Vec::new(); 3], 0);
            let bytes = cache.bytes();
            for step in 0..30 {
                let [a, b, c, d] = draw(seed, 1, step, Purpose::DataOrder);
                let new: Vec<(u32, u32)> = (0..=a % 6)
                    .map(|i| {
                        token = (token + 1) % 100;
                        (if i % 2 == 0 { b % 3 } else { c % 3 }, token)
                    })
                    .collect();
                let mut want = held.clone();
                let of = |&(seq, token): &(u32, u32)| {
                    want[seq as usize].push(token);
                    list(&want[seq as usize], sinks, window)
                };
                let want: Vec<Vec<u32>> = new.iter().map(of).collect();
                if d % 4 == 0 {
                    // a pass that ends after its first layers leaves nothing
                    let rows = append(&mut held.clone(), &new);
                    (0..LAYERS - 1).for_each(|layer| extend(&mut cache, layer, &rows).unwrap());
                }
                let rows = append(&mut held, &new);
                assert_eq!(lists(&mut cache, &rows), want, "{sinks}+{window}, seed {seed}, step {step}");
                let (from, len) = (
                    d % 3,
                    held[(d % 3) as usize].len() - (d as usize / 3) % 3.min(held[(d % 3) as usize].len() + 1),
                );
                if d % 5 == 0 && cache.can_rewind(from, len) {
                    cache.fork(from, c % 3, len).unwrap();
                    held[(c % 3) as usize] = held[from as usize][..len].to_vec();
                }
                lengths(&cache, &held, "after the step");
            }
            assert_eq!(cache.bytes(), bytes);
        }
    }
}

#[test]
fn a_sequence_goes_back_as_long_as_its_rows_are_there() {
    let (mut cache, mut held) = (cache(2, 4), vec![Vec::new(); 3]);
    let rows = append(&mut held, &(0..6).map(|i| (0, i)).collect::<Vec<_>>());
    lists(&mut cache, &rows);
    let can =
        |cache: &Sinks| (0..=held[0].len() + 4).filter(|&len| cache.can_rewind(0, len)).collect::<Vec<_>>();
    assert_eq!(can(&cache), [0, 1, 2, 3, 4, 5, 6], "nothing is overwritten");
    let rows = append(&mut held.clone(), &[(0, 6), (0, 7)]);
    lists(&mut cache, &rows);
    assert_eq!(can(&cache), [0, 1, 2, 7, 8], "the last four positions and the sinks");
    let lost = Error::CachePosition { layer: 0, seq: 0, want: 8, got: 5 };
    assert_eq!(cache.rewind(Snapshot { seq: 0, len: 5 }), Err(lost.clone()));
    assert_eq!(cache.fork(0, 1, 5), Err(lost));
    cache.rewind(Snapshot { seq: 0, len: 7 }).unwrap();
    assert_eq!(can(&cache), [0, 1, 2, 7], "the row that was dropped had overwritten another one");
    cache.fork(0, 1, 2).unwrap();
    assert!(cache.can_rewind(1, 2) && cache.can_rewind(1, 1));
}

#[test]
fn rows_of_a_sinks_cache_are_not_copied() {
    let (mut cache, mut held) = (cache(2, 4), vec![Vec::new(); 3]);
    let rows = append(&mut held, &[(0, 1)]);
    lists(&mut cache, &rows);
    let error = cache.read_rows(0, 0..1).unwrap_err().to_string();
    assert!(error.contains("keeps the keys of all positions") && error.contains("sinks:2+4"), "{error}");
    assert!(cache.snapshot(0, 1).is_err());
}
