//! What must hold across crates, in one binary.
#![allow(clippy::unwrap_used, reason = "a test")]
mod cli;
