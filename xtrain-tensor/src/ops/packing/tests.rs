//! A weight packed in pieces is bit-identical to the weight of its whole matrix.
use half::bf16;

use super::*;
use crate::ops::{
    CodeBits, QuantBlock, QuantFormat, embedding, linear, linear_add, linear_backward_input, weight_rows,
};
use crate::testing::{arbitrary, assert_bits_eq, available_gpus, simds};
use crate::{Error, Simd, ThreadSchedule, from_bf16, to_bf16};

const SHAPES: [[usize; 2]; 4] = [[1, 1], [37, 33], [300, 70], [4160, 65]];

/// Values with zeros of either sign, and numbers that are bf16 denormals or round to one.
fn values(n: usize) -> Vec<f32> {
    let mut values = arbitrary(n, 7);
    for (at, tiny) in
        [0x0000_0001, 0x8000_0000, 0x007f_ffff, 0x8012_3456, 0x0000_8001].into_iter().enumerate()
    {
        values.iter_mut().skip(at * 7).step_by(61).for_each(|x| *x = f32::from_bits(tiny));
    }
    values
}

/// All devices, also with several threads, because the size of a write depends on their number.
fn all() -> Vec<Device> {
    let of = |simd| [1, 3].map(|threads| Device::cpu_with(threads, simd));
    let mut all: Vec<Device> = simds().into_iter().flat_map(of).collect();
    all.push(Device::reference());
    all.extend(available_gpus(&[ThreadSchedule::Forward]));
    all
}

#[track_caller]
fn same(got: &Tensor, want: &Tensor, what: &str) {
    let values = |x: &Tensor| x.to_f32().unwrap().to_vec::<f32>().unwrap();
    assert_bits_eq(&values(got), &values(want), what);
}

fn packed(device: &Device, [out, width]: [usize; 2], dtype: Dtype, piece: usize) -> Weight {
    let mut packing = WeightPacker::new(device, &[out, width], dtype).unwrap().table();
    values(out * width).chunks(piece).for_each(|piece| packing.push(piece));
    packing.finish().unwrap()
}

#[test]
fn products_gradients_and_rows_have_the_bits_of_the_matrix_for_any_piece_size() {
    let mut compared = 0;
    for (device, dtype) in all().into_iter().flat_map(|d| [(d.clone(), Dtype::F32), (d, Dtype::BF16)]) {
        for [out, width] in SHAPES {
            let master = Tensor::new(&device, &[out, width], values(out * width)).unwrap();
            let want = Weight::new(&master, dtype).unwrap();
            let of = |n| Tensor::new(&device, &[2, n], arbitrary(2 * n, 3)).unwrap().cast(dtype).unwrap();
            let (x, dy) = (of(width), of(out));
            let ids: Vec<u32> = (0..out as u32).collect();
            let rows = embedding(&master, &ids, dtype).unwrap();
            let y = linear(&x, &want, None, Dtype::F32).unwrap();
            let dx = linear_backward_input(&[&dy], &[&want]).unwrap();
            for piece in [1, 40_000, usize::MAX] {
                let got = packed(&device, [out, width], dtype, piece);
                let what = format!("{out} x {width} in {dtype} on {device}");
                same(&weight_rows(&got, &ids).unwrap(), &rows, &format!("rows of {what}"));
                same(&linear(&x, &got, None, Dtype::F32).unwrap(), &y, &what);
                same(&linear_backward_input(&[&dy], &[&got]).unwrap(), &dx, &format!("dx, {what}"));
                compared += 1;
            }
        }
    }
    assert!(compared >= 2 * 2 * 2 * 4 * 3, "{compared}");
}

#[test]
fn weights_packed_for_training_are_the_weights_of_their_matrices_in_order() {
    for (device, dtype) in all().into_iter().flat_map(|d| [(d.clone(), Dtype::F32), (d, Dtype::BF16)]) {
        let masters = SHAPES[..3]
            .iter()
            .map(|&[out, width]| Tensor::new(&device, &[out, width], values(out * width)).unwrap());
        let masters: Vec<Tensor> = masters.collect();
        let together = Weight::for_training(&masters.iter().collect::<Vec<_>>(), dtype).unwrap();
        assert_eq!(together.len(), masters.len());
        for ((master, got), [out, width]) in masters.iter().zip(&together).zip(SHAPES) {
            let want = Weight::new(master, dtype).unwrap();
            let of = |n| Tensor::new(&device, &[2, n], arbitrary(2 * n, 3)).unwrap().cast(dtype).unwrap();
            let (x, dy, what) = (of(width), of(out), format!("{out} x {width} in {dtype} on {device}"));
            let y = |w: &Weight| linear(&x, w, None, Dtype::F32).unwrap();
            let dx = |w: &Weight| linear_backward_input(&[&dy], &[w]).unwrap();
            same(&y(got), &y(&want), &what);
            same(&dx(got), &dx(&want), &format!("dx, {what}"));
        }
        assert!(Weight::for_training(&[], dtype).unwrap().is_empty());
        let flat = masters[1].reshape(&[37 * 33]).unwrap();
        let refused = Weight::for_training(&[&masters[0], &flat], dtype);
        assert!(matches!(refused, Err(Error::Shape { .. })), "{refused:?}");
    }
}

