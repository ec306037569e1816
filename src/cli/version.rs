//! What `--version` prints after the name.
use std::sync::LazyLock;

use xtrain_tensor::Simd;

use crate::COMMIT;

static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!("{} (commit {COMMIT}; devices: cpu [{}])", env!("CARGO_PKG_VERSION"), Simd::detect())
});

/// Version, commit, and the devices of this build with the instructions that they use here.
pub(super) fn version() -> &'static str {
    &VERSION
}
