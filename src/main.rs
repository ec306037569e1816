//! The command `xtrain`.
fn main() {}
