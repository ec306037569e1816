//! A nesting check of untrusted JSON, for recursive parsers.

/// Maximum nesting of brackets.
pub(crate) const MAX_DEPTH: usize = 64;

/// The offset of the first bracket outside strings that is nested deeper than [`MAX_DEPTH`]. `None`: there is none.
pub(crate) fn too_deep(bytes: &[u8]) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    bytes.iter().position(|&byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => depth += 1,
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > MAX_DEPTH
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_brackets_outside_strings_count() {
        let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert_eq!(too_deep(nested(MAX_DEPTH).as_bytes()), None);
        assert_eq!(too_deep(nested(MAX_DEPTH + 1).as_bytes()), Some(MAX_DEPTH));
        assert_eq!(too_deep(nested(30).repeat(9).as_bytes()), None, "adjacent");
        let quoted = format!("[\"\\\"{}\"]", "[{".repeat(100));
        assert_eq!(too_deep(quoted.as_bytes()), None, "{quoted}");
    }
}
