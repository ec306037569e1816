//! The results of a bf16 product.
use half::bf16;

#[cfg(target_arch = "x86_64")]
use super::super::Disjoint;
use super::super::gemm::Beta;

/// Where a product `a b` goes: a row-major matrix of its shape.
#[derive(Debug)]
pub(crate) enum Output<'a> {
    /// `y = beta y + a b`.
    Sum(&'a mut [f32], Beta),
    /// `y = h + a b`: the product is summed before the residual `h` is added.
    Residual { h: &'a [f32], y: &'a mut [f32] },
    /// `y = a b`, rounded to bf16.
    Rounded(&'a mut [bf16]),
}

/// An [`Output`] whose parts are written by several threads.
#[cfg(target_arch = "x86_64")]
#[derive(Debug)]
pub(super) enum SharedOutput<'a> {
    Sum(&'a Disjoint<'a, f32>, Beta),
    Residual { h: &'a [f32], y: &'a Disjoint<'a, f32> },
    Rounded(&'a Disjoint<'a, bf16>),
}

impl Output<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Output::Sum(y, _) => y.len(),
            Output::Residual { h, y } => {
                assert_eq!(h.len(), y.len(), "h has the product's shape");
                y.len()
            }
            Output::Rounded(y) => y.len(),
        }
    }

    /// Calls `f` with the shared output.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn share<T>(self, f: impl FnOnce(SharedOutput<'_>) -> T) -> T {
        match self {
            Output::Sum(y, beta) => f(SharedOutput::Sum(&Disjoint::new(y), beta)),
            Output::Residual { h, y } => f(SharedOutput::Residual { h, y: &Disjoint::new(y) }),
            Output::Rounded(y) => f(SharedOutput::Rounded(&Disjoint::new(y))),
        }
    }
}
