//! The conformance suite: the same tests for every kind of cache.
use half::bf16;
use xtrain_model::{Error, KvStore, Result, Rows};
use xtrain_tensor::ops::cat_seq;
use xtrain_tensor::rng::{Purpose, draw};
use xtrain_tensor::{Device, Dtype, Tensor, from_bf16, to_bf16};

use super::contiguous::Contiguous;
use super::growing::Growing;
use super::interface::{Cache, Snapshot};
use super::kind::{KvDtype, KvKind, Room};
use super::memory::KvMemory;
use super::paged::Paged;
use super::shape::CacheShape;
use super::sinks::Sinks;

mod offloaded;
mod room;
mod sinks;
mod slots;
mod snapshots;

const LAYERS: usize = 3;
const WIDTH: usize = 2 * HEAD;
const HEAD: usize = 3;

fn shape(dtype: Dtype) -> CacheShape {
    let (kv_dtype, device) = (KvDtype::Compute, Device::cpu());
    CacheShape { n_layers: LAYERS, n_kv_heads: 2, head_dim: HEAD, dtype, kv_dtype, device }
}

fn room(sequences: usize, positions: usize) -> Room {
    Room { sequences, positions, slots: None }
}

/// Every kind, with names for messages. The sinks and the window hold all positions of these tests.
fn kinds(dtype: Dtype, room: Room) -> Vec<(String, Box<dyn Cache>)> {
    let mut all = kinds_with_rows(dtype, room);
    let sinks = Sinks::new(shape(dtype), room, [3, 61], KvMemory::default()).unwrap();
    all.push((format!("{} {dtype}", sinks.kind()), Box::new(sinks)));
    all
}

/// Every kind whose rows can be copied.
fn kinds_with_rows(dtype: Dtype, room: Room) -> Vec<(String, Box<dyn Cache>)> {
    let mut all: Vec<Box<dyn Cache>> = vec![
        Box::new(Growing::new(shape(dtype), room)),
        Box::new(Contiguous::new(shape(dtype), room, KvMemory::default()).unwrap()),
    ];
    for page in [1, 2, 5, 16, 64] {
        for kv_dtype in [KvDtype::Compute, KvDtype::Int8] {
            let shape = shape(dtype).stored_as(kv_dtype);
            all.push(Box::new(Paged::new(shape, room, page, KvMemory::default()).unwrap()));
        }
    }
    let mut all: Vec<_> = all.into_iter().map(|c| (format!("{} {dtype}", c.kind()), c)).collect();
    all.extend(offloaded::kinds(dtype, room));
    all
}

/// An element of the key (`which` = 0) or value (1) of a token in a layer. Exact in bf16.
fn value(token: u32, layer: usize, which: usize, at: usize) -> f32 {
    ((token as usize * 7 + layer * 3 + which * 5 + at) % 251) as f32
}

fn tensor(dtype: Dtype, rows: &Rows, layer: usize, which: usize) -> Tensor {
    let values = rows.id.iter().flat_map(|&id| (0..WIDTH).map(move |at| value(id, layer, which, at)));
    let shape = [rows.len(), 2, 3];
    match dtype {
        Dtype::BF16 => Tensor::new(&Device::cpu(), &shape, values.map(to_bf16).collect()),
        _ => Tensor::new(&Device::cpu(), &shape, values.collect::<Vec<f32>>()),
    }
    .unwrap()
}

/// The values of a token that a cache with keys and values of this type holds.
fn held_values(kv_dtype: KvDtype, token: u32, layer: usize, which: usize) -> Vec<f32> {
    let values: Vec<f32> = (0..WIDTH).map(|at| value(token, layer, which, at)).collect();
    let quantized = |head: &[f32]| {
        let scale = head.iter().copied().fold(0.0, f32::max) / 127.0;
        head.iter().map(|x| (x / scale).round_ties_even() * scale).collect::<Vec<f32>>()
    };
    match kv_dtype {
        KvDtype::Compute => values,
        KvDtype::Int8 => values.chunks(HEAD).flat_map(quantized).collect(),
    }
}

