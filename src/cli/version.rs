//! The output of `--version`.
use std::sync::LazyLock;

use xtrain_tensor::Simd;

use crate::build_info::COMMIT;

static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!("{} (commit {COMMIT}; devices: cpu [{}])", env!("CARGO_PKG_VERSION"), Simd::detect())
});

/// Version, commit, and the devices of this build with the SIMD instruction set in use.
pub(super) fn version() -> &'static str {
    &VERSION
}
