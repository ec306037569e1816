//! Errors of the driver.
use cudarc::driver::result::DriverError;

use crate::error::Error;

pub(super) fn error(what: String) -> Error {
    Error::Device { what }
}

/// Converts a driver error; `what` is the operation that failed.
pub(super) fn driver_error(what: &str) -> impl FnOnce(DriverError) -> Error {
    move |cause| error(format!("CUDA, {what}: {cause}"))
}
