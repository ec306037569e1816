//! The gates: what must hold across crates, in bits.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod cli;
mod fixtures;
mod golden;
