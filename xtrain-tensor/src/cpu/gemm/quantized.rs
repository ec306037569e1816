//! f32 products with a quantized B. The elements of B are dequantized as they are read, so the result has the bits of
//! the product with the f32 matrix of these elements, in the order of [`super`].
mod codes;
mod dequantize;
mod forward;
mod panels;
mod tile;

pub(crate) use forward::product;
pub(crate) use panels::QuantPanels;

#[cfg(test)]
mod tests;
