//! Size limits of templates and their output.
use std::io::{self, Write};

use super::guard::is_cancelled;

/// Maximum size of a template in bytes. Templates in use have up to 50 KiB.
pub const MAX_TEMPLATE: usize = 1 << 20;
/// Maximum size of the output of a template in bytes.
pub const MAX_OUTPUT: usize = 16 << 20;

/// The output of a template or a filter, at most [`MAX_OUTPUT`] bytes.
#[derive(Default)]
pub(super) struct LimitedOutput {
    pub(super) bytes: Vec<u8>,
    /// Whether the limit was reached or the work was cancelled.
    pub(super) full: bool,
}

impl Write for LimitedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if is_cancelled() || self.bytes.len() + bytes.len() > MAX_OUTPUT {
            self.full = true;
            return Err(io::Error::other("the text exceeds the output limit"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_may_be_as_long_as_its_limit() {
        let mut out = LimitedOutput::default();
        out.write_all(&vec![b' '; MAX_OUTPUT - 1]).unwrap();
        out.write_all(b" ").unwrap();
        assert!(!out.full);
        assert!(out.write_all(b" ").is_err());
        assert!(out.full);
    }
}
