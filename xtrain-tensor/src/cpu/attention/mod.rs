//! Attention in lanes: the bits of `crate::reference`, which says what is computed.
//!
//! | file | |
//! |---|---|
//! | `forward` | a block of rows and one kv head: scores, weights and outputs by chunks of 64 keys |
//! | `backward` | one sequence and one kv head: each weight is formed once and enters dq, dk and dv |
//! | `product` | the products of both, one chain to an output |
//! | `number` | f32 and bf16; when a bf16 product may skip the search for tiny results |
//! | `flush` | the search |
//! | `gather` | queries, keys and values from runs or pages, as f32 |
//! | `rows` | ranges of visible keys, masks |
//! | `scratch` | working memory of a thread |
mod backward;
mod flush;
mod forward;
mod gather;
mod number;
mod product;
mod rows;
mod scratch;
#[cfg(test)]
mod tests;

pub(crate) use backward::{Saved, attention_backward};
pub(crate) use forward::attention;
pub(crate) use number::Number;

/// Multiplications below which a second thread costs more than it brings (about 5 us).
const SERIAL: usize = 1 << 17;
