//! Several products in one launch, with every tile, against separate kernels.
use super::super::several::{self, Source};
use super::*;

#[test]
fn fused_products_of_every_tile_have_the_bits_of_their_parts() {
    let mut compared = 0;
    for (case, shape) in forward_shapes().enumerate() {
        for dtype in [Dtype::F32, Dtype::BF16] {
            let parts = FusedProducts { shape, dtype, seed: 60 + case as u64 };
            let want = parts.separately(&gpu(case));
            for tile in tiles(dtype, shape) {
                let device = gpu(case + tile as usize);
                let got = parts.fused(&device, tile);
                for (what, got) in got {
                    let (_, want) = want.iter().find(|(part, _)| *part == what).expect("a part of this name");
                    compare_bits(&got, want)
                        .unwrap_or_else(|e| panic!("{what}, {shape:?} {dtype} {tile:?} on {device}: {e}"));
                    compared += want.len();
                }
            }
        }
    }
    println!("fused products, every tile: {compared} values, 0 differing bits");
}

/// Products of one `x`: three with biases and without, a gated one, and one that is added to a residual.
struct FusedProducts {
    shape: [usize; 3],
    dtype: Dtype,
    seed: u64,
}

/// Values and what they are.
type Named = Vec<(&'static str, Vec<f32>)>;

/// Their operands on a device.
struct FusedOperands {
    x: Tensor,
    /// The three products; the first is the gate.
    weights: [Weight; 3],
    biases: [Tensor; 2],
    up: (Weight, Tensor),
    residual: Tensor,
}

impl FusedOperands {
    fn affine(&self) -> [Affine<'_>; 3] {
        let bias = |i: usize| self.biases.get(i);
        std::array::from_fn(|i| Affine { weight: &self.weights[i], bias: bias(i) })
    }

    fn gated(&self) -> [Affine<'_>; 2] {
        [self.affine()[0], Affine { weight: &self.up.0, bias: Some(&self.up.1) }]
    }
}

impl FusedProducts {
    fn operands(&self, device: &Device) -> FusedOperands {
        let [rows, outs, width] = self.shape;
        let fill = |shape: [usize; 2], at: u64| {
            on(device, shape, &arbitrary(shape[0] * shape[1], self.seed + at), Dtype::F32)
        };
        let vector = |n: usize, at: u64| fill([1, n], at).reshape(&[n]).unwrap();
        let w = |at: u64, outs: usize| Weight::new(&fill([outs, width], at), self.dtype).unwrap();
        FusedOperands {
            x: fill([rows, width], 1).cast(self.dtype).unwrap(),
            weights: [w(2, outs), w(3, 7), w(4, 16)],
            biases: [vector(outs, 6), vector(7, 7)],
            up: (w(5, outs), vector(outs, 10)),
            residual: fill([rows, outs], 8),
        }
    }

    /// Each product by a kernel of its own.
    fn separately(&self, device: &Device) -> Named {
        let on_device = self.operands(device);
        let part = |w: Affine<'_>| ops::linear(&on_device.x, w.weight, w.bias, self.dtype).unwrap();
        let [gate, second, third] = on_device.affine().map(part);
        let up = part(on_device.gated()[1]);
        let gated = ops::silu_mul(&gate, &up, self.dtype).unwrap();
        let first = on_device.affine()[0];
        let sum = ops::linear_add(&on_device.residual, &on_device.x, first.weight, first.bias).unwrap();
        let named = [
            ("first", gate),
            ("second", second),
            ("third", third),
            ("up", up),
            ("gated", gated),
            ("sum", sum),
        ];
        named.into_iter().map(|(what, y)| (what, values(&y))).collect()
    }

    /// All of them by kernels that compute several, or that add to a residual, in this tile.
    fn fused(&self, device: &Device, tile: Tile) -> Named {
        let on_device = self.operands(device);
        let (gpu, source) = (as_gpu(device), Source::Plain(&on_device.x));
        let linears = several::linears_by(gpu, source, &on_device.affine(), tile).unwrap();
        let mut named: Vec<(&str, Tensor)> = ["first", "second", "third"].into_iter().zip(linears).collect();
        assert_eq!(named.len(), 3);
        let gated = on_device.gated();
        let alone = several::swiglu_by(gpu, source, gated, tile, false).unwrap();
        assert_eq!(alone.len(), 1);
        named.extend(["gated"].into_iter().zip(alone));
        if tile != Tile::Skinny {
            let kept = several::swiglu_by(gpu, source, gated, tile, true).unwrap();
            assert_eq!(kept.len(), 3);
            named.extend(["gated", "first", "up"].into_iter().zip(kept));
        }

        let [rows, outs, _] = self.shape;
        let sum = Tensor::zeros(device, &[rows, outs], Dtype::F32).unwrap();
        let first = on_device.affine()[0];
        let epilogue = Epilogue { bias: first.bias, residual: Some(&on_device.residual) };
        let (x, w) = (on_device.x.at(gpu, self.dtype).unwrap(), first.weight.at(gpu).unwrap());
        let product = Forward { x, w, shape: self.shape, dtype: self.dtype };
        // SAFETY: operands of the shape, and room for their product.
        unsafe {
            forward(gpu, product, epilogue, sum.at(gpu, Dtype::F32).unwrap(), Dtype::F32, tile).unwrap()
        };
        named.push(("sum", sum));
        named.iter().map(|(what, y)| (*what, values(y))).collect()
    }
}

fn values(y: &Tensor) -> Vec<f32> {
    y.to_f32().unwrap().to_vec().unwrap()
}
