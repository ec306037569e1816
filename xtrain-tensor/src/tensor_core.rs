//! Tensor cores: models of one k-step of `mma.sync` in bf16.

/// A tensor core whose bf16 products are known: the models of arXiv 2511.10909, for sums below 2^-126 as an H100
/// computes them.
///
/// A step adds 16 products to a running sum in f32: `d = c + sum over 16 k of a[k] b[k]`. `c` and the products are
/// aligned to the largest exponent among them, at least `E`, each is truncated after `F` fractional bits, they are
/// summed exactly, and the sum is truncated to f32; zero is +0. A product with a zero factor and a zero `c` have no
/// effect. A sum of 2^128 or more is infinite; a NaN or opposite infinities give NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorCore {
    /// sm_80 to sm_89 (A100, Ada): `F` = 24, `E` = -126. A step is two sums of 8 products, one after the other.
    Ampere,
    /// sm_90 (H100, H200): `F` = 25, `E` = -133. A step is one sum of 16 products.
    Hopper,
}

impl TensorCore {
    /// Every tensor core with a model.
    pub const ALL: [TensorCore; 2] = [TensorCore::Ampere, TensorCore::Hopper];

    /// The tensor core of an architecture. `None`: no model has been compared with it (sm_100 and later).
    pub fn of(major: i32) -> Option<TensorCore> {
        match major {
            8 => Some(TensorCore::Ampere),
            9 => Some(TensorCore::Hopper),
            _ => None,
        }
    }

    pub(crate) const fn model(self) -> Model {
        match self {
            TensorCore::Ampere => Model { fraction: 24, lowest: -126, width: 8, zero: Zero::Product },
            TensorCore::Hopper => Model { fraction: 25, lowest: -133, width: 16, zero: Zero::Product },
        }
    }
}

/// The exponent with which a product with a zero factor takes part in the alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zero {
    /// None: the product has no effect.
    Product,
    /// The sum of the exponents of the factors, where a zero has exponent -126. A zero times a huge value would then
    /// cut tiny addends.
    #[cfg(all(test, xtrain_emu))]
    Factor,
}

/// The parameters of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Model {
    /// `F`: fractional bits of an aligned addend.
    fraction: i32,
    /// `E`: the lowest exponent of an alignment.
    lowest: i32,
    /// Products in a sum.
    width: usize,
    zero: Zero,
}

impl Model {
    /// Every model that a device is compared with.
    #[cfg(all(test, xtrain_emu))]
    pub(crate) const KNOWN: [(&str, Model); 5] = {
        let [ampere, hopper] = [TensorCore::Ampere.model(), TensorCore::Hopper.model()];
        [
            ("Ampere", ampere),
            ("Hopper", hopper),
            ("Ampere with zero factors at 2^-126", Model { zero: Zero::Factor, ..ampere }),
            ("Hopper with zero factors at 2^-126", Model { zero: Zero::Factor, ..hopper }),
            ("Hopper without exponents below -126", Model { lowest: -126, ..hopper }),
        ]
    };

    /// `c + sum a[k] b[k]`: one step. `a` and `b` are bf16 values.
    pub(crate) fn step(self, a: &[f32; 16], b: &[f32; 16], c: f32) -> f32 {
        a.chunks(self.width).zip(b.chunks(self.width)).fold(c, |c, (a, b)| self.sum(a, b, c))
    }

    fn sum(self, a: &[f32], b: &[f32], c: f32) -> f32 {
        let product = |(&a, &b): (&f32, &f32)| f64::from(a) * f64::from(b);
        let is_special = |x: &f32| !x.is_finite();
        if a.iter().chain(b).chain([&c]).any(is_special) {
            return a.iter().zip(b).map(product).fold(f64::from(c), |sum, p| sum + p) as f32;
        }
        let exponent = |(&a, &b): (&f32, &f32)| match self.zero {
            Zero::Product if a == 0.0 || b == 0.0 => self.lowest,
            _ => exponent(a) + exponent(b),
        };
        let of_c = if c == 0.0 { self.lowest } else { self::exponent(c) };
        let top = a.iter().zip(b).map(exponent).fold(of_c.max(self.lowest), i32::max);
        // in units of the last kept bit: integers below 2^28, so their sum is exact
        let scale = power_of_two(self.fraction - top);
        let cut = |x: f64| (x * scale) as i64;
        let sum = a.iter().zip(b).map(product).fold(cut(f64::from(c)), |sum, p| sum + cut(p));
        let sum = truncated(sum as f64 * power_of_two(top - self.fraction));
        if sum == 0.0 { 0.0 } else { sum }
    }
}

/// The exponent of a finite value; -126 for zero and denormals.
fn exponent(x: f32) -> i32 {
    (((x.to_bits() >> 23 & 0xff) as i32) - 127).max(-126)
}

