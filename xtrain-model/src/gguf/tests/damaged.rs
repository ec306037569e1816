//! Damaged files: each error names its cause, and mutations do no harm.
use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::RngExt as _;
use xtrain_tensor::rng::PhiloxRng;
use xtrain_tensor::testing::{alone, times};

use super::tokenizers::small_spm;
use super::*;
use crate::test_memory::with_little_memory;
use crate::test_rng::rng;

/// The error of reading the valid base file with a change, or "accepted".
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = std::fs::read(path("corrupt/g_base_ok/model.gguf")).unwrap();
    change(&mut bytes);
    read(&file(&bytes)).map_or_else(|e| e.to_string(), |_| "accepted".to_string())
}

#[test]
fn each_error_names_its_cause() {
    assert_eq!(changed(|_| ()), "accepted");
    for (at, what, most) in [(8, "tensors", 100_000u64), (16, "metadata values", 10_000)] {
        let count = |n: u64| changed(|bytes| bytes[at..at + 8].copy_from_slice(&n.to_le_bytes()));
        let found = count(most + 1);
        assert!(found.contains(&(most + 1).to_string()) && found.contains(what), "{found}");
        assert!(!count(most).contains(&most.to_string()), "{}", count(most));
    }
    for (says, text) in [
        ("3, found 4", changed(|b| b[4] = 4)),
        ("3, found 1", changed(|b| b[4] = 1)),
        ("accepted", changed(|b| b[4] = 2)),
        (
            "attention.head_coumt",
            changed(|b| swap(b, b"attention.head_count\x04", b"attention.head_coumt\x04")),
        ),
        ("UTF-8", changed(|b| swap(b, b"general.type", b"general.\xff\xff\xff\xff"))),
        (
            "blk.0.attn_q.weight is missing",
            changed(|b| swap(b, b"blk.0.attn_q.weight", b"blk.0.attn_z.weight")),
        ),
    ] {
        assert!(
            text.contains(says) || says == "attention.head_coumt" && text.contains("head_count"),
            "{text}"
        );
    }
    let nan = changed(|b| {
        let header = read_header(Path::new("base"), &b[..], b.len() as u64).unwrap();
        let at = header.tensors.iter().find(|t| t.quant == Quant::F32).unwrap().offset as usize;
        b[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    assert!(nan.contains("NaN"), "{nan}");
    let missing = read(Path::new("nowhere.gguf")).unwrap_err().to_string();
    assert!(missing.contains("nowhere.gguf not found"), "{missing}");
    let dir = read(&path("gguf")).unwrap_err().to_string();
    assert!(dir.contains("not a regular file"), "{dir}");
}

/// Numbers that are meaningful to the parser.
const NUMBERS: [u64; 10] = [0, 1, 2, 8, 9, 255, 1 << 31, (1 << 32) - 1, 1 << 61, u64::MAX];

/// Applies one to four changes: flips bits, replaces bytes and numbers, removes or duplicates ranges, truncates.
fn mutate(bytes: &mut Vec<u8>, header: usize, random: &mut PhiloxRng) {
    for _ in 0..=random.random_range(0..4) {
        let bound = header.min(bytes.len());
        if bound < 16 {
            return;
        }
        let (at, other) = (random.random_range(0..bound), random.random_range(0..bound));
        match random.random_range(0..6) {
            0 => bytes[at] ^= 1 << random.random_range(0..8),
            1 => bytes[at] = random.random(),
            2 => {
                let number = NUMBERS[random.random_range(0..NUMBERS.len())].to_le_bytes();
                let end = bytes.len().min(at + [4, 8][random.random_range(0..2)]);
                bytes[at..end].copy_from_slice(&number[..end - at]);
            }
            3 => drop(bytes.drain(at.min(other)..at.max(other))),
            4 => {
                let copied = bytes[at.min(other)..at.max(other)].to_vec();
                drop(bytes.splice(at..at, copied));
            }
            _ => bytes.truncate(at),
        }
    }
}

#[test]
fn mutated_files_do_no_harm() {
    if !alone("gguf::tests::damaged::mutated_files_do_no_harm") {
        return;
    }
    let seeds = ["corrupt/g_base_ok/model.gguf", "gguf/k_quants.gguf"].map(|name| {
        let seed = std::fs::read(path(name)).unwrap();
        let first = read_header(Path::new("seed"), &seed[..], seed.len() as u64).unwrap();
        (first.tensors.iter().map(|t| t.offset).min().unwrap() as usize, seed)
    });
    let cases = times(20_000, 200_000);
    let mut accepted = 0;
    for case in 0..cases {
        let (header, seed) = &seeds[case as usize % seeds.len()];
        let (mut bytes, mut random) = (seed.clone(), rng(case));
        mutate(&mut bytes, *header, &mut random);
        // the steps of `read`, from memory: header, config, tensors, tokenizer
        let load = || -> Result<(), StoreError> {
            let name = Path::new("mutated");
            let header = read_header(name, &bytes[..], bytes.len() as u64)?;
            let arch = Arch::read(&header.metadata)?;
            let cfg = config::read(&header, arch, None)?;
            for (_, entry) in match_tensors(name, &header, &cfg, arch)? {
                entry.read(name, &mut Cursor::new(&bytes))?;
            }
            tokenizer::eos_ids(&header.metadata)?;
            tokenizer::read(&header.metadata).map(|_| ())
        };
        let done = with_little_memory(format_args!("gguf, case {case}"), bytes.len(), || {
            catch_unwind(AssertUnwindSafe(load))
        });
        let done = done.unwrap_or_else(|_| panic!("case {case} panicked"));
        accepted += u64::from(done.is_ok());
    }
    println!("gguf: {accepted} of {cases} mutations are valid files");
    assert!(accepted < cases / 2);
}

#[test]
fn mutated_sentencepiece_vocabularies_do_no_harm() {
    if !alone("gguf::tests::damaged::mutated_sentencepiece_vocabularies_do_no_harm") {
        return;
    }
    let seed = small_spm();
    let cases = times(20_000, 200_000);
    let mut accepted = 0;
    for case in 0..cases {
        let (mut bytes, mut random) = (seed.clone(), rng(case));
        let length = bytes.len();
        mutate(&mut bytes, length, &mut random);
        let load = || -> Result<bool, StoreError> {
            let header = read_header(Path::new("mutated"), &bytes[..], bytes.len() as u64)?;
            let Some(tokenizer) = tokenizer::read(&header.metadata)? else { return Ok(false) };
            let ids = tokenizer.encode("ab a\nba")?;
            tokenizer.decode(&ids);
            let _ = tokenizer::write(&tokenizer, tokenizer.vocab_size())?;
            Ok(true)
        };
        let done = with_little_memory(format_args!("spm, case {case}"), bytes.len(), || {
            catch_unwind(AssertUnwindSafe(load))
        });
        let done = done.unwrap_or_else(|_| panic!("case {case} panicked"));
        accepted += u64::from(matches!(done, Ok(true)));
    }
    println!("spm: {accepted} of {cases} mutations are valid vocabularies");
    assert!((cases / 50..cases).contains(&accepted), "{accepted} of {cases}");
}

/// A header whose only value is a list of `count` elements of type `kind`, which ends the file.
fn with_list(kind: u32, element: &[u8], count: u64) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend([0u64, 1, 4].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(b"list");
    bytes.extend([9, kind].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(count.to_le_bytes());
    bytes.extend(element.repeat(3));
    bytes
}

#[test]
fn a_list_may_end_at_the_end_of_the_file_and_not_after_it() {
    let sizes = [1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8];
    for kind in (0..=12).filter(|&kind| kind != 9) {
        let read = |count| {
            let bytes = with_list(kind, &vec![0; sizes[kind as usize]], count);
            header::read_header(Path::new("list.gguf"), &bytes[..], bytes.len() as u64).map(drop)
        };
        assert!(read(3).is_ok(), "type {kind}: {}", read(3).unwrap_err());
        assert!(read(4).is_err(), "type {kind}");
    }
}
