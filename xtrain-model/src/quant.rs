//! Element types of weight files: conversion of blocks to and from f32.
use half::{bf16, f16};
use xtrain_tensor::faults::{self, Fault};
use xtrain_tensor::ops::{CodeBits, Piece, QuantBlock, QuantFormat, WeightPacker};
use xtrain_tensor::{Device, Dtype};

use crate::block_quants::{self, BLOCK, Q4_0_BYTES, Q4_1_BYTES, Q5_0_BYTES, Q5_1_BYTES, Q8_0_BYTES};
use crate::iq4_quants::{self, IQ4_XS_BYTES};
use crate::k_quants::{self, Q2_K_BYTES, Q3_K_BYTES, Q4_K_BYTES, Q5_K_BYTES, Q6_K_BYTES, SUPER_BLOCK};

/// A supported element type. The discriminant is its GGUF number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "the names of the format")]
pub enum Quant {
    /// IEEE binary32.
    F32 = 0,
    /// IEEE binary16.
    F16 = 1,
    /// The upper half of a binary32.
    BF16 = 30,
    /// Blocks of 32 signed bytes with one f16 scale.
    Q8_0 = 8,
    /// Blocks of 32 signed nibbles with one f16 scale. Read only.
    Q4_0 = 2,
    /// Blocks of 32 nibbles with an f16 scale and minimum. Read only.
    Q4_1 = 3,
    /// Blocks of 32 signed elements of 5 bits with one f16 scale. Read only.
    Q5_0 = 6,
    /// Blocks of 32 elements of 5 bits with an f16 scale and minimum. Read only.
    Q5_1 = 7,
    /// Blocks of 32 indices of a table of 16 values with one f16 scale. Read only.
    IQ4_NL = 20,
    /// Super-blocks of 256 indices of a table of 16 values with 6-bit scales. Read only.
    IQ4_XS = 23,
    /// Super-blocks of 256 elements of 2 bits with 4-bit scales and minima. Read only.
    Q2_K = 10,
    /// Super-blocks of 256 signed elements of 3 bits with 6-bit scales. Read only.
    Q3_K = 11,
    /// Super-blocks of 256 nibbles with 6-bit scales and minima. Read only.
    Q4_K = 12,
    /// Super-blocks of 256 elements of 5 bits with 6-bit scales and minima. Read only.
    Q5_K = 13,
    /// Super-blocks of 256 signed elements of 6 bits with 8-bit scales. Read only.
    Q6_K = 14,
}

/// Every supported type.
const ALL: [Quant; 15] = [
    Quant::F32,
    Quant::F16,
    Quant::BF16,
    Quant::Q8_0,
    Quant::Q4_0,
    Quant::Q4_1,
    Quant::Q5_0,
    Quant::Q5_1,
    Quant::IQ4_NL,
    Quant::IQ4_XS,
    Quant::Q2_K,
    Quant::Q3_K,
    Quant::Q4_K,
    Quant::Q5_K,
    Quant::Q6_K,
];

/// The size of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSize {
    /// Number of elements.
    pub elements: usize,
    /// Number of bytes.
    pub bytes: usize,
}

/// Names of all GGUF types by number, used in errors about unsupported types.
const NAMES: [&str; 40] = [
    "F32", "F16", "Q4_0", "Q4_1", "type 4", "type 5", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K",
    "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
    "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16", "type 31", "type 32", "type 33", "TQ1_0", "TQ2_0",
    "type 36", "type 37", "type 38", "MXFP4",
];

impl Quant {
    /// The type with the GGUF number `number`.
    ///
    /// # Errors
    /// The name of an unsupported type.
    pub fn of(number: u32) -> Result<Quant, String> {
        ALL.into_iter().find(|quant| quant.number() == number).ok_or_else(|| {
            let name = NAMES.get(number as usize).map(|name| (*name).to_string());
            name.unwrap_or_else(|| format!("type {number}"))
        })
    }

    /// The names of all supported types, for errors.
    pub(crate) fn names() -> String {
        let (last, others) = ALL.split_last().expect("the list is not empty");
        let others: Vec<String> = others.iter().map(Quant::to_string).collect();
        format!("{} or {last}", others.join(", "))
    }