/// The values of a pool of keys or values. Those of a vector without a scale are 0.
fn floats(t: &Tensor) -> Vec<f32> {
    match t.dtype() {
        Dtype::U32 => {
            let vectors = t.data::<u32>().unwrap().chunks_exact(HEAD.div_ceil(4) + 1);
            let values = |vector: &[u32]| {
                let scale = f32::from_bits(vector[vector.len() - 1]);
                let code = |i: usize| vector[i / 4].to_ne_bytes()[i % 4].cast_signed();
                (0..HEAD).map(|i| f32::from(code(i)) * scale).collect::<Vec<f32>>()
            };
            vectors.flat_map(values).collect()
        }
        Dtype::BF16 => t.data::<bf16>().unwrap().iter().map(|&x| from_bf16(x)).collect(),
        _ => t.data::<f32>().unwrap().to_vec(),
    }
}

fn extend(cache: &mut dyn Cache, layer: usize, rows: &Rows) -> Result<()> {
    let dtype = cache.shape().dtype;
    cache.extend(layer, tensor(dtype, rows, layer, 0), tensor(dtype, rows, layer, 1), rows).map(|_| ())
}

/// Runs one pass, and checks that its sequences hold the keys and values of the tokens in `want` afterwards.
#[track_caller]
fn pass(cache: &mut dyn Cache, rows: &Rows, want: &[Vec<u32>], what: &str) {
    let CacheShape { dtype, kv_dtype, .. } = *cache.shape();
    for layer in 0..LAYERS {
        let (k, v) = (tensor(dtype, rows, layer, 0), tensor(dtype, rows, layer, 1));
        let kv = cache.extend(layer, k, v, rows).unwrap();
        for (which, pool) in [kv.k, kv.v].into_iter().enumerate() {
            let data = floats(pool);
            for &seq in &rows.seq {
                for (pos, &token) in want[seq as usize].iter().enumerate() {
                    let got = &data[kv.slots.slot(seq, pos) * WIDTH..][..WIDTH];
                    let want = held_values(kv_dtype, token, layer, which);
                    assert_eq!(got, want, "{what}: layer {layer}, sequence {seq}, position {pos}");
                }
            }
        }
    }
}

/// Rows that append `tokens` to sequences.
fn append(held: &mut [Vec<u32>], tokens: &[(u32, u32)]) -> Rows {
    let mut rows = Rows::default();
    for &(seq, token) in tokens {
        rows.push(seq, held[seq as usize].len() as u32, token);
        held[seq as usize].push(token);
    }
    rows
}

#[track_caller]
fn lengths(cache: &dyn Cache, held: &[Vec<u32>], what: &str) {
    let got: Vec<usize> = (0..held.len() as u32).map(|s| cache.seq_len(s)).collect();
    assert_eq!(got, held.iter().map(Vec::len).collect::<Vec<_>>(), "{what}");
}

