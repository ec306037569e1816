//! SIMD attention. Same bits as `crate::reference`, which defines the computation.
//!
//! | file | contents |
//! |---|---|
//! | `forward` | one work item: a block of rows and one kv head; scores, weights and outputs in chunks of 64 keys |
//! | `blocks` | which rows are computed together: those that share chunks of keys |
//! | `few` | forward for a few rows of a sequence and several kv heads, with AMX: keys are read where they are |
//! | `backward` | one work item: a sequence and one kv head; each weight is computed once for dq, dk and dv |
//! | `operands` | the operands of a work item's products, in the form that an instruction set reads |
//! | `widened`, `paired` | two forms: f32 for fma, and pairs of bf16 for `vdpbf16ps` and `tdpbf16ps` |
//! | `backward/operands`, `backward/widened`, `backward/paired` | the same for the products of the backward pass |
//! | `product` | the matrix products of both, one chain per output; flush to zero |
//! | `number` | the element types f32 and bf16 |
//! | `kv_element` | the element types of stored keys and values: those of the queries, or int8 codes |
//! | `gather` | copies or views of queries, keys and values from contiguous or paged slots, as f32 |
//! | `state` | the operands of all work items of the forward pass, and the sums of its query vectors |
//! | `rows` | ranges of visible keys, masks |
//! | `scratch` | thread-local working memory |
mod backward;
mod blocks;
mod chunk;
#[cfg(target_arch = "x86_64")]
mod few;
mod forward;
mod gather;
mod kv_element;
mod number;
mod operands;
#[cfg(target_arch = "x86_64")]
mod paired;
mod product;
mod rows;
mod scratch;
mod state;
#[cfg(test)]
mod tests;
mod widened;

pub(crate) use backward::attention_backward;
pub(crate) use forward::{attention, attention_over};
