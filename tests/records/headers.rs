//! Headers of GGUF and safetensors files: what is read, and the error of each invalid field.
use std::fs;
use std::path::Path;

use xtrain::model::checkpoint::{LoadOptions, NamedTensor, RealFs, load_weights};
use xtrain::model::gguf::{Quant, read_header};

use crate::Record;
use crate::gguf_bytes::{Bytes, begin, list};

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    gguf(&mut out);
    safetensors(&mut out);
    out
}

/// A file whose header is `header`, with zeros up to the alignment and `data` bytes.
fn padded(header: Bytes, alignment: usize, data: usize) -> Vec<u8> {
    let mut bytes = header.0;
    bytes.resize(bytes.len().next_multiple_of(alignment) + data, 0);
    bytes
}

fn gguf(out: &mut Record) {
    out.section("metadata and tensors of GGUF files");
    let mut file = |what: &str, bytes: Vec<u8>| {
        out.line(what);
        match read_header(Path::new("m.gguf"), &bytes[..], bytes.len() as u64) {
            Err(error) => out.line(format!("    {error}")),
            Ok(header) => {
                for (key, value) in &header.metadata.values {
                    out.line(format!("    {key:.60} = {:.80}", format!("{value:?}")));
                }
                for entry in &header.tensors {
                    out.line(format!(
                        "    {} {} {:?} at {}",
                        entry.name, entry.quant, entry.shape, entry.offset
                    ));
                }
            }
        }
    };
    let scalars: [(u32, &[u8]); 15] = [
        (0, &[200]),
        (1, &[200]),
        (2, &[0, 200]),
        (3, &[0, 200]),
        (4, &[0, 0, 0, 200]),
        (5, &[0, 0, 0, 200]),
        (6, &1.5f32.to_le_bytes()),
        (7, &[0]),
        (7, &[1]),
        (7, &[2]),
        (10, &(u64::MAX >> 1).to_le_bytes()),
        (10, &(1u64 << 63).to_le_bytes()),
        (11, &i64::MIN.to_le_bytes()),
        (12, &(-0.1f64).to_le_bytes()),
        (13, &[]),
    ];
    for (kind, bytes) in scalars {
        file(&format!("a value of type {kind}, {bytes:?}"), begin(0, 1).value("k", kind, bytes).0);
        let twice = list(kind, 2, &[bytes, bytes].concat());
        file("two of them in a list", begin(0, 1).value("k", 9, &twice).0);
    }
    let texts = Bytes::default().text("a").text("\u{e9}").0;
    file("two texts in a list", begin(0, 1).value("k", 9, &list(8, 2, &texts)).0);
    file("a text that is not UTF-8", begin(0, 1).value("k", 8, &Bytes::default().u64(2).raw(&[65, 255]).0).0);
    file("a list of lists", begin(0, 1).value("k", 9, &list(9, 0, &[])).0);
    file("two values with one name", begin(0, 2).value("k", 0, &[1]).value("k", 0, &[2]).0);
    for length in [512, 513] {
        file(&format!("a key of {length} bytes"), begin(0, 1).value(&"k".repeat(length), 0, &[1]).0)
    }
    for count in [1u64 << 20, (1 << 20) + 1] {
        let bytes = list(0, count, &vec![0; count as usize]);
        file(&format!("a list of {count} elements"), begin(0, 1).value("k", 9, &bytes).0);
    }
    file("counts of elements of two lists", {
        let half = list(0, (1 << 19) + 1, &vec![0; (1 << 19) + 1]);
        begin(0, 2).value("a", 9, &half).value("b", 9, &half).0
    });
    file("2^63 elements", begin(0, 1).value("k", 9, &list(12, 1 << 63, &[])).0);
    file("as many elements as bytes", begin(0, 1).value("k", 9, &list(2, 8, &[0; 8])).0);
    file("another magic", [b"GGUG", &begin(0, 0).0[4..]].concat());
    file("version 2", [b"GGUF\x02\0\0\0", &begin(0, 0).0[8..]].concat());
    for (tensors, values) in [(0, 10_001), (100_001, 0), (0, 1), (1, 0)] {
        file(&format!("{tensors} tensors and {values} values, and nothing"), begin(tensors, values).0);
    }
    for alignment in [0, 4, 8, 12, 64, 1 << 16, 1 << 17] {
        let header = begin(1, 1).value("general.alignment", 4, &(alignment as u32).to_le_bytes());
        let bytes = padded(header.tensor("t", &[2], 0, 0), alignment.clamp(8, 64), 8);
        file(&format!("alignment {alignment}, which the data have up to 64"), bytes);
    }
    file("an alignment of text", begin(0, 1).value("general.alignment", 8, &Bytes::default().text("32").0).0);
    for kind in 0..=40 {
        let quant = Quant::of(kind);
        let elements = quant.as_ref().map_or(32, |quant| quant.block().elements as u64);
        let bytes = quant.as_ref().map_or(0, |quant| quant.block().bytes);
        let header = begin(1, 0).tensor("t", &[elements, 3], kind, 0);
        file(&format!("3 rows of {elements} of type {kind}"), padded(header.clone(), 32, 3 * bytes));
        if bytes > 0 {
            file("    and one byte less", padded(header, 32, 3 * bytes - 1));
        }
    }
    for (dims, kind) in [
        (&[][..], 0),
        (&[1; 8], 0),
        (&[1; 9], 0),
        (&[0, 2], 0),
        (&[2, 0], 0),
        (&[1 << 28, 1 << 27], 0),
        (&[1 << 28, 1 << 28], 0),
        (&[1 << 32, 1 << 32], 0),
        (&[33], 8),
        (&[2, 32], 8),
        (&[255, 2], 12),
    ] {
        file(
            &format!("dimensions {dims:?} of type {kind}"),
            padded(begin(1, 0).tensor("t", dims, kind, 0), 32, 32),
        );
    }
    for offset in [1, 16, 32, 64, 1 << 63, u64::MAX - 31] {
        file(&format!("two tensors, the second at {offset}"), {
            let header = begin(2, 0).tensor("a", &[9], 0, 0).tensor("b", &[3, 2], 1, offset);
            padded(header, 32, 96)
        });
    }
    file("the second tensor before the first", {
        padded(begin(2, 0).tensor("a", &[8], 0, 32).tensor("b", &[8], 0, 0), 32, 64)
    });
    file(
        "two tensors with one name",
        padded(begin(2, 0).tensor("a", &[8], 0, 32).tensor("a", &[8], 0, 0), 32, 64),
    );
    out.section("the beginnings of a GGUF header");
    let whole = begin(1, 1).value("k", 8, &Bytes::default().text("v").0).tensor("t", &[8], 0, 0).0;
    let error = |length: usize| {
        let error =
            read_header(Path::new("m.gguf"), &whole[..length], length as u64).unwrap_err().to_string();
        error.strip_suffix(&format!(", found {length}")).unwrap().to_string()
    };
    let errors: Vec<String> = (0..whole.len()).map(error).collect();
    let mut at = 0;
    for part in errors.chunk_by(|a, b| a == b) {
        out.line(format!("{at} to {} bytes: {}", at + part.len() - 1, part[0]));
        at += part.len();
    }
}

