//! Facts about this build.

/// The commit of this build: twelve hexadecimal digits, or `unknown` outside a repository.
pub const COMMIT: &str = env!("XTRAIN_COMMIT");
