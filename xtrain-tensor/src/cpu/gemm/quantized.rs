//! f32 products with a quantized B. The elements of B are dequantized as they are read, so the result has the bits of
//! the product with the f32 matrix of these elements, in the order of [`super`]. A zero of B may have the other sign, and
//! so may a zero chunk. This changes no result: y starts from +0 and is therefore never -0.
mod codes;
mod dequantize;
mod forward;
mod panels;
mod tile;

pub(crate) use forward::product;
pub(crate) use panels::QuantPanels;

#[cfg(test)]
mod tests;
