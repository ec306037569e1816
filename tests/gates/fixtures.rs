//! Models and reference answers under tests/data.
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use xtrain::model::{Model, store};
use xtrain::tensor::{Device, Dtype};

/// A file under tests/data, or under the directory `XTRAIN_TEST_DATA` if the tests run on another machine.
pub(crate) fn path(name: &str) -> PathBuf {
    let moved = std::env::var_os("XTRAIN_TEST_DATA").map(PathBuf::from);
    moved.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")).join(name)
}

/// A JSON file under tests/data.
pub(crate) fn json(name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    serde_json::from_str(&text).unwrap()
}

/// The tensors of a safetensors file: name, shape, little-endian bytes.
pub(crate) fn tensors(name: &str) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let owned =
        |(n, t): (String, safetensors::tensor::TensorView<'_>)| (n, t.shape().to_vec(), t.data().to_vec());
    file.tensors().into_iter().map(owned).collect()
}

/// The f32 values of little-endian bytes.
pub(crate) fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The model of a directory under tests/data.
pub(crate) fn model(dir: &str, compute: Dtype, device: &Device) -> Model {
    store::open(&path(dir), compute, device).unwrap_or_else(|e| panic!("{dir}: {e}")).model
}

/// The sha256 of little-endian f32 values, in hexadecimal.
pub(crate) fn sha(values: impl IntoIterator<Item = f32>) -> String {
    let mut hash = Sha256::new();
    values.into_iter().for_each(|x| hash.update(x.to_le_bytes()));
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// The golden lines of a file: names and expected values.
pub(crate) fn lines(file: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(path(&format!("golden_bits/{file}"))).unwrap();
    text.lines().map(|l| l.split_once(' ').unwrap()).map(|(name, want)| (name.into(), want.into())).collect()
}

/// The expected value of the golden line `name`.
pub(crate) fn golden(file: &str, name: &str) -> String {
    let text = std::fs::read_to_string(path(&format!("golden_bits/{file}"))).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
    line.unwrap_or_else(|| panic!("{file} has no line {name}"))
}
