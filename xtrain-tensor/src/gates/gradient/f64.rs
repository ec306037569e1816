//! The reference in f64: the same formulas, for gradient checks.
use crate::reference::{Plain, Scalar};

/// f64 everywhere.
pub(crate) type F64 = Plain<f64>;

impl Scalar for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;

    fn of(x: f64) -> f64 {
        x
    }
    #[allow(clippy::disallowed_methods, reason = "compared with tolerances")]
    fn fma(self, b: f64, c: f64) -> f64 {
        self.mul_add(b, c)
    }
    fn sqrt(self) -> f64 {
        self.sqrt()
    }
    fn exp(self) -> f64 {
        self.exp()
    }
    fn log(self) -> f64 {
        self.ln()
    }
}
