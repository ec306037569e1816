//! Page faults, which show memory that was returned to the system and requested again.

/// Minor page faults of this thread so far.
///
/// # Panics
/// If `/proc` is not mounted.
pub fn page_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
    // field 10; the name in parentheses is field 2
    let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
    fields.split(' ').nth(7).and_then(|n| n.parse().ok()).expect("a number")
}