/// A safetensors file with a header and zeros as data.
fn framed(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data]].concat()
}

fn safetensors(out: &mut Record) {
    out.section("headers of safetensors files, and the number of bytes of their data");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("config.json"), "{}").unwrap();
    let mut file = |what: &str, bytes: Vec<u8>| {
        fs::write(dir.join("model.safetensors"), bytes).unwrap();
        let loaded = load_weights(&RealFs, dir, &LoadOptions::default(), &|name, shape| {
            NamedTensor::begin(name, shape)
        });
        let found = match loaded {
            Ok(loaded) => {
                let all = loaded.tensors.iter().map(|t| format!("{} {:?} {:?}", t.name, t.shape, t.data));
                all.collect::<Vec<_>>().join(", ")
            }
            Err(error) => error.to_string().replace(&format!("{}/", dir.display()), ""),
        };
        out.line(what);
        out.line(format!("    {found}"));
    };
    for (header, data) in [
        ("{}", 0),
        ("{}", 1),
        (r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   "#, 8),
        (r#"{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#, 4),
        (
            r#"{"b":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]},"a":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]}}"#,
            6,
        ),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 7),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 9),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}}"#, 8),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, 8),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}}"#, 9),
        (
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[5,9]}}"#,
            9,
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}"#,
            6,
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
            8,
        ),
        (r#"{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}"#, 1),
        (r#"{"a":{"dtype":"Q8_0","shape":[32],"data_offsets":[0,34]}}"#, 34),
        (r#"{"a":{"dtype":"F32","shape":[1,0],"data_offsets":[0,0]}}"#, 0),
        (r#"{"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}"#, 4),
        (r#"{"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}"#, 4),
        (r#"{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}}"#, 4),
        (r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4),
        (r#"{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}"#, 4),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}"#, 4),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}"#, 4),
        (r#"{"a":{"dtype":"F32","shape":[1]}}"#, 4),
        (r#"{"__metadata__":{"a":1}}"#, 0),
        (r#"{"__metadata__":{},"__metadata__":{}}"#, 0),
        ("[]", 0),
        ("{\"a\"", 0),
        ("\u{0}", 0),
    ] {
        file(&format!("{header:?} {data}"), framed(header, data));
    }
    for length in [512, 513] {
        let header =
            format!(r#"{{"{}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#, "n".repeat(length));
        file(&format!("a name of {length} bytes"), framed(&header, if length == 512 { 3 } else { 4 }));
    }
    for header in [3, 1 << 24, (1 << 24) + 1, u64::MAX] {
        file(&format!("a header of {header} bytes, and 2"), [&header.to_le_bytes()[..], b"{}"].concat());
    }
    file("7 bytes", vec![0; 7]);
    file("no byte", Vec::new());
    file("a value that is not finite", {
        let header = r#"{"a":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]}}"#;
        [&framed(header, 2)[..], &[0x80, 0x7f, 0xc0, 0x7f]].concat()
    });
}
