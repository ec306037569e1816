//! Normally distributed initial weights, computed by address and bit-identical on every machine.
#![allow(clippy::excessive_precision, reason = "digits as published")]
use std::num::NonZero;
use std::sync::Mutex;
use std::thread;

use crate::lock::lock;
use crate::portable;
use crate::rng::{Purpose, draw};

/// `out[j]` = f32(normal of word pair j mod 2 at address (seed, id, j / 2, weights)) * std.
///
/// `id` is the number of the parameter. Its values depend neither on other parameters nor on the order of
/// initialization. The deviate is computed in f64 with `+ - * / sqrt` only, rounded once to f32, and multiplied in
/// f32. At most 2^33 values have distinct addresses.
///
/// Uses all cores.
pub fn fill_normal(seed: u64, id: u64, std: f32, out: &mut [f32]) {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(out.len() / PIECE);
    let pieces = Mutex::new(out.chunks_mut(PIECE).enumerate());
    let next = || lock(&pieces).next();
    let work = || {
        while let Some((i, piece)) = next() {
            fill_piece(seed, id, i * PIECE / 2, std, piece);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // a thread that the system cannot start leaves its pieces to the others
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

/// Values that a thread draws at a time, an even number.
const PIECE: usize = 1 << 16;

/// The values from pair `first` on.
fn fill_piece(seed: u64, id: u64, first: usize, std: f32, out: &mut [f32]) {
    for (position, pair) in (first..).zip(out.chunks_mut(2)) {
        let [a, b, c, d] = draw(seed, id, position as u32, Purpose::Weights);
        for (value, (low, high)) in pair.iter_mut().zip([(a, b), (c, d)]) {
            *value = standard_normal(u64::from(low) | u64::from(high) << 32) * std;
        }
    }
}

/// Converts 64 random bits to a standard normal deviate: the f32 nearest to the inverse of the distribution function
/// at (floor(u / 2^12) + 1/2) / 2^52. That argument is never 0 or 1, so the magnitude is at most 8.3.
pub fn standard_normal(u: u64) -> f32 {
    let p = ((u >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64);
    inverse_distribution(p) as f32
}

/// num / den, both evaluated by Horner's method from the highest power.
fn ratio(num: [f64; 8], den: [f64; 8], r: f64) -> f64 {
    let horner = |c: [f64; 8]| c.into_iter().reduce(|y, c| y * r + c).expect("eight coefficients");
    horner(num) / horner(den)
}

/// The inverse of the normal distribution function at 0 < p < 1, with a relative error of about 1e-16: algorithm AS
/// 241, PPND16 (Wichura 1988).
fn inverse_distribution(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        return q * ratio(CENTER.0, CENTER.1, 0.180625 - q * q);
    }
    let r = (-portable::log(if q < 0.0 { p } else { 1.0 - p })).sqrt();
    let size = if r <= 5.0 { ratio(TAIL.0, TAIL.1, r - 1.6) } else { ratio(FAR.0, FAR.1, r - 5.0) };
    if q < 0.0 { -size } else { size }
}

type Coefficients = ([f64; 8], [f64; 8]);

const CENTER: Coefficients = (
    [
        2.5090809287301226727e+3,
        3.3430575583588128105e+4,
        6.7265770927008700853e+4,
        4.5921953931549871457e+4,
        1.3731693765509461125e+4,
        1.9715909503065514427e+3,
        1.3314166789178437745e+2,
        3.3871328727963666080e+0,
    ],
    [
        5.2264952788528545610e+3,
        2.8729085735721942674e+4,
        3.9307895800092710610e+4,
        2.1213794301586595867e+4,
        5.3941960214247511077e+3,
        6.8718700749205790830e+2,
        4.2313330701600911252e+1,
        1.0,
    ],
);

const TAIL: Coefficients = (
    [
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e+0,
        3.64784832476320460504e+0,
        5.76949722146069140550e+0,
        4.63033784615654529590e+0,
        1.42343711074968357734e+0,
    ],
    [
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e+0,
        2.05319162663775882187e+0,
        1.0,
    ],
);

const FAR: Coefficients = (
    [
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580e+0,
        5.46378491116411436990e+0,
        6.65790464350110377720e+0,
    ],
    [
        2.04426310338993978564e-15,
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ],
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inverse_meets_tabulated_quantiles() {
        let table = [
            (0.25, -0.674_489_750_196_081_7),
            (0.001, -3.090_232_306_167_813_5),
            (1e-20, -9.262_340_089_798_408),
            (0.975, 1.959_963_984_540_054),
        ];
        for (p, want) in table {
            let got = inverse_distribution(p);
            assert!((got - want).abs() < 1e-15 * 10.0, "p = {p}: {got}, want {want}");
        }
        assert_eq!(inverse_distribution(0.5), 0.0);
    }

    #[test]
    fn values_do_not_depend_on_the_pieces_that_threads_draw() {
        let mut values = vec![0.0; 3 * PIECE + 5];
        fill_normal(3, 4, 0.5, &mut values);
        let mut want = vec![0.0; values.len()];
        fill_piece(3, 4, 0, 0.5, &mut want);
        crate::testing::assert_bits_eq(&values, &want, "drawn by several threads");
    }

    #[test]
    fn both_ends_of_the_draw_are_finite_and_mirrored() {
        assert_eq!(standard_normal(0), -standard_normal(u64::MAX));
        assert!((8.2..8.3).contains(&standard_normal(u64::MAX)));
    }

    #[test]
    fn a_million_deviates_have_the_moments_of_a_normal_distribution() {
        let mut x = vec![0.0; 1_000_000];
        fill_normal(3, 5, 1.0, &mut x);
        let moment = |k: i32| x.iter().map(|&v| f64::from(v).powi(k)).sum::<f64>() / x.len() as f64;
        for (k, want, sigma) in [(1, 0.0, 1e-3), (2, 1.0, 1.5e-3), (3, 0.0, 4e-3), (4, 3.0, 1e-2)] {
            assert!((moment(k) - want).abs() < 4.0 * sigma, "moment {k} is {}", moment(k));
        }
    }

    #[test]
    fn a_value_depends_on_its_index_only() {
        let (mut short, mut long) = ([0.0; 5], [0.0; 64]);
        fill_normal(3, 5, 0.02, &mut short);
        fill_normal(3, 5, 0.02, &mut long);
        assert_eq!(short, long[..5]);
        fill_normal(3, 6, 0.02, &mut short);
        assert_ne!(short, long[..5]);
    }
}
