//! Files that verify themselves.
use std::io::ErrorKind;

use half::bf16;
use serde::{Deserialize, Serialize};
use xtrain_tensor::ops::Piece;

use super::super::checksum::ChecksummedReader;
use super::super::sealed::{self, SealedManifest, SealedRecord, SealedTensor, save_sealed};
use super::mutations::Bytes;
use super::*;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    numbers: Vec<u32>,
}

const KIND: &str = "test";

fn content() -> Content {
    Content { numbers: vec![3, 1, 4, 1, 5] }
}

/// The bytes of a file with two tensors.
pub(super) fn file() -> Vec<u8> {
    let (fs, path) = (SimulatedFs::default(), Path::new("sealed"));
    let halves = [0.5, -2.0].map(bf16::from_f32);
    let tensors = [
        SealedTensor {
            name: "a".into(),
            shape: vec![2, 3],
            data: Piece::F32(&[1.0, -0.0, 1e-40, 4.0, 5.0, 6.0]),
        },
        SealedTensor { name: "b".into(), shape: vec![2], data: Piece::BF16(&halves) },
    ];
    save_sealed(&fs, path, (KIND, &content()), &tensors).unwrap();
    bytes(&fs, path)
}

/// Reads a file and compares its content.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<NamedTensor>> {
    let mut file = Bytes(bytes, 0);
    let mut from = ChecksummedReader::new(&mut file);
    let check = |_: &Content, _: &[TensorInfo]| Ok(());
    sealed::read(Path::new("sealed"), &mut from, KIND, &check, &NamedTensor::begin).map(|(found, tensors)| {
        assert_eq!(found, content());
        tensors
    })
}

#[test]
fn a_sealed_file_is_a_safetensors_file_and_is_read_back() {
    let bytes = file();
    let tensors = read(&bytes).unwrap();
    assert_eq!((&*tensors[0].name, &tensors[0].shape[..]), ("a", &[2, 3][..]));
    assert_eq!(tensors[0].data.iter().map(|x| x.to_bits()).collect::<Vec<_>>()[1], 1 << 31);
    assert_eq!((&*tensors[1].name, &tensors[1].data[..]), ("b", &[0.5, -2.0][..]));
    let other = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(other.tensor("a").unwrap().shape(), [2, 3]);
}

#[test]
fn a_flipped_bit_and_a_missing_end_are_refused() {
    let bytes = file();
    for at in 0..8 * bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at / 8] ^= 1 << (at % 8);
        assert!(read(&damaged).is_err(), "bit {at}");
    }
    for len in 0..bytes.len() {
        assert!(read(&bytes[..len]).is_err(), "{len} bytes");
    }
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let message = read(&damaged).unwrap_err().to_string();
    assert!(message.starts_with("sealed: tensor b: expected crc32c "), "{message}");
}

#[test]
fn a_manifest_that_contradicts_itself_is_refused_by_name() {
    let record = |name: &str, shape: &[usize]| SealedRecord {
        name: name.into(),
        dtype: "F32".into(),
        shape: shape.into(),
        crc32c: 0,
    };
    let huge = usize::MAX / 8;
    for (tensors, part) in [
        (vec![record("a", &[1]), record("a", &[1])], "a occurs twice"),
        (vec![record("__metadata__", &[1])], "__metadata__: expected F32 or BF16"),
        (vec![record("a", &[0])], "expected F32 or BF16 with 1 to 8 dimensions"),
        (vec![record("a", &[huge, 8])], "expected F32 or BF16"),
        (
            vec![record("a", &[huge]), record("b", &[huge]), record("c", &[huge])],
            "data of all tensors together",
        ),
        (vec![record("a", &[1 << 40])], "data of all tensors together"),
        (vec![SealedRecord { dtype: "I64".into(), ..record("a", &[1]) }], "found I64 of shape [1]"),
    ] {
        let mut manifest =
            SealedManifest { format_version: 1, kind: KIND.into(), content: content(), tensors, checksum: 0 };
        manifest.seal();
        let text =
            serde_json::to_string(&serde_json::json!({"__metadata__": {"xtrain": manifest.text()}})).unwrap();
        let bytes = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let message = read(&bytes).unwrap_err().to_string();
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn other_files_are_refused_by_name() {
    let other = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let manifest = |text: &str| other(&serde_json::json!({"__metadata__": {"xtrain": text}}).to_string());
    for (bytes, part) in [
        (other("{}"), "a safetensors file without a manifest"),
        (manifest("{\"format_version\":2,\"kind\":\"test\"}"), "expected format version 1, found 2"),
        (manifest("{\"format_version\":1,\"kind\":\"x\"}"), "kind: expected test, found x"),
        (b"short".to_vec(), "length prefix of the header"),
    ] {
        let message = read(&bytes).unwrap_err().to_string();
        assert!(message.contains(part), "{part}: {message}");
    }
}

/// A disk error at any call leaves the earlier file or the new one, and no temporary file; a power cut after an
/// acknowledged save leaves the new one.
#[test]
fn a_disk_error_leaves_a_whole_file() {
    let (dir, path) = (Path::new("dir"), Path::new("dir/sealed"));
    let save = |fs: &SimulatedFs, x: f32| {
        let data = [x];
        let tensors = [SealedTensor { name: "a".into(), shape: vec![1], data: Piece::F32(&data) }];
        save_sealed(fs, path, (KIND, &content()), &tensors)
    };
    let before = SimulatedFs::default();
    before.create_dir(dir).unwrap();
    save(&before, 1.0).unwrap();
    let after = before.fork();
    save(&after, 2.0).unwrap();
    let valid = [&before, &after].map(|fs| bytes(fs, path));
    assert_eq!(bytes(&after.power_cut(&mut |n| n - 1), path), valid[1]);
    let mut failed = 0;
    for plan in [|call| Injected::Once(call, ErrorKind::Other), Injected::DiskFull] {
        for call in 0.. {
            let fs = before.fork();
            let begin = fs.calls();
            fs.inject(Some(plan(begin + call)));
            let done = save(&fs, 2.0);
            let calls = fs.calls() - begin;
            fs.inject(None);
            let found = bytes(&fs, path);
            assert!(found == valid[1] || done.is_err() && found == valid[0], "call {call}");
            assert_eq!(fs.list(dir).unwrap(), ["sealed"], "call {call}");
            failed += usize::from(done.is_err());
            if call >= calls {
                break;
            }
        }
    }
    assert!(failed > 8, "{failed}");
    let error = save_sealed(&before, dir, (KIND, &content()), &[]).unwrap_err();
    assert_eq!(error.to_string(), "dir is not a regular file");
}