/// The values rounded to bf16, and the same widened to f32.
fn narrowed(values: &[f32]) -> (Vec<bf16>, Vec<f32>) {
    let narrow: Vec<bf16> = values.iter().map(|&x| to_bf16(x)).collect();
    let wide = narrow.iter().map(|&x| from_bf16(x)).collect();
    (narrow, wide)
}

#[test]
fn bf16_pieces_are_packed_as_their_values_in_f32() {
    for (device, dtype) in all().into_iter().flat_map(|d| [(d.clone(), Dtype::F32), (d, Dtype::BF16)]) {
        for [out, width] in SHAPES {
            let (narrow, wide) = narrowed(&values(out * width));
            let of = |piece: usize, as_bf16: bool| {
                let mut packing = WeightPacker::new(&device, &[out, width], dtype).unwrap().table();
                match as_bf16 {
                    true => narrow.chunks(piece).for_each(|piece| packing.push(piece)),
                    false => wide.chunks(piece).for_each(|piece| packing.push(piece)),
                }
                packing.finish().unwrap()
            };
            let (ids, want): (Vec<u32>, _) = ((0..out as u32).collect(), of(usize::MAX, false));
            let x = Tensor::new(&device, &[2, width], arbitrary(2 * width, 3)).unwrap().cast(dtype).unwrap();
            let y = linear(&x, &want, None, Dtype::F32).unwrap();
            for piece in [1, 30_000, 70_000, usize::MAX] {
                let (got, what) = (of(piece, true), format!("{out} x {width} in {dtype} on {device}"));
                let rows = Tensor::new(&device, &[out, width], wide.clone()).unwrap();
                same(&weight_rows(&got, &ids).unwrap(), &rows, &format!("rows of {what}"));
                same(&linear(&x, &got, None, Dtype::F32).unwrap(), &y, &what);
            }
        }
    }
}

#[test]
fn the_first_non_finite_value_is_found_in_both_dtypes() {
    let mut values = values(1000);
    let found = |values: &[f32]| {
        let at = |piece: Piece<'_>| piece.first_non_finite().map(|(at, x)| (at, x.to_bits()));
        let (narrow, wide) = narrowed(values);
        let of = at(Piece::F32(values));
        assert_eq!((at(Piece::BF16(&narrow)), at(Piece::F32(&wide))), (of, of));
        of
    };
    assert_eq!(found(&values), None);
    values[999] = f32::from_bits(0x7fff_0000);
    assert_eq!(found(&values), Some((999, 0x7fff_0000)));
    values[70] = f32::NEG_INFINITY;
    assert_eq!(found(&values), Some((70, 0xff80_0000)));
}

#[test]
fn the_first_non_finite_element_of_blocks_is_found() {
    let format = QuantFormat { bits: CodeBits::Eight, halves: true, offsets: true };
    let block = QuantBlock { scales: [0.5, -3.0], offsets: [1.0, 0.0], codes: [-128; 32] };
    let found = |blocks: &[QuantBlock]| Piece::Blocks(format, blocks).first_non_finite().map(|(at, _)| at);
    let mut blocks = [block; 4];
    assert_eq!(found(&blocks), None);
    // the largest scale with finite elements, and one for which only the codes decide
    blocks[1].scales[1] = f32::MAX / 128.0;
    assert_eq!(found(&blocks), None);
    (blocks[1].scales[1], blocks[1].codes) = (f32::MAX / 2.0, [2; 32]);
    assert_eq!(found(&blocks), None);
    blocks[1].codes[20] = 3;
    assert_eq!(found(&blocks), Some(32 + 20));
    blocks[0].offsets[1] = f32::NAN;
    assert_eq!(found(&blocks), Some(16));
    (blocks[0].offsets[1], blocks[0].scales[0]) = (0.0, f32::NEG_INFINITY);
    assert_eq!(found(&blocks), Some(0));
}

#[test]
fn values_that_are_too_few_or_too_many_are_an_error() {
    let device = Device::cpu_with(2, Simd::detect());
    for got in [0, 32, 65, 67, 500] {
        let mut packing = WeightPacker::new(&device, &[33, 2], Dtype::BF16).unwrap();
        vec![1.0; got].chunks(9).for_each(|piece| packing.push(piece));
        let error = packing.finish().unwrap_err().to_string();
        let want =
            format!("WeightPacker: expected as many values as the shape holds, found [[33, 2], [{got}]]");
        assert_eq!(error, want);
    }
}

#[test]
fn other_shapes_other_dtypes_and_lookups_without_a_table_are_errors() {
    let device = Device::cpu();
    for shape in [&[3][..], &[2, 0], &[1, 2, 3], &[usize::MAX, 2]] {
        assert!(
            matches!(WeightPacker::new(&device, shape, Dtype::F32), Err(Error::Shape { .. })),
            "{shape:?}"
        );
    }
    assert!(matches!(WeightPacker::new(&device, &[1, 1], Dtype::U32), Err(Error::Dtype { .. })));
    let mut packing = WeightPacker::new(&device, &[1, 2], Dtype::BF16).unwrap();
    packing.push(&[1.0, 2.0][..]);
    let weight = packing.finish().unwrap();
    assert!(matches!(weight_rows(&weight, &[0]), Err(Error::Argument { .. })));
    assert!(matches!(weight_rows(&packed(&device, [3, 2], Dtype::BF16, 9), &[3]), Err(Error::Index { .. })));
}