/// 2^n of a normal f64.
fn power_of_two(n: i32) -> f64 {
    f64::from_bits(((n + 1023) as u64) << 52)
}

/// A finite value, truncated to f32; infinite from 2^128 on.
fn truncated(x: f64) -> f32 {
    let y = x as f32;
    let too_large = f64::from(y).abs() > x.abs() && x.abs() < power_of_two(128);
    if too_large { f32::from_bits(y.to_bits() - 1) } else { y }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of these products and `c`, on Ampere and on Hopper.
    fn steps(products: &[(f32, f32)], c: f32) -> [f32; 2] {
        let (mut a, mut b) = ([0.0; 16], [0.0; 16]);
        for (k, &(x, y)) in products.iter().enumerate() {
            (a[k], b[k]) = (x, y);
        }
        TensorCore::ALL.map(|core| core.model().step(&a, &b, c))
    }

    /// Sums of an H100; see the README beside the file.
    const H100: &[u8] = include_bytes!("../../tests/data/tensor_core/h100.bin");

    /// The number of sums of an H100 in which a model differs.
    fn differing(model: Model) -> usize {
        let bf16 = |x: &[u8], i: usize| {
            f32::from_bits(u32::from(u16::from_le_bytes([x[2 * i], x[2 * i + 1]])) << 16)
        };
        let word = |x: &[u8]| u32::from_le_bytes(x.try_into().unwrap());
        let differs = |x: &&[u8]| {
            let (a, b) = (std::array::from_fn(|k| bf16(x, k)), std::array::from_fn(|k| bf16(x, 16 + k)));
            model.step(&a, &b, f32::from_bits(word(&x[64..68]))).to_bits() != word(&x[68..])
        };
        H100.chunks_exact(72).filter(differs).count()
    }

    #[test]
    fn an_h100_has_the_bits_of_the_model_and_of_no_other() {
        let hopper = TensorCore::Hopper.model();
        assert_eq!((H100.len() / 72, differing(hopper)), (473, 0));
        for lowest in [-126, -132, -134, -149] {
            assert!(differing(Model { lowest, ..hopper }) > 0, "{lowest}");
        }
        assert!(differing(Model { fraction: 24, ..hopper }) > 0);
        assert!(differing(TensorCore::Ampere.model()) > 0);
    }

    #[test]
    fn addends_are_truncated_after_24_and_25_fractional_bits() {
        for (power, kept) in [(-26, [0.0, 0.0]), (-25, [0.0, 1.0]), (-24, [1.0, 1.0])] {
            let small = (2f32.powi(-12), 2f32.powi(power + 12));
            let sums = steps(&[small, (1.0, 1.0), (-1.0, 1.0)], 0.0);
            assert_eq!(sums, kept.map(|kept| kept * 2f32.powi(power)), "2^{power}");
        }
    }

    #[test]
    fn ampere_adds_two_halves_and_hopper_one_sum() {
        let mut products = [(0.0, 0.0); 16];
        (products[0], products[8]) = ((1.0, 1.0), (-1.0, 1.0));
        products[9] = (2f32.powi(-13), 2f32.powi(-12));
        assert_eq!(steps(&products, 0.0), [0.0, 2f32.powi(-25)]);
        products[0] = (0.0, 1.0);
        products[1] = (1.0, 1.0);
        assert_eq!(steps(&products, 2f32.powi(-25)), [0.0, 2f32.powi(-24)]);
    }

    #[test]
    fn results_are_truncated_and_special_values_spread() {
        let inf = f32::INFINITY;
        assert_eq!(steps(&[(1.5, -1.0)], -f32::from_bits(1)), [-1.5; 2]);
        assert_eq!(steps(&[(2f32.powi(-100), -2f32.powi(-50))], 0.0).map(f32::to_bits), [0; 2]);
        assert_eq!(steps(&[(0.0, 2f32.powi(120)), (1.0, -f32::MIN_POSITIVE)], 0.0), [-f32::MIN_POSITIVE; 2]);
        assert_eq!(steps(&[(2f32.powi(-100), 2f32.powi(-49))], 0.0).map(f32::to_bits), [1; 2]);
        assert_eq!(steps(&[(2f32.powi(100), 2f32.powi(28))], 0.0), [inf; 2]);
        assert_eq!(steps(&[(inf, -1.0)], 3.0), [-inf; 2]);
        assert!(steps(&[(inf, 0.0)], 3.0).iter().all(|x| x.is_nan()));
        assert!(steps(&[(inf, 1.0)], -inf).iter().all(|x| x.is_nan()));
        assert!(steps(&[(1.0, 1.0)], f32::NAN).iter().all(|x| x.is_nan()));
    }
}
