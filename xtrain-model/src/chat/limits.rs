//! Size limits of templates and their output.

/// Maximum size of a template in bytes. Templates in use have up to 50 KiB.
pub const MAX_TEMPLATE: usize = 1 << 20;
/// Maximum size of the output of a template in bytes.
pub const MAX_OUTPUT: usize = 16 << 20;
