//! Cases of keys and values in int8.
use super::DTYPES;
use crate::gates::case::{Case, chunks, pick, tensor};
use crate::gates::values::{Values, label};
use crate::ops;

/// Rows, heads, width of a head.
const SHAPES: [[usize; 3]; 8] =
    [[1, 1, 1], [5, 4, 64], [3, 6, 128], [7, 3, 40], [2, 8, 256], [33, 2, 16], [9, 1, 66], [300, 1, 8]];

pub(crate) fn quantize_heads() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, [n, h, hd]) in SHAPES.into_iter().enumerate() {
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            let (seed, values) = ((i * 2 + d) as u64 + 1801, Values::of(i + d));
            let x = values.fill(n * h * hd, seed);
            let name = format!("{n}x{h}x{hd}-{}", label(dtype, values));
            cases.push(Case::rows("quantize_heads", name, seed, n, move |dev, rows| {
                let x = tensor(dev, &[rows.len(), h, hd], &pick(&x, h * hd, rows), dtype)?;
                let words = ops::quantize_heads(&x)?.to_vec::<u32>()?;
                let vectors = words.chunks_exact(hd.div_ceil(4) + 1);
                let codes_and_scale = |vector: &[u32]| {
                    let (scale, codes) = vector.split_last().expect("a vector has a scale");
                    let codes = codes.iter().flat_map(|word| word.to_ne_bytes()).map(|c| f32::from(c as i8));
                    codes.chain([f32::from_bits(*scale)]).collect::<Vec<f32>>()
                };
                Ok(chunks(&vectors.flat_map(codes_and_scale).collect::<Vec<f32>>(), rows.len()))
            }));
        }
    }
    cases
}
