//! f32 matrix products in the order of docs/numerics.md, section 2: chunks of 256 along the depth,
//! each an fma chain from +0, `y = y + chunk` in rising order. Only outputs are split among threads.
mod forward;
mod gradient;
mod panels;
mod tile;

pub(crate) use forward::{Matrix, product};
pub(crate) use gradient::weight_gradient;
pub(crate) use panels::{Panels, View};
pub(crate) use tile::Start;

/// Depth of a chunk.
pub(crate) const CHUNK: usize = 256;

/// `total` rows as tiles of at most `most`, as even as can be: (first row, rows).
fn tiles(total: usize, most: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    let count = total.div_ceil(most);
    (0..count).map(move |i| {
        let from = i * total / count;
        (from, (i + 1) * total / count - from)
    })
}

#[cfg(test)]
mod tests;
