//! Cases of keys and values in int8.
use super::DTYPES;
use crate::gates::case::{Case, chunks, pick, tensor};
use crate::gates::values::{Values, label};
use crate::{Dtype, Result, Tensor, ops};

/// Rows, heads, width of a head.
const SHAPES: [[usize; 3]; 8] =
    [[1, 1, 1], [5, 4, 64], [3, 6, 128], [7, 3, 40], [2, 8, 256], [33, 2, 16], [9, 1, 66], [300, 1, 8]];

pub(crate) fn quantize_heads() -> Vec<Case> {
    let mut cases = vec![coarse_scale()];
    for (i, [n, h, hd]) in SHAPES.into_iter().enumerate() {
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            let (seed, values) = ((i * 2 + d) as u64 + 1801, Values::of(i + d));
            let x = values.fill(n * h * hd, seed);
            let name = format!("{n}x{h}x{hd}-{}", label(dtype, values));
            cases.push(Case::rows("quantize_heads", name, seed, n, move |dev, rows| {
                let x = tensor(dev, &[rows.len(), h, hd], &pick(&x, h * hd, rows), dtype)?;
                quantized(&x, rows.len())
            }));
        }
    }
    cases
}

/// A denormal vector whose scale is rounded down to the smallest denormal: quotients of up to 190 are cut to 127.
fn coarse_scale() -> Case {
    let x: Vec<f32> = (0..16).map(|i| f32::from_bits((190 - 7 * i) | ((i % 2) << 31))).collect();
    Case::rows("quantize_heads", "coarse-scale-f32".to_string(), 1899, 2, move |dev, rows| {
        quantized(&tensor(dev, &[rows.len(), 1, 8], &pick(&x, 8, rows), Dtype::F32)?, rows.len())
    })
}

/// The codes and the scale of each vector, for each row.
fn quantized(x: &Tensor, rows: usize) -> Result<Vec<Vec<f32>>> {
    let words = ops::quantize_heads(x)?.to_vec::<u32>()?;
    let hd = x.shape()[2];
    let vectors = words.chunks_exact(hd.div_ceil(4) + 1);
    let codes_and_scale = |vector: &[u32]| {
        let (scale, codes) = vector.split_last().expect("a vector has a scale");
        let codes = codes.iter().flat_map(|word| word.to_ne_bytes()).map(|c| f32::from(c as i8));
        codes.chain([f32::from_bits(*scale)]).collect::<Vec<f32>>()
    };
    Ok(chunks(&vectors.flat_map(codes_and_scale).collect::<Vec<f32>>(), rows))
}
