//! What must hold across crates, in one binary.