#[test]
fn any_order_of_calls_preserves_what_was_written() {
    for dtype in [Dtype::F32, Dtype::BF16] {
        for seed in 0..6u64 {
            for (name, mut cache) in kinds(dtype, room(4, 40)) {
                let mut held: Vec<Vec<u32>> = vec![Vec::new(); 4];
                let mut token = 0;
                for step in 0..120 {
                    let [act, a, b, c] = draw(seed, 0, step, Purpose::DataOrder);
                    let (from, to, what) = (a % 4, b % 4, format!("{name}, seed {seed}, step {step}"));
                    let some = |n: usize| c as usize % (n + 1);
                    match act % 8 {
                        0 => {
                            cache.free(from);
                            held[from as usize].clear();
                        }
                        1 => {
                            let len = some(held[from as usize].len());
                            cache.fork(from, to, len).unwrap();
                            held[to as usize] = held[from as usize][..len].to_vec();
                        }
                        2 => {
                            let len = some(held[from as usize].len());
                            cache.rewind(Snapshot { seq: from, len }).unwrap();
                            held[from as usize].truncate(len);
                        }
                        3 => cache.reserve(from, 40).unwrap(),
                        4 => {
                            // a pass that ends after its first layers leaves nothing
                            let rows = append(&mut held.clone(), &[(from, 1), (to, 2)]);
                            if held.iter().all(|h| h.len() < 38) {
                                (0..some(LAYERS - 1)).for_each(|l| extend(&mut *cache, l, &rows).unwrap());
                            }
                        }
                        _ => {
                            let n = 1 + c % 7;
                            let tokens: Vec<(u32, u32)> =
                                (0..n).map(|i| (if i % 3 == 0 { from } else { to }, token + i)).collect();
                            token += n;
                            if held.iter().any(|h| h.len() + 7 > 40) {
                                continue;
                            }
                            let rows = append(&mut held, &tokens);
                            pass(&mut *cache, &rows, &held, &what);
                        }
                    }
                    lengths(&*cache, &held, &what);
                }
                let all: Vec<(u32, u32)> =
                    (0..4).filter(|&s| held[s].len() < 40).map(|s| (s as u32, 9)).collect();
                let rows = append(&mut held, &all);
                pass(&mut *cache, &rows, &held, &name);
                (0..4).for_each(|s| cache.free(s));
                assert_eq!(cache.usage().in_use, 0, "{name}: all slots are free again");
            }
        }
    }
}

#[test]
fn a_position_out_of_order_is_refused_on_every_layer_and_nothing_changes() {
    for (name, mut cache) in kinds(Dtype::F32, room(2, 20)) {
        let mut held = vec![Vec::new(); 2];
        let rows = append(&mut held, &[(0, 1), (0, 2), (1, 3)]);
        pass(&mut *cache, &rows, &held, &name);
        for bad in 0..LAYERS {
            let mut ahead = held.clone();
            let good = append(&mut ahead, &[(0, 4), (1, 5)]);
            (0..bad).for_each(|layer| extend(&mut *cache, layer, &good).unwrap());
            for (seq, pos, want) in [(0, 3, 2), (0, 1, 2), (1, 0, 1)] {
                let mut rows = Rows::default();
                rows.push(seq, pos, 9);
                let refused = extend(&mut *cache, bad, &rows).unwrap_err();
                let want = Error::CachePosition { layer: bad, seq, want, got: pos };
                assert_eq!(refused, want, "{name}");
                lengths(&*cache, &held, &name);
                (0..bad).for_each(|layer| extend(&mut *cache, layer, &good).unwrap());
            }
            if bad > 0 {
                // a later layer must get the rows of layer 0, no more and no fewer
                for tokens in [vec![(0, 4)], vec![(0, 4), (1, 5), (1, 6)]] {
                    let rows = append(&mut held.clone(), &tokens);
                    assert!(extend(&mut *cache, bad, &rows).is_err(), "{name}");
                    (0..bad).for_each(|layer| extend(&mut *cache, layer, &good).unwrap());
                }
            }
            if bad > 0 {
                // the rows of the pass before the bad one count, those of other sequences do not
                let good = append(&mut held.clone(), &[(1, 5), (1, 7), (0, 4), (0, 6)]);
                let mut rows = good.clone();
                rows.pos[3] += 1;
                (0..bad).for_each(|layer| extend(&mut *cache, layer, &good).unwrap());
                let want = Error::CachePosition { layer: bad, seq: 0, want: 3, got: 4 };
                assert_eq!(extend(&mut *cache, bad, &rows).unwrap_err(), want, "{name}");
                let good = append(&mut held.clone(), &[(0, 4), (1, 5)]);
                (0..bad).for_each(|layer| extend(&mut *cache, layer, &good).unwrap());
            }
            let late = extend(&mut *cache, bad + 1, &good).unwrap_err();
            assert_eq!(late, Error::CacheLayer { want: bad, got: bad + 1 }, "{name}");
        }
        let rows = append(&mut held, &[(1, 7), (0, 8)]);
        pass(&mut *cache, &rows, &held, &name);
    }
}

