//! Mutated inputs of every loader: an error or a correct result, never a panic, never a large allocation.
use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::RngExt as _;
use xtrain_tensor::testing::times;

use super::super::checksum::ChecksummedReader;
use super::super::control::{self, Verified};
use super::super::header;
use super::super::manifest::Manifest;
use super::*;
use crate::test_memory::with_little_memory;

/// Byte strings that are meaningful to one of the parsers.
const PIECES: [&[u8]; 18] = [
    b"\"",
    b"[",
    b"{",
    b"}",
    b"]}",
    b",",
    b"0",
    b"-1",
    b"1e400",
    b"18446744073709551615",
    b"9223372036854775807",
    b"[0,4294967296,4294967296]",
    b"\"data_offsets\":[0,12]",
    b"\"dtype\":\"F64\"",
    b"__metadata__",
    b"\\u0000\\ud800",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x00\x00\x00\x00\x00\x00\x00\x00",
];

/// Mutations of each kind of input.
fn cases() -> u64 {
    times(20_000, 200_000)
}

/// One to four random changes within the first `header` bytes.
fn mutate(bytes: &mut Vec<u8>, header: usize, random: &mut PhiloxRng) {
    for _ in 0..=random.random_range(0..4) {
        let bound = header.min(bytes.len());
        if bound == 0 {
            return;
        }
        let (at, other) = (random.random_range(0..bound), random.random_range(0..bound));
        match random.random_range(0..6) {
            0 => bytes[at] ^= 1 << random.random_range(0..8),
            1 => bytes[at] = random.random(),
            2 => drop(bytes.splice(at..at, PIECES[random.random_range(0..PIECES.len())].iter().copied())),
            3 => {
                let piece = PIECES[random.random_range(0..PIECES.len())];
                let end = bytes.len().min(at + piece.len());
                bytes[at..end].copy_from_slice(&piece[..end - at]);
            }
            4 => drop(bytes.drain(at.min(other)..at.max(other))),
            _ => {
                let copied = bytes[at.min(other)..at.max(other)].to_vec();
                drop(bytes.splice(at..at, copied));
            }
        }
    }
}

/// Calls `load` with mutations of `seed` and counts those that it accepts. `name` is that of the test, which runs in
/// its own process.
#[track_caller]
fn check(name: &str, seed: &[u8], header: usize, load: impl Fn(&[u8]) -> bool) -> usize {
    let accepted = (0..cases()).filter(|&case| {
        let (mut bytes, mut random) = (seed.to_vec(), rng(case));
        mutate(&mut bytes, header, &mut random);
        let load = || catch_unwind(AssertUnwindSafe(|| load(&bytes)));
        with_little_memory(format_args!("{name}, case {case}"), bytes.len(), load)
            .unwrap_or_else(|_| panic!("case {case} panicked"))
    });
    accepted.count()
}

/// Whether this process runs only the test `name` of this file. If not, another process runs it.
#[track_caller]
fn alone(name: &str) -> bool {
    xtrain_tensor::testing::alone(&format!("checkpoint::tests::mutations::{name}"))
}

/// A file in memory.
pub(super) struct Bytes<'a>(pub(super) &'a [u8], pub(super) usize);

impl ReadFile for Bytes<'_> {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<()> {
        let found = self.0.get(self.1..self.1 + buffer.len()).ok_or(std::io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(found);
        self.1 += buffer.len();
        Ok(())
    }
}

/// Whether the header is accepted. If it is, the `safetensors` crate must accept it with the same tensors.
fn accepts(bytes: &[u8]) -> bool {
    let mut reader = Bytes(bytes, 0);
    let mut from = ChecksummedReader::new(&mut reader);
    let Ok(found) = header::read(Path::new("mutated"), &mut from) else { return false };
    let other = safetensors::SafeTensors::deserialize(bytes).expect("an accepted file is a safetensors file");
    assert_eq!(other.len(), found.len());
    for info in found {
        let tensor = other.tensor(&info.name).expect("the same names");
        assert_eq!(tensor.shape(), info.shape);
        assert_eq!(tensor.data().len(), info.elements() * info.dtype.block().bytes);
    }
    true
}

#[test]
fn mutated_safetensors_headers_do_no_harm() {
    const NAME: &str = "mutated_safetensors_headers_do_no_harm";
    if !alone(NAME) {
        return;
    }
    let (fs, dir) = saved(&Sample::small(1, 0));
    let bytes = bytes(&fs, &dir.join("model.safetensors"));
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let accepted = check(NAME, &bytes, header, accepts);
    println!("safetensors: {accepted} of {} mutations are valid files", cases());
    assert!(accepts(&bytes) && (accepted as u64) < cases() / 2);
}

#[test]
fn mutated_control_records_do_no_harm() {
    const NAME: &str = "mutated_control_records_do_no_harm";
    if !alone(NAME) {
        return;
    }
    let seed = control::encode(&Sample::small(1, 0).control).unwrap();
    let decode = |bytes: &[u8]| {
        let file = Path::new("mutated");
        let (length, crc) = (bytes.len() as u64, crc32c::crc32c(bytes));
        let verified = Verified::check(file, bytes.to_vec(), length, crc).unwrap();
        control::decode(file, &verified).is_ok_and(|control| control::encode(&control).unwrap() == bytes)
    };
    assert!(decode(&seed));
    check(NAME, &seed, seed.len(), decode);
}

#[test]
fn mutated_manifests_are_refused() {
    const NAME: &str = "mutated_manifests_are_refused";
    if !alone(NAME) {
        return;
    }
    let (fs, dir) = saved(&Sample::small(1, 0));
    let seed = bytes(&fs, &dir.join("manifest.json"));
    let decode = |bytes: &[u8]| Manifest::decode(Path::new("mutated"), bytes).is_ok() && bytes != seed;
    assert_eq!(check(NAME, &seed, seed.len(), decode), 0);
}

#[test]
fn mutated_indices_do_no_harm() {
    const NAME: &str = "mutated_indices_do_no_harm";
    if !alone(NAME) {
        return;
    }
    let (fs, dir) = (SimulatedFs::default(), Path::new("shards"));
    let index = dir.join("model.safetensors.index.json");
    let (source, path) = saved(&Sample::small(1, 0));
    fs.create_dir(dir).unwrap();
    fs.create(&dir.join("config.json")).unwrap().write(b"{}").unwrap();
    fs.create(&dir.join("a.safetensors"))
        .unwrap()
        .write(&bytes(&source, &path.join("model.safetensors")))
        .unwrap();
    let seed = br#"{"metadata":{},"weight_map":{"model.norm.weight":"a.safetensors","lm_head.weight":"a.safetensors"}}"#;
    fs.create(&index).unwrap().write(seed).unwrap();
    let load = |bytes: &[u8]| {
        fs.damage(&index, |text| *text = bytes.to_vec()).unwrap();
        load_weights(&fs, dir, &LoadOptions::default()).is_ok_and(|weights| {
            assert_eq!(weights.tensors.len(), 2);
            true
        })
    };
    assert!(load(seed) && !load(br#"{"weight_map":{}}"#));
    check(NAME, seed, seed.len(), load);
}

#[test]
fn mutated_sealed_files_are_refused() {
    const NAME: &str = "mutated_sealed_files_are_refused";
    if !alone(NAME) {
        return;
    }
    let seed = super::sealed::file();
    let load = |bytes: &[u8]| super::sealed::read(bytes).is_ok() && bytes != seed;
    assert!(super::sealed::read(&seed).is_ok());
    assert_eq!(check(NAME, &seed, seed.len(), load), 0);
}
