//! The bytes of GGUF headers.

/// Bytes of a GGUF file.
#[derive(Clone, Default)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Bytes {
    pub(crate) fn u32(mut self, value: u32) -> Bytes {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Bytes {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Bytes {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn text(self, text: &str) -> Bytes {
        self.u64(text.len() as u64).raw(text.as_bytes())
    }

    /// A key, a type and the bytes of a value.
    pub(crate) fn value(self, key: &str, kind: u32, bytes: &[u8]) -> Bytes {
        self.text(key).u32(kind).raw(bytes)
    }

    pub(crate) fn tensor(self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Bytes {
        let start = self.text(name).u32(dims.len() as u32);
        dims.iter().fold(start, |bytes, &dim| bytes.u64(dim)).u32(kind).u64(offset)
    }
}

/// The beginning of a header.
pub(crate) fn begin(tensors: u64, values: u64) -> Bytes {
    Bytes::default().raw(b"GGUF").u32(3).u64(tensors).u64(values)
}

/// The type, the number and the bytes of the elements of a list.
pub(crate) fn list(kind: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    Bytes::default().u32(kind).u64(count).raw(elements).0
}