    /// The GGUF number of the type.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The size of a block.
    pub fn block(self) -> BlockSize {
        let (elements, bytes) = match self {
            Quant::F32 => (1, 4),
            Quant::F16 | Quant::BF16 => (1, 2),
            Quant::Q8_0 => (BLOCK, Q8_0_BYTES),
            Quant::Q4_0 | Quant::IQ4_NL => (BLOCK, Q4_0_BYTES),
            Quant::Q4_1 => (BLOCK, Q4_1_BYTES),
            Quant::Q5_0 => (BLOCK, Q5_0_BYTES),
            Quant::Q5_1 => (BLOCK, Q5_1_BYTES),
            Quant::IQ4_XS => (SUPER_BLOCK, IQ4_XS_BYTES),
            Quant::Q2_K => (SUPER_BLOCK, Q2_K_BYTES),
            Quant::Q3_K => (SUPER_BLOCK, Q3_K_BYTES),
            Quant::Q4_K => (SUPER_BLOCK, Q4_K_BYTES),
            Quant::Q5_K => (SUPER_BLOCK, Q5_K_BYTES),
            Quant::Q6_K => (SUPER_BLOCK, Q6_K_BYTES),
        };
        BlockSize { elements, bytes }
    }

    /// What the blocks of the type have in common. `None`: the type is not quantized.
    pub(crate) fn format(self) -> Option<QuantFormat> {
        use CodeBits::{Eight, Four};
        let (bits, halves, offsets) = match self {
            Quant::F32 | Quant::F16 | Quant::BF16 => return None,
            Quant::Q8_0 | Quant::Q5_0 | Quant::IQ4_NL | Quant::IQ4_XS => (Eight, false, false),
            Quant::Q5_1 | Quant::Q5_K => (Eight, false, true),
            Quant::Q6_K => (Eight, true, false),
            Quant::Q4_0 => (Four, false, false),
            Quant::Q4_1 | Quant::Q4_K => (Four, false, true),
            Quant::Q3_K => (Four, true, false),
            Quant::Q2_K => (Four, true, true),
        };
        Some(QuantFormat { bits, halves, offsets })
    }

    /// Bytes that a matrix `[out, in]` of this type takes in a model opened for inference. `None`: its elements are
    /// expanded to the dtype `compute`.
    pub fn packed_bytes(self, shape: [usize; 2], compute: Dtype, device: &Device) -> Option<usize> {
        WeightPacker::quantized_bytes(device, shape, compute, self.format()?)
    }

    /// Appends the blocks of 32 elements of a quantized type.
    pub(crate) fn unpack(self, bytes: &[u8], out: &mut Vec<QuantBlock>) {
        match self {
            Quant::F32 | Quant::F16 | Quant::BF16 => {}
            Quant::Q8_0 => out.extend(bytes.as_chunks().0.iter().map(block_quants::q8_0)),
            Quant::Q4_0 => out.extend(bytes.as_chunks().0.iter().map(block_quants::q4_0)),
            Quant::Q4_1 => out.extend(bytes.as_chunks().0.iter().map(block_quants::q4_1)),
            Quant::Q5_0 => out.extend(bytes.as_chunks().0.iter().map(block_quants::q5_0)),
            Quant::Q5_1 => out.extend(bytes.as_chunks().0.iter().map(block_quants::q5_1)),
            Quant::IQ4_NL => out.extend(bytes.as_chunks().0.iter().map(iq4_quants::iq4_nl)),
            Quant::IQ4_XS => out.extend(bytes.as_chunks().0.iter().flat_map(iq4_quants::iq4_xs)),
            Quant::Q2_K => out.extend(bytes.as_chunks().0.iter().flat_map(k_quants::q2_k)),
            Quant::Q3_K => out.extend(bytes.as_chunks().0.iter().flat_map(k_quants::q3_k)),
            Quant::Q4_K => out.extend(bytes.as_chunks().0.iter().flat_map(k_quants::q4_k)),
            Quant::Q5_K => out.extend(bytes.as_chunks().0.iter().flat_map(k_quants::q5_k)),
            Quant::Q6_K => out.extend(bytes.as_chunks().0.iter().flat_map(k_quants::q6_k)),
        }
    }

