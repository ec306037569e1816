//! The character set of the terminal.

/// Whether the first non-empty locale variable names UTF-8.
pub(super) fn utf8_locale() -> bool {
    let variables = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| std::env::var(name).ok());
    let first = variables.into_iter().find(|text| !text.is_empty()).unwrap_or_default().to_lowercase();
    first.contains("utf-8") || first.contains("utf8")
}
