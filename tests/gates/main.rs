//! The gates: what must hold across crates, in bits.
mod fixtures;
mod golden;