    /// Appends the values of whole blocks. Each value is an exact widening, a product of two f32, rounded once, or the
    /// sum or difference of exact products, rounded once.
    pub fn widen(self, bytes: &[u8], out: &mut Vec<f32>) {
        let Some(format) = self.format() else {
            match self {
                Quant::F16 => out.extend(bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32())),
                Quant::BF16 => {
                    out.extend(bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()));
                }
                _ => out.extend(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))),
            }
            return;
        };
        let mut blocks = Vec::with_capacity(bytes.len() / self.block().bytes * self.block().elements / BLOCK);
        self.unpack(bytes, &mut blocks);
        Piece::Blocks(format, &blocks).widen(out);
    }

    /// Appends `values` as whole blocks, each value rounded to the nearest one of the type. `Q8_0` maps the largest
    /// magnitude of a block to 127 and rounds halves away from zero. Returns false for a type that is read only, or
    /// if a scale or a value is out of range.
    #[must_use]
    pub fn narrow(self, values: &[f32], out: &mut Vec<u8>) -> bool {
        match self {
            Quant::F32 => {
                out.extend(values.iter().flat_map(|x| x.to_le_bytes()));
                true
            }
            Quant::F16 => values.iter().fold(true, |fits, &x| {
                out.extend(f16::from_f32(x).to_le_bytes());
                fits && f16::from_f32(x).is_finite()
            }),
            Quant::BF16 => values.iter().fold(true, |fits, &x| {
                out.extend(bf16::from_f32(x).to_le_bytes());
                fits && bf16::from_f32(x).is_finite()
            }),
            Quant::Q8_0 => values.chunks(BLOCK).fold(true, |fits, block| {
                let largest = block.iter().fold(0f32, |largest, x| largest.max(x.abs()));
                let scale = largest / 127.0;
                let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
                out.extend(f16::from_f32(scale).to_le_bytes());
                let divides = faults::on(Fault::QuantDividesByScale);
                let scaled = |x: &f32| if divides { x / scale } else { x * inverse };
                out.extend(block.iter().map(|x| rounded(scaled(x)) as i8 as u8));
                fits && f16::from_f32(scale).is_finite() && inverse.is_finite()
            }),
            _ => false,
        }
    }
}

/// The nearest integer, halves away from zero.
fn rounded(x: f32) -> f32 {
    if faults::on(Fault::QuantHalvesToEven) { x.round_ties_even() } else { x.round() }
}

impl std::fmt::Display for Quant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(NAMES[self.number() as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_name() {
        for quant in ALL {
            assert_eq!(Quant::of(quant.number()), Ok(quant));
        }
        let names =
            "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_K, Q5_K or Q6_K";
        assert_eq!(Quant::names(), names);
        assert_eq!(Quant::of(16).unwrap_err(), "IQ2_XXS");
        assert_eq!(Quant::of(200).unwrap_err(), "type 200");
    }

    #[test]
    fn narrowing_is_idempotent() {
        let x = xtrain_tensor::testing::arbitrary(320, 5);
        for quant in [Quant::F32, Quant::F16, Quant::BF16, Quant::Q8_0] {
            let (mut once, mut wide, mut twice) = (Vec::new(), Vec::new(), Vec::new());
            assert!(quant.narrow(&x, &mut once));
            quant.widen(&once, &mut wide);
            assert!(quant.narrow(&wide, &mut twice));
            assert_eq!(once, twice, "{quant}");
        }
        for (quant, large) in [(Quant::F16, 1e6), (Quant::BF16, f32::MAX)] {
            for values in [[large, 1.0], [1.0, large], [-large, 0.0]] {
                assert!(!quant.narrow(&values, &mut Vec::new()), "{quant:?}: {values:?}");
            }
        }
        assert!(!Quant::F16.narrow(&[1e6], &mut Vec::new()) && !Quant::Q4_0.narrow(&x, &mut Vec::new()));
    }
}
