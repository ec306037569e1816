//! JSON that a stranger wrote, before a recursive parser sees it.

/// The deepest nesting of brackets that is read.
pub(crate) const MAX_DEPTH: usize = 64;

/// Where brackets outside strings nest deeper than [`MAX_DEPTH`], if they do: the byte of the first that
/// is too deep.
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
    fn brackets_count_outside_strings_alone() {
        let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert_eq!(too_deep(nested(MAX_DEPTH).as_bytes()), None);
        assert_eq!(too_deep(nested(MAX_DEPTH + 1).as_bytes()), Some(MAX_DEPTH));
        assert_eq!(too_deep(nested(30).repeat(9).as_bytes()), None, "side by side");
        let quoted = format!("[\"\\\"{}\"]", "[{".repeat(100));
        assert_eq!(too_deep(quoted.as_bytes()), None, "{quoted}");
    }
}
