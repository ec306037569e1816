//! f32 matrix products in the order of docs/numerics.md, section 2: chunks of 256 along the depth (K), each an fma
//! chain from +0, added in ascending order: `y = y + chunk`. Threads split the outputs only.
mod forward;
mod gradient;
mod panels;
mod quantized;
mod split;
mod tile;

pub(crate) use forward::{Matrix, product, product_residual};
pub(crate) use gradient::weight_gradient;
pub(crate) use panels::{Panels, first_panel};
pub(crate) use quantized::{QuantPanels, product as quantized_product};
pub(crate) use split::{split, tiles};
pub(crate) use tile::Beta;

#[cfg(test)]
mod tests;