/// More than the address space, because systems promise more memory than they have.
#[test]
fn a_matrix_without_memory_is_an_error() {
    let format = QuantFormat { bits: CodeBits::Eight, halves: false, offsets: false };
    let block = [QuantBlock { scales: [1.0; 2], offsets: [0.0; 2], codes: [1; 32] }];
    let pieces = [Piece::F32(&[1.0]), Piece::Blocks(format, &block)];
    for (dtype, piece) in [Dtype::F32, Dtype::BF16].into_iter().flat_map(|dtype| pieces.map(|x| (dtype, x))) {
        let mut packing = WeightPacker::new(&Device::cpu(), &[64, 1 << 54], dtype).unwrap();
        packing.push(piece);
        packing.push(piece);
        let error = packing.finish().unwrap_err();
        assert!(matches!(error, Error::Memory { on_gpu: false, .. }), "{error:?}");
        assert!(error.to_string().starts_with("out of memory: cannot allocate"), "{error}");
    }
}

#[test]
fn blocks_of_another_format_than_the_first_are_an_error() {
    let first = QuantFormat { bits: CodeBits::Eight, halves: false, offsets: false };
    let block = [QuantBlock { scales: [1.0; 2], offsets: [0.5; 2], codes: [1; 32] }];
    for device in all() {
        for other in [QuantFormat { offsets: true, ..first }, QuantFormat { bits: CodeBits::Four, ..first }] {
            let mut packing = WeightPacker::new(&device, &[3, 32], Dtype::F32).unwrap();
            for format in [first, other, first] {
                packing.push(Piece::Blocks(format, &block));
            }
            let error = packing.finish().unwrap_err();
            let want = format!(
                "WeightPacker: expected blocks of the format of the first piece, found {other:?} after {first:?}"
            );
            assert_eq!(error.to_string(), want, "{device}");
        }
        // blocks that are expanded have the format of their piece
        let mut packing = WeightPacker::new(&device, &[2, 32], Dtype::BF16).unwrap().table();
        for format in [first, QuantFormat { offsets: true, ..first }] {
            packing.push(Piece::Blocks(format, &block));
        }
        let rows = weight_rows(&packing.finish().unwrap(), &[0, 1]).unwrap();
        assert_eq!(rows.to_vec::<f32>().unwrap(), [[1.0; 32], [1.5; 32]].concat(), "{device}");
    }
}

/// The results of all products with a weight, for operands on `device`.
fn products(device: &Device, w: &Weight) -> Vec<crate::Result<Tensor>> {
    let [out, width] = [w.out_features(), w.in_features()];
    let of = |n: usize| {
        let x = Tensor::new(device, &[3, n], arbitrary(3 * n, 3)).unwrap();
        x.cast(w.dtype()).unwrap()
    };
    let (x, dy, h) = (of(width), of(out), of(out).to_f32().unwrap());
    vec![
        linear(&x, w, None, Dtype::F32),
        linear(&x, w, None, Dtype::BF16),
        linear_add(&h, &x, w, None),
        linear_backward_input(&[&dy], &[w]),
    ]
}

#[test]
fn a_weight_of_another_instruction_set_gives_the_same_bits_or_is_refused() {
    let devices: Vec<Device> = simds().into_iter().map(|simd| Device::cpu_with(1, simd)).collect();
    let (mut compared, mut refused) = (0, 0);
    let pairs = devices.iter().flat_map(|own| devices.iter().map(move |other| (own, other)));
    for ((own, other), dtype) in pairs.flat_map(|pair| [(pair, Dtype::F32), (pair, Dtype::BF16)]) {
        let master = Tensor::new(own, &[37, 70], arbitrary(37 * 70, 7)).unwrap();
        let w = Weight::new(&master, dtype).unwrap();
        let [a, b] = [own, other].map(|device| device.simd() == Some(Simd::Avx512Bf16));
        for (want, got) in products(own, &w).into_iter().zip(products(other, &w)) {
            if dtype == Dtype::BF16 && a != b {
                let (simd, packed) = (other.simd().unwrap(), own.simd().unwrap());
                let text = format!("expected a weight packed for {simd}, found one packed for {packed}");
                let error = got.expect_err("products of another order");
                assert!(error.to_string().contains(&text), "{error}");
                refused += 1;
            } else {
                same(&got.unwrap(), &want.unwrap(), &format!("{dtype}, packed for {own}, on {other}"));
                compared += 1;
            }
        }
    }
    println!("{compared} products of another instruction set compared, {refused} refused");
    if !simds().contains(&Simd::Avx512Bf16) {
        println!("NOT RUN, products of another order need AVX-512 BF16");
    }
}
