//! The check of one value.
use std::fmt::Display;

use super::error::{Error, Result};

/// # Errors
/// [`Error::Invalid`] for `key` unless `holds`.
pub(super) fn require(
    holds: bool,
    key: &'static str,
    got: impl Display,
    want: impl Into<String>,
) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Invalid { key, got: got.to_string(), want: want.into() }) }
}
