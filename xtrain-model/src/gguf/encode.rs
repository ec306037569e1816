//! Encoding the header and the data section of a GGUF file.
use std::io::{self, Write};

use super::header::{ALIGNMENT, VERSION};
use super::metadata::Value;
use crate::quant::{BlockSize, Quant};

/// Encodes the header of a file with these tensors. Their data follows, each aligned to 32 bytes.
pub(super) fn header(values: &[(String, Value)], tensors: &[(String, Vec<usize>, Quant)]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((values.len() as u64).to_le_bytes());
    for (key, value) in values {
        text(&mut out, key);
        self::value(&mut out, value);
    }
    let mut offset = 0u64;
    for (name, shape, quant) in tensors {
        text(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|&dim| out.extend((dim as u64).to_le_bytes()));
        out.extend(quant.number().to_le_bytes());
        out.extend(offset.to_le_bytes());
        let BlockSize { elements, bytes } = quant.block();
        let length = shape.iter().product::<usize>() / elements * bytes;
        offset = (offset + length as u64).next_multiple_of(ALIGNMENT);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
    out
}

/// Writes the blocks of a tensor with padding.
pub(super) fn data(to: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    let padding = bytes.len().next_multiple_of(ALIGNMENT as usize) - bytes.len();
    to.write_all(&[0; ALIGNMENT as usize][..padding])
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Encodes a value with the types of llama.cpp's converter: integers as u32 if they fit, in lists as i32; floats as
/// f32.
fn value(out: &mut Vec<u8>, value: &Value) {
    let scalar = |out: &mut Vec<u8>, kind: u32, bytes: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    };
    let list = |out: &mut Vec<u8>, kind: u32, n: usize| {
        scalar(out, 9, &kind.to_le_bytes());
        out.extend((n as u64).to_le_bytes());
    };
    match value {
        Value::Int(n) => match u32::try_from(*n) {
            Ok(n) => scalar(out, 4, &n.to_le_bytes()),
            Err(_) => scalar(out, 11, &n.to_le_bytes()),
        },
        Value::Float(x) => scalar(out, 6, &(*x as f32).to_le_bytes()),
        Value::Bool(b) => scalar(out, 7, &[u8::from(*b)]),
        Value::String(words) => {
            scalar(out, 8, &[]);
            text(out, words);
        }
        Value::Ints(ints) => {
            let narrow: Option<Vec<i32>> = ints.iter().map(|&n| i32::try_from(n).ok()).collect();
            list(out, if narrow.is_some() { 5 } else { 11 }, ints.len());
            match narrow {
                Some(ints) => out.extend(ints.iter().flat_map(|n| n.to_le_bytes())),
                None => out.extend(ints.iter().flat_map(|n| n.to_le_bytes())),
            }
        }
        Value::Floats(floats) => {
            list(out, 6, floats.len());
            out.extend(floats.iter().flat_map(|&x| (x as f32).to_le_bytes()));
        }
        Value::Strings(texts) => {
            list(out, 8, texts.len());
            for words in texts {
                text(out, words);
            }
        }
    }
}
