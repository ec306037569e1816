//! A product with a quantized matrix has the bits of the product with the f32 matrix of its elements.
use super::*;
use crate::cpu::gemm::{Beta, Matrix, Panels, product as dense_product, product_residual};
use crate::device::Device;
use crate::operands::{CodeBits, QuantBlock, QuantFormat};
use crate::testing::{arbitrary, assert_bits_eq, simds};

const FORMATS: [QuantFormat; 8] = {
    let mut formats = [QuantFormat { bits: CodeBits::Eight, halves: false, offsets: false }; 8];
    let mut i = 0;
    while i < 8 {
        let bits = if i & 4 == 0 { CodeBits::Eight } else { CodeBits::Four };
        formats[i] = QuantFormat { bits, halves: i & 2 != 0, offsets: i & 1 != 0 };
        i += 1;
    }
    formats
};

/// Blocks of a format with every code, negative and zero scales. As in files, products of a scale and a code are exact.
fn blocks(n: usize, format: QuantFormat) -> Vec<QuantBlock> {
    let x = arbitrary(n * 36, 5);
    let short = |x: f32| half::f16::from_f32(x).to_f32();
    let mut codes = 0u32..;
    let mut code = || {
        let code = (codes.next().unwrap().wrapping_mul(2_654_435_761) >> 24) as u8;
        match (format.bits, format.offsets) {
            (CodeBits::Eight, _) => code as i8,
            (CodeBits::Four, true) => (code & 15) as i8,
            (CodeBits::Four, false) => (code & 15) as i8 - 8,
        }
    };
    let block = |(i, x): (usize, &[f32])| {
        let scale = if i % 7 == 3 { 0.0 } else { short(x[0]) };
        QuantBlock {
            scales: [scale, if format.halves { short(x[1]) } else { scale }],
            offsets: [x[2], if format.halves { x[3] } else { x[2] }],
            codes: std::array::from_fn(|_| code()),
        }
    };
    x.chunks_exact(36).enumerate().map(block).collect()
}

#[test]
fn the_bytes_of_panels_follow_from_the_format() {
    // per weight: codes of one or half a byte; scales and offsets of 4 bytes for each 32 or 16
    let per_32 = [36, 40, 40, 48, 20, 24, 24, 32];
    let device = Device::cpu();
    for (format, block) in FORMATS.into_iter().zip(per_32) {
        for ([out, depth], padded) in [([1, 32], 64), ([64, 64], 64), ([130, 96], 192)] {
            let mut panels = QuantPanels::blank(device.as_cpu().unwrap(), [depth, out], format).unwrap();
            panels.write(device.as_cpu().unwrap(), 0, &blocks(out * depth / 32, format));
            let bytes = padded * depth / 32 * block;
            let got = [QuantPanels::bytes_of([depth, out], format), panels.bytes(), panels.block_bytes()];
            assert_eq!(got, [bytes, bytes, out * depth / 32 * block], "{out} x {depth}, {format:?}");
        }
    }
}

#[test]
fn products_with_quantized_blocks_have_the_bits_of_products_with_their_values() {
    let mut compared = 0;
    for (device, format) in simds()
        .into_iter()
        .flat_map(|simd| [1, 2].map(|threads| Device::cpu_with(threads, simd)))
        .flat_map(|device| FORMATS.map(|format| (device.clone(), format)))
    {
        let cpu = device.as_cpu().unwrap();
        let shapes = [[1, 32], [31, 64], [33, 256], [130, 288], [300, 544]];
        // products of the first three are one unit of work
        for &[out, depth] in if cpu.pool.threads() == 1 { &shapes[..] } else { &shapes[3..] } {
            let w = blocks(out * depth / 32, format);
            let values: Vec<f32> = w.iter().flat_map(|block| block.values(format)).collect();
            let dense = Panels::of_weight(cpu, &values, [out, depth]).unwrap();
            let mut quantized = QuantPanels::blank(cpu, [depth, out], format).unwrap();
            // as a packer does: groups of 32 columns, and then the rest; the second part begins in a panel
            let first = out.min(96) / 32 * 32;
            quantized.write(cpu, 0, &w[..first * depth / 32]);
            quantized.write(cpu, first, &w[first * depth / 32..]);
            let mut row = vec![7.0; depth];
            for j in 0..out {
                quantized.column(j, &mut row);
                assert_bits_eq(&row, &values[j * depth..][..depth], format!("column {j} of {format:?}"));
            }
            for rows in [1, 2, 3, 4, 5, 9, 12, 13, 16, 17, 40] {
                let what = format!("{rows} x {depth} x {out}, {format:?}, {device}");
                let (a, old) = (arbitrary(rows * depth, 3), arbitrary(rows * out, 4));
                let x = Matrix::new(&a, rows, depth);
                for beta in [Beta::Zero, Beta::One] {
                    let (mut want, mut got) = (old.clone(), old.clone());
                    dense_product(cpu, x, dense.view(), &mut want, beta);
                    product(cpu, &a, quantized.view(), &mut got, beta, None);
                    assert_bits_eq(&got, &want, format!("{what}, {beta:?}"));
                }
                let (mut want, mut got) = (old.clone(), vec![f32::NAN; rows * out]);
                product_residual(cpu, &old, x, dense.view(), &mut want);
                product(cpu, &a, quantized.view(), &mut got, Beta::Zero, Some(&old));
                assert_bits_eq(&got, &want, format!("{what}, residual"));
                for from in [32, 64].into_iter().filter(|_| out > 96) {
                    let (mut want, mut got) =
                        (vec![0.0; rows * (out - from)], vec![0.0; rows * (out - from)]);
                    dense_product(cpu, x, dense.view().columns(from..out), &mut want, Beta::Zero);
                    product(cpu, &a, quantized.view().columns(from..out), &mut got, Beta::Zero, None);
                    assert_bits_eq(&got, &want, format!("{what}, columns from {from} on"));
                }
                compared += 1;
            }
        }
    }
    assert_eq!(compared, simds().len() * 8 * (5 + 2) * 11);
}
