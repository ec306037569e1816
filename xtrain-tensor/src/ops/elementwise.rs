//! Operations on single elements: conversion, addition, the gate of SwiGLU, and the check of finite values.
use super::checks::{check_float, refuse, refuse_dtype};
use crate::dispatch::backend;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::tensor::Tensor;

impl Tensor {
    /// The values as f32: shared if they are f32, widened if they are bf16.
    ///
    /// # Errors
    /// [`Error::Dtype`](crate::Error::Dtype) for a tensor of integers.
    pub fn to_f32(&self) -> Result<Tensor> {
        self.cast(Dtype::F32)
    }

    /// The same values in another floating-point type, rounded to nearest even. Shared if the type is the same.
    ///
    /// # Errors
    /// [`Error::Dtype`](crate::Error::Dtype) unless both types are f32 or bf16.
    pub fn cast(&self, dtype: Dtype) -> Result<Tensor> {
        [self.dtype(), dtype].into_iter().try_for_each(|dtype| check_float("Tensor::cast", dtype))?;
        match self.dtype() == dtype {
            true => Ok(self.clone()),
            false => backend(self.device()).cast(self, dtype),
        }
    }
}

/// `a + b`, both f32 of one shape.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the shapes differ, [`Error::Dtype`](crate::Error::Dtype) unless both are
/// f32.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check_sum(a, b)?;
    backend(a.device()).add(a, b)
}

/// `a = a + b`, both f32 of one shape.
///
/// # Errors
/// As [`add`].
pub fn accumulate(a: &mut Tensor, b: &Tensor) -> Result<()> {
    check_sum(a, b)?;
    backend(&a.device().clone()).accumulate(a, b)
}

/// The gate of SwiGLU (Shazeer 2020, arXiv:2002.05202): `silu(gate) up`, of one shape, rounded to `out`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the shapes differ; [`Error::Dtype`](crate::Error::Dtype) unless `gate` and
/// `up` are both f32 or both bf16, and `out` is f32 or bf16.
pub fn silu_mul(gate: &Tensor, up: &Tensor, out: Dtype) -> Result<Tensor> {
    const OP: &str = "silu_mul";
    check(OP, &[gate, up])?;
    check_gate(OP, [gate, up], out)?;
    backend(gate.device()).silu_mul(gate, up, out)
}

/// The gradients `[dgate, dup]` of [`silu_mul`], rounded to `out`. `dy` is f32.
///
/// # Errors
/// As [`silu_mul`]; [`Error::Dtype`](crate::Error::Dtype) unless `dy` is f32.
pub fn silu_mul_backward(gate: &Tensor, up: &Tensor, dy: &Tensor, out: Dtype) -> Result<[Tensor; 2]> {
    const OP: &str = "silu_mul_backward";
    check(OP, &[gate, up, dy])?;
    check_gate(OP, [gate, up], out)?;
    refuse_dtype(dy.dtype() != Dtype::F32, OP, "dy in f32", dy.dtype())?;
    backend(gate.device()).silu_mul_backward(gate, up, dy, out)
}

/// Returns the index of the first of `xs` (f32 or bf16, all on one device) that contains a NaN or an infinity.
/// `None`: all values are finite.
///
/// # Errors
/// [`Error::Dtype`](crate::Error::Dtype) for a tensor of integers.
pub fn first_non_finite(xs: &[&Tensor]) -> Result<Option<usize>> {
    xs.iter().try_for_each(|x| check_float("first_non_finite", x.dtype()))?;
    match xs.first() {
        Some(first) => backend(first.device()).first_non_finite(xs),
        None => Ok(None),
    }
}

fn check_gate(op: &'static str, [gate, up]: [&Tensor; 2], out: Dtype) -> Result<()> {
    refuse_dtype(gate.dtype() != up.dtype(), op, "gate and up in one dtype", up.dtype())?;
    [gate.dtype(), out].into_iter().try_for_each(|dtype| check_float(op, dtype))
}

fn check_sum(a: &Tensor, b: &Tensor) -> Result<()> {
    check("add", &[a, b])?;
    [a, b].into_iter().try_for_each(|x| refuse_dtype(x.dtype() != Dtype::F32, "add", "f32", x.dtype()))
}

fn check(op: &'static str, xs: &[&Tensor]) -> Result<()> {
    refuse(xs.iter().any(|x| x.shape() != xs[0].shape()), op, "one shape", xs)
}
