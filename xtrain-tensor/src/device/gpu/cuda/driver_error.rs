//! Errors of the driver.
use cudarc::driver::result;

use crate::error::{DriverError, Error};

/// Converts a driver error; `what` is the operation that failed.
pub(super) fn driver_error(what: &str) -> impl FnOnce(result::DriverError) -> Error {
    move |cause| Error::Device {
        what: format!("CUDA, {what}: {cause}"),
        source: Some(DriverError(cause.to_string())),
    }
}