#[test]
fn nothing_is_written_past_the_capacity() {
    for (name, mut cache) in kinds(Dtype::F32, room(2, 7)) {
        let mut held = vec![Vec::new(); 2];
        let rows = append(&mut held, &[(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (1, 10)]);
        pass(&mut *cache, &rows, &held, &name);
        let over = append(&mut held.clone(), &[(1, 11), (0, 7), (0, 8)]);
        let refused = extend(&mut *cache, 0, &over).unwrap_err();
        assert_eq!(refused, Error::CacheFull { seq: 0, pos: 7 }, "{name}");
        assert_eq!(cache.reserve(1, 8), Err(Error::CacheFull { seq: 1, pos: 7 }), "{name}");
        assert_eq!(cache.reserve(2, 1), Err(Error::CacheFull { seq: 2, pos: 0 }), "{name}");
        assert!(cache.fork(0, 2, 3).is_err() && cache.fork(2, 0, 0).is_err(), "{name}");
        let beyond = Error::CachePosition { layer: 0, seq: 1, want: 1, got: 2 };
        assert_eq!(cache.fork(1, 0, 2), Err(beyond.clone()), "{name}");
        assert_eq!(cache.rewind(Snapshot { seq: 1, len: 2 }), Err(beyond), "{name}");
        let mut none = Rows::default();
        none.push(2, 0, 1);
        assert_eq!(extend(&mut *cache, 0, &none), Err(Error::CacheFull { seq: 2, pos: 0 }), "{name}");
        lengths(&*cache, &held, &name);
        let rows = append(&mut held, &[(0, 7), (1, 11)]);
        pass(&mut *cache, &rows, &held, &name);
    }
}

#[test]
fn keys_of_another_shape_or_dtype_are_refused() {
    for (name, mut cache) in kinds(Dtype::F32, room(1, 7)) {
        let rows = append(&mut [Vec::new()], &[(0, 1)]);
        let good = || tensor(Dtype::F32, &rows, 0, 0);
        assert!(cache.extend(0, tensor(Dtype::BF16, &rows, 0, 0), good(), &rows).is_err(), "{name}");
        assert!(cache.extend(0, good(), good().reshape(&[1, 3, 2]).unwrap(), &rows).is_err(), "{name}");
        assert_eq!(cache.seq_len(0), 0);
    }
}

#[test]
fn bytes_follow_the_formula() {
    for dtype in [Dtype::F32, Dtype::BF16] {
        for (name, mut cache) in kinds(dtype, room(3, 30)) {
            let bytes = match (cache.shape().kv_dtype, dtype) {
                (KvDtype::Int8, _) => 4 + 4, // three codes in a word, and the scale
                (_, Dtype::F32) => 4 * HEAD,
                _ => 2 * HEAD,
            };
            let per_token = 2 * LAYERS * 2 * bytes;
            assert_eq!(cache.shape().bytes_per_token(), per_token, "{name}");
            let mut held = vec![Vec::new(); 3];
            for step in 0..20 {
                let rows = append(&mut held, &[(0, step), (2, step)]);
                pass(&mut *cache, &rows, &held, &name);
                let usage = cache.usage();
                let layers_in_memory = if name.contains(offloaded::NAME) { 2 } else { LAYERS };
                assert_eq!(cache.bytes(), usage.slots * per_token / LAYERS * layers_in_memory, "{name}");
                assert_eq!(usage.written, u64::from(step + 1) * 2 * per_token as u64, "{name}");
                assert!(usage.positions <= usage.in_use && usage.in_use <= usage.slots, "{name}: {usage:?}");
            }
        }
    }
}

#[test]
fn bytes_per_token_count_every_head_of_keys_and_values() {
    let shape = CacheShape { n_kv_heads: 5, ..shape(Dtype::BF16) };
    assert_eq!(shape.bytes_per_token(), LAYERS * 2 * 5 * 3 * 2);
}

/// The address of the values in memory.
fn address(t: &Tensor) -> usize {
    match t.dtype() {
        Dtype::U32 => t.data::<u32>().unwrap().as_ptr().addr(),
        _ => t.data::<f32>().unwrap().as_ptr().addr(),
    }
}

#[test]
fn a_write_in_place_copies_nothing() {
    for (name, mut cache) in kinds_with_rows(Dtype::F32, room(2, 64)) {
        if cache.kind() == KvKind::Growing || name.contains(offloaded::NAME) {
            continue;
        }
        cache.reserve(0, 64).unwrap();
        cache.reserve(1, 64).unwrap();
        let (mut held, copied) = (vec![Vec::new(); 2], cache.usage().copied);
        let mut addresses = Vec::new();
        for step in 0..64 {
            let rows = append(&mut held, &[(0, step), (1, step)]);
            for layer in 0..LAYERS {
                let (k, v) = (tensor(Dtype::F32, &rows, layer, 0), tensor(Dtype::F32, &rows, layer, 1));
                let kv = cache.extend(layer, k, v, &rows).unwrap();
                addresses.push([kv.k, kv.v].map(address));
            }
        }
        assert_eq!(cache.usage().copied, copied, "{name}");
        assert!(
            addresses.chunks(LAYERS).all(|a| a == &addresses[..LAYERS]),
            "{name}: the pool does not move"
        );
    }
}

#[test]
fn the_growing_cache_of_one_sequence_equals_cat_seq() {
    for dtype in [Dtype::F32, Dtype::BF16] {
        let mut cache = Growing::new(shape(dtype), room(1, 64));
        let (mut held, mut want) =
            (vec![Vec::new()], Tensor::zeros(&Device::cpu(), &[0, 2, 3], dtype).unwrap());
        for n in [1, 5, 2, 1, 1] {
            let rows = append(&mut held, &(0..n).map(|i| (0, i + n)).collect::<Vec<_>>());
            want = cat_seq(&want, &tensor(dtype, &rows, 1, 0)).unwrap();
            for layer in 0..LAYERS {
                let [k, v] = [0, 1].map(|which| tensor(dtype, &rows, layer, which));
                let view = cache.extend(layer, k, v, &rows).unwrap();
                assert!(layer != 1 || floats(view.k) == floats(&want), "{dtype}");
            }
        }
    }
}

#[test]
fn the_growing_cache_holds_its_sequences_and_nothing_else() {
    let mut cache = Growing::new(shape(Dtype::F32), room(3, 64));
    let mut held = vec![Vec::new(); 3];
    let rows = append(&mut held, &[(0, 1), (0, 2), (0, 3), (2, 4)]);
    pass(&mut cache, &rows, &held, "prompts");
    let per_token = cache.shape().bytes_per_token();
    assert_eq!((cache.bytes(), cache.usage().slots), (4 * per_token, 4));
    // the three positions of sequence 0 and the one of sequence 2 are copied into one view
    assert_eq!(cache.usage().copied, 4 * per_token as u64);
    cache.free(0);
    assert_eq!(cache.bytes(), per_token);
    held[0].clear();
    let rows = append(&mut held, &[(2, 5)]);
    pass(&mut cache, &rows, &held, "one sequence");
    // a sequence that is alone in its pass is read in place; its old position is copied by the concatenation
    assert_eq!(cache.usage().copied, 5 * per_token as u64);
}

#[test]
fn completions_of_one_prompt_share_its_pages_until_they_write() {
    let mut cache = Paged::new(shape(Dtype::F32), room(3, 64), 4, KvMemory::default()).unwrap();
    let mut held = vec![Vec::new(); 3];
    let rows = append(&mut held, &(0..10).map(|i| (0, i)).collect::<Vec<_>>());
    pass(&mut cache, &rows, &held, "prompt");
    for to in [1, 2] {
        cache.fork(0, to, 10).unwrap();
        held[to as usize] = held[0].clone();
    }
    let prompt = cache.pages(0).to_vec();
    assert_eq!((cache.pages(1), cache.pages(2)), (&prompt[..], &prompt[..]));
    assert!(prompt.iter().all(|&p| cache.references(p) == 3));
    assert_eq!(cache.usage().copied, 0);

    let rows = append(&mut held, &[(0, 20), (1, 21), (2, 22)]);
    pass(&mut cache, &rows, &held, "written");
    assert_eq!(prompt[..2].iter().map(|&p| cache.references(p)).collect::<Vec<_>>(), [3, 3]);
    assert!((0..3).all(|s| cache.references(cache.pages(s)[2]) == 1), "each has its own last page");
    assert_eq!(cache.usage().copied % (2 * cache.shape().bytes_per_token() as u64), 0);

    (0..3).for_each(|s| cache.free(s));
    assert!(prompt.iter().all(|&p| cache.references(p) == 0));
    assert_eq!(cache.usage().in_use, 0);
}

#[test]
fn a_failed_allocation_is_undone() {
    let room = Room { sequences: 3, positions: 64, slots: Some(20) };
    let mut cache = Paged::new(shape(Dtype::F32), room, 4, KvMemory::default()).unwrap();
    let mut held = vec![Vec::new(); 3];
    let rows = append(&mut held, &(0..6).map(|i| (0, i)).collect::<Vec<_>>());
    pass(&mut cache, &rows, &held, "prompt");
    cache.fork(0, 1, 6).unwrap();
    held[1] = held[0].clone();
    let before: Vec<Vec<u32>> = (0..3).map(|s| cache.pages(s).to_vec()).collect();
    // five pages, of which two are in use: one copy on write, then four more pages are needed
    let mut tokens = vec![(1, 7)];
    tokens.extend((0..13).map(|i| (2, i)));
    let rows = append(&mut held.clone(), &tokens);
    assert_eq!(extend(&mut cache, 0, &rows), Err(Error::CacheFull { seq: 2, pos: 8 }));
    let after: Vec<Vec<u32>> = (0..3).map(|s| cache.pages(s).to_vec()).collect();
    assert_eq!(after, before);
    assert_eq!((cache.references(before[0][1]), cache.usage().in_use), (2, 8));
    lengths(&cache, &held, "after");
    let rows = append(&mut held, &[(1, 7), (0, 8), (2, 9)]);
    pass(&mut cache, &rows, &held, "with one page less it fits");
}

#[test]
fn pages_grow_by_doubling() {
    let mut cache = Paged::new(shape(Dtype::F32), room(1, 1 << 12), 2, KvMemory::default()).unwrap();
    let (mut held, mut grown, mut slots) = (vec![Vec::new()], 0, 0);
    for token in 0..1 << 12 {
        let rows = append(&mut held, &[(0, token)]);
        (0..LAYERS).for_each(|layer| extend(&mut cache, layer, &rows).unwrap());
        grown += usize::from(cache.usage().slots != slots);
        slots = cache.usage().slots;
    }
    assert_eq!((grown, slots), (12, 1 << 12));
}

#[test]
fn kinds_parse_what_they_print() {
    let kinds = [
        KvKind::Off,
        KvKind::Growing,
        KvKind::Contiguous,
        KvKind::Paged { page: 1 },
        KvKind::Paged { page: 5 },
        KvKind::Int8 { page: 1 },
        KvKind::Int8 { page: 64 },
        KvKind::Sinks { sinks: 0, window: 1 },
        KvKind::Sinks { sinks: 4, window: 1020 },
    ];
    for kind in kinds {
        assert_eq!(kind.to_string().parse::<KvKind>().unwrap(), kind);
    }
    assert_eq!("paged".parse::<KvKind>().unwrap(), KvKind::Paged { page: 64 });
    assert_eq!("int8".parse::<KvKind>().unwrap(), KvKind::Int8 { page: 64 });
    let sinks = ["sinks", "sinks:", "sinks:4", "sinks:4+0", "sinks:+4", "sinks:4+", "sinks:-1+4"];
    let others =
        ["", "page", "paged:", "paged:0", "paged:-1", "Paged", "int8:", "int8:0", "off:3", "growing:1"];
    for bad in sinks.into_iter().chain(others) {
        assert!(bad.parse::<KvKind>().is_err(), "{bad}");
    }
}
